"""Where text comes from: files, packed or not, read as lines and documents, never held whole."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import IO

from bnce.corpus.unpack import DAMAGE, unpack
from bnce.errors import UserError, unknown_name

STANDARD_INPUT = "-"
ON_ERRORS = ("strict", "replace")

MAX_LINE_BYTES = 16 * 2**20
MAX_DOCUMENT_LINES = 100
# Lines may be long: without this bound a document could grow to MAX_DOCUMENT_LINES × MAX_LINE_BYTES.
MAX_DOCUMENT_CHARACTERS = 2**20

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Document = list[str]
Advance = Callable[[int], None]


def read_documents(path: str, errors: str = "strict", advance: Advance | None = None) -> Iterator[Document]:
    """Group the lines of a file into documents: a run up to a blank line, or MAX_DOCUMENT_LINES at most."""
    document: Document = []
    num_characters = 0
    for line in read_lines(path, errors, advance):
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


def read_lines(path: str, errors: str = "strict", advance: Advance | None = None) -> Iterator[str]:
    """Stream the lines of a text file (plain, .gz, .xz, .bz2 or .zst; "-" is standard input).

    Lines end at "\\n" or "\\r\\n" and at nothing else. `advance` is told how many bytes of the file, as
    it lies on disk, were read since the last call.
    """
    check_errors(errors)
    check_source(path)
    any_words = False
    num_lines = num_bytes = 0
    for piece in _whole_lines(path, advance):
        text = _decode(piece, errors, path, num_lines, num_bytes)
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
    if not any_words:
        raise UserError(f"{_named(path)} holds no words: give a file with text in it.")


def check_errors(errors: str) -> None:
    """Refuse a way to meet bad bytes that is not known."""
    if errors not in ON_ERRORS:
        raise unknown_name("value of --errors", errors, ON_ERRORS)


def source_bytes(path: str) -> int:
    """Tell how large a file is on disk, for progress; 0 where that cannot be known."""
    return os.path.getsize(path) if path != STANDARD_INPUT and os.path.isfile(path) else 0


def check_source(path: str) -> None:
    """Refuse a path that cannot be read, before hours go into those that are read first."""
    if path == STANDARD_INPUT:
        return
    if not os.path.exists(path):
        raise UserError(f"There is no file '{path}': check the path.")
    if os.path.isdir(path):
        raise UserError(f"'{path}' is a directory: give the files in it.")
    if not os.access(path, os.R_OK):
        raise UserError(f"'{path}' may not be read: change its permissions.")


def _whole_lines(path: str, advance: Advance | None) -> Iterator[bytes]:
    """Yield pieces of a file that end where a line ends; a line never grows past MAX_LINE_BYTES in memory."""
    rest = b""
    num_lines = 0
    for chunk in _chunks(path, advance):
        # Only the first line of a chunk can be too long: the others lie within it, and it is not that large.
        first_end = chunk.find(b"\n")
        if len(rest) + (len(chunk) if first_end < 0 else first_end) > MAX_LINE_BYTES:
            raise UserError(
                f"{_named(path)}, line {num_lines + 1} is longer than {MAX_LINE_BYTES // 2**20} MiB: "
                "put one sentence, paragraph or article on a line."
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


def _chunks(path: str, advance: Advance | None) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file, and turn what can go wrong into a sentence."""
    ending = os.path.splitext(path)[1].lower()
    with contextlib.ExitStack() as stack:
        try:
            raw: IO[bytes] = sys.stdin.buffer if path == STANDARD_INPUT else stack.enter_context(open(path, "rb"))
        except OSError as error:
            raise UserError(f"Cannot read {_named(path)}: {error.strerror}.") from error
        chunks = unpack(raw, ending)
        position = 0
        while True:
            try:
                chunk = next(chunks, b"")
            except DAMAGE as error:
                raise UserError(
                    f"{_named(path)} is damaged, cut short or not what its name's ending says ({error}): "
                    "fetch it or pack it again."
                ) from error
            if advance is not None and raw.seekable():
                before, position = position, raw.tell()
                advance(position - before)
            if not chunk:
                return
            yield chunk


def _decode(piece: bytes, errors: str, path: str, num_lines: int, num_bytes: int) -> str:
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
        f"{_named(path)}, line {line} has {what} at byte offset {num_bytes + at}: "
        "convert the text to UTF-8, or give --errors replace to put U+FFFD in its place."
    )


def _named(path: str) -> str:
    return "Standard input" if path == STANDARD_INPUT else f"'{path}'"
