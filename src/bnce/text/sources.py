"""Where text comes from: files, packed or not, read as lines and documents, never held whole."""

from __future__ import annotations

import contextlib
import glob
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import IO, TypeVar

from bnce.errors import UserError, argument, unknown_name
from bnce.text.unpack import DAMAGE, PACKED, NotOneFileError, find_member, open_zip, unpack

STANDARD_INPUT = "-"
DOCSTRINGS = "docstrings"  # of the modules that are installed
ON_ERRORS = ("strict", "replace")

MAX_LINE_BYTES = 16 * 2**20
MAX_DOCUMENT_LINES = 100
# Lines may be long: without this bound a document could grow to MAX_DOCUMENT_LINES × MAX_LINE_BYTES.
MAX_DOCUMENT_CHARACTERS = 2**20

_CHUNK_BYTES = 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Document = list[str]
Advance = Callable[[int], None]
Item = TypeVar("Item")


def refuse_second_stdin(names: Iterable[str]) -> None:
    """Refuse to read standard input more than once: the second time there is nothing left in it."""
    if list(names).count(STANDARD_INPUT) > 1:
        raise UserError(f"'{STANDARD_INPUT}', standard input, is given twice: it can be read only once.")


def expand_sources(names: Sequence[str]) -> list[str]:
    """List the files that are meant: those under directories and those that fit a pattern, each lot sorted."""
    paths = []
    for name in names:
        if name != STANDARD_INPUT and os.path.isdir(name):
            found = _files_under(name)
            if not found:
                raise UserError(f"The directory '{name}' has no files: give a directory with text files.")
        elif glob.has_magic(name) and not os.path.exists(name):
            found = sorted(path for path in glob.iglob(name, recursive=True) if os.path.isfile(path))
            if not found:
                raise UserError(f"No file matches the pattern '{name}': check it, or give the files.")
        else:
            found = [name]
        paths += found
    return paths


def _files_under(directory: str) -> list[str]:
    """List the files of a directory and those below it, hidden ones left out."""
    found = []
    for place, subdirectories, names in os.walk(directory):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        found += [os.path.join(place, name) for name in names if not name.startswith(".")]
    return sorted(path for path in found if os.path.isfile(path))


def read_documents(path: str, errors: str = "strict", advance: Advance | None = None) -> Iterator[Document]:
    """Group the lines of a file into documents: a run up to a blank line, or MAX_DOCUMENT_LINES at most."""
    return group_lines(read_lines(path, errors, advance))


def group_lines(lines: Iterable[str]) -> Iterator[Document]:
    """Group lines into documents, of which a blank line or the bounds above make an end."""
    document: Document = []
    num_characters = 0
    for line in lines:
        if line and not line.isspace():
            document.append(line)
            num_characters += len(line)
            if len(document) < MAX_DOCUMENT_LINES and num_characters < MAX_DOCUMENT_CHARACTERS:
                continue
        if document:
            yield document
            document = []
            num_characters = 0
    if document:
        yield document


def batches(items: Iterable[Item], size: Callable[[Item], int], least: int) -> Iterator[list[Item]]:
    """Put items together until their sizes add up to so much; the last ones may be fewer."""
    batch: list[Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= least:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def read_lines(
    path: str | os.PathLike[str], errors: str = "strict", advance: Advance | None = None, member: str | None = None
) -> Iterator[str]:
    """Stream the lines of a text file (plain, .gz, .xz, .bz2, .zst or .zip; "-" is standard input).

    Lines end at "\\n" or "\\r\\n" and at nothing else. `advance` is told how many bytes of the file, as
    it lies on disk, were read since the last call. `member` names the file in a .zip that has several.
    """
    path = os.fspath(path)
    check_errors(errors)
    check_source(path)
    return decode_lines(read_chunks(path, advance, member), named(path), errors)


def read_range(path: str, begin: int, end: int, errors: str, num_lines: int = 0) -> Iterator[str]:
    """Stream the lines of a range of a plain text file, which begins where a line does; `num_lines` are before it."""
    return _decode_range(_read_bytes(path, begin, end), named(path), errors, num_lines, begin)


def count_lines(path: str, end: int) -> int:
    """Count the ends of lines in the first `end` bytes of a file."""
    return sum(chunk.count(b"\n") for chunk in _read_bytes(path, 0, end))


def _read_bytes(path: str, begin: int, end: int) -> Iterator[bytes]:
    with _told(path), open(path, "rb") as file:
        file.seek(begin)
        while chunk := file.read(min(_CHUNK_BYTES, end - file.tell())):
            yield chunk


def decode_lines(chunks: Iterable[bytes], name: str, errors: str) -> Iterator[str]:
    """Turn pieces of UTF-8 into lines; `name` is what messages call the text."""
    any_words = yield from _decode_range(chunks, name, errors)
    if not any_words:
        raise no_words(name)


def _decode_range(
    chunks: Iterable[bytes], name: str, errors: str, num_lines: int = 0, num_bytes: int = 0
) -> Generator[str, None, bool]:
    """Do the same to some of a text, before which there are so many lines and bytes; say whether it has words."""
    any_words = False
    for piece in _whole_lines(chunks, name, num_lines):
        text = _decode(piece, errors, name, num_lines, num_bytes)
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        any_words = any_words or bool(text and not text.isspace())
        lines = text.split("\n")
        # Nothing follows the last newline, unless the file ends without one.
        if not lines[-1]:
            lines.pop()
        yield from lines
        num_lines += len(lines)
        num_bytes += len(piece)
    return any_words


def no_words(name: str) -> UserError:
    """Say that there is nothing to learn from."""
    return UserError(f"{name} has no words: give a file with text.")


def check_errors(errors: str) -> None:
    """Refuse a way to meet bad bytes that is not known."""
    if errors not in ON_ERRORS:
        raise unknown_name(f"value of {argument('errors')}", errors, ON_ERRORS)


def source_bytes(path: str) -> int:
    """Tell how large a file is on disk, for progress; 0 where that cannot be known."""
    return os.path.getsize(path) if path != STANDARD_INPUT and os.path.isfile(path) else 0


def unpacked_bytes(path: str) -> int:
    """Tell how large a file is when it is unpacked, which may take unpacking it."""
    ending = file_ending(path)
    if ending not in PACKED:
        return source_bytes(path)
    if ending == ".zip":
        with _told(path), open_zip(path) as archive:
            return find_member(archive).file_size
    return sum(map(len, read_chunks(path)))


def file_ending(path: str) -> str:
    """Give the ending of a file's name, in small letters."""
    return os.path.splitext(path)[1].lower()


def check_source(path: str) -> None:
    """Refuse a path that cannot be read, before hours go into those that are read first."""
    if path == STANDARD_INPUT:
        return
    if not os.path.exists(path):
        raise UserError(f"There is no file '{path}': check the path.")
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, "config.toml")):
            raise UserError(f"'{path}' is a run, but a text is needed here: check the order of the arguments.")
        raise UserError(f"'{path}' is a directory: give the files in it.")
    if not os.access(path, os.R_OK):
        raise UserError(f"'{path}' cannot be read: change its permissions.")


def _whole_lines(chunks: Iterable[bytes], name: str, num_lines: int = 0) -> Iterator[bytes]:
    """Yield pieces of a text that end where a line ends; a line never grows past MAX_LINE_BYTES in memory."""
    rest = b""
    for chunk in chunks:
        # Only the first line of a chunk can be too long: the others lie within it, and it is not that large.
        first_end = chunk.find(b"\n")
        if len(rest) + (len(chunk) if first_end < 0 else first_end) > MAX_LINE_BYTES:
            raise UserError(
                f"{name}, line {num_lines + 1} is longer than {MAX_LINE_BYTES // 2**20} MiB: "
                "put one sentence, paragraph or article per line."
            )
        if first_end < 0:
            rest += chunk
            continue
        last_end = chunk.rfind(b"\n") + 1
        piece = rest + chunk[:last_end]
        rest = chunk[last_end:]
        num_lines += piece.count(b"\n")
        yield piece
    if rest:
        yield rest


def read_chunks(path: str, advance: Advance | None = None, member: str | None = None) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file, and turn what can go wrong into a sentence."""
    with _told(path), contextlib.ExitStack() as stack:
        if path == STANDARD_INPUT and sys.stdin is None:
            raise UserError("Standard input is closed: give a file, or pipe text into the command.")
        raw: IO[bytes] = sys.stdin.buffer if path == STANDARD_INPUT else stack.enter_context(open(path, "rb"))
        chunks = unpack(raw, file_ending(path), member)
        position = 0
        while True:
            chunk = next(chunks, b"")
            if advance is not None and raw.seekable():
                before, position = position, raw.tell()
                advance(position - before)
            if not chunk:
                return
            yield chunk


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Say in one sentence what is wrong with a file that cannot be read."""
    try:
        yield
    except NotOneFileError as error:
        raise UserError(f"{named(path)} holds {error}: unpack it and give the file you want.") from error
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno:
            raise UserError(f"Cannot read {named(path)}: {error.strerror}.") from error
        raise UserError(
            f"{named(path)} is damaged, incomplete or not what its file extension says ({error}): "
            "fetch it or pack it again."
        ) from error


def _decode(piece: bytes, errors: str, name: str, num_lines: int, num_bytes: int) -> str:
    """Turn bytes into text; `num_lines` and `num_bytes` before them tell where in the file an error is."""
    if num_bytes == 0 and piece.startswith(_BYTE_ORDER_MARK):
        piece = piece[len(_BYTE_ORDER_MARK) :]
        num_bytes = len(_BYTE_ORDER_MARK)
    if errors == "replace":
        return piece.decode("utf-8", "replace").replace("\0", "\ufffd")
    nul = piece.find(b"\0")
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError as error:
        at, what = error.start, f"invalid UTF-8 (byte 0x{piece[error.start]:02x})"
        if 0 <= nul < at:
            at, what = nul, "a NUL byte"
    else:
        if nul < 0:
            return text
        at, what = nul, "a NUL byte"
    line = num_lines + piece.count(b"\n", 0, at) + 1
    raise UserError(
        f"{name}, line {line} has {what} at byte offset {num_bytes + at}: "
        f"convert the text to UTF-8, or give {argument('errors', 'replace')}, if the command has this option, to "
        "replace it with U+FFFD."
    )


def named(path: str) -> str:
    """Call a source by its name in a message."""
    return "Standard input" if path == STANDARD_INPUT else f"'{path}'"
