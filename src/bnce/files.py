"""Files and directories that appear whole or not at all, and small files read back.

What is written is made beside its place, then renamed into it. A reader raises a `ValueError` that says what is wrong;
whoever called it knows which file, and what to do.

A directory that other commands open has one manifest: a JSON file with a format number, the sizes and hashes of the
files that belong to the directory, and last its own hash.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import math
import os
import shutil
import stat
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnce.errors import BusyError, DiskFullError, UserError, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARTIAL_SUFFIX = ".partial"
PARTIALS: set[Path] = set()  # what this process is writing; left behind if it ended without clearing up
_OWN_STREAMS = {Path("/dev/stdout"): 1, Path("/dev/stderr"): 2}  # may be files, to which others have written before
# What a system says where there is no room, with the remedy, and of a place that nothing can be written to.
_NO_ROOM = {
    errno.ENOSPC: ("The disk is full", "free some space"),
    errno.EDQUOT: ("The disk is full", "free some space"),
    errno.EFBIG: ("Files may not be that large here", "raise the limit (ulimit -f)"),
}
_NO_PLACE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.ENXIO, errno.ETXTBSY),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
}


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on success what is there takes the place of `path`, on failure it is removed.

    A link stays, and the file it leads to is replaced. What is no regular file, such as /dev/null or a pipe, is
    never replaced: the text is written through to it once it is whole.
    """
    with _explain(path):
        place = _follow(path)
        if _is_stream(place):
            with tempfile.TemporaryDirectory(prefix="bnce-") as scratch:
                partial = Path(scratch) / "written"
                yield partial
                sys.stdout.flush()  # in the order in which it was written
                stream = os.dup(_OWN_STREAMS[place]) if place in _OWN_STREAMS else place
                with open(partial, "rb") as source, open(stream, "wb") as sink:
                    shutil.copyfileobj(source, sink)
            return
        with _scratch(place) as scratch_beside:
            partial = scratch_beside / place.name
            yield partial
            _sync(partial)
            if place.exists():  # what one may not read must not be open to all because it was written anew
                partial.chmod(stat.S_IMODE(place.stat().st_mode))
            os.replace(partial, place)
            _sync(place.parent)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a fresh directory to fill; on success it becomes `path`, on failure it is removed."""
    refuse_existing(path)
    with _explain(path):
        place = _follow(path)
        make_directory(place.parent)
        with _scratch(place) as partial:
            yield partial
            refuse_existing(path)
            os.replace(partial, place)
        _sync(place.parent)


def _follow(path: Path) -> Path:
    """Say where a link leads, so that its target is replaced and not the link; `.` and `..` get their names."""
    # What /dev/stdout leads to may be a pipe, which has no path: it is opened by the link.
    leads_away = path.is_symlink() and not _is_stream(path)
    return Path(os.path.realpath(path)) if leads_away or path.name in ("", "..") else path


def _is_stream(path: Path) -> bool:
    """Say whether something must be written to as it is, such as a device or a pipe."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    return path in _OWN_STREAMS or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Yield a new directory beside `path`, where a rename is atomic; its lock says that this process is alive."""
    partial = _partial(path)
    for stale in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*{PARTIAL_SUFFIX}"):
        remove_stale(stale)
    PARTIALS.add(partial)
    try:
        partial.mkdir()
        with held(partial):
            yield partial
    finally:
        # Where nothing could be written, nothing can be removed: the first error is the one to tell.
        shutil.rmtree(partial, ignore_errors=True)
        PARTIALS.discard(partial)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")


def remove_stale(partial: Path) -> None:
    """Remove what a process that was killed was writing; where its lock cannot be had, it may be alive."""
    with contextlib.suppress(OSError, BusyError), held(partial) as is_locked:
        if is_locked:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def held(path: Path, busy: str = "", *, waits: bool = False) -> Iterator[bool]:
    """Keep a directory to this process, as long as that lives; say whether the file system has locks for it.

    The sentence `busy` is for whoever finds it taken, unless that `waits`.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(busy) from error
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def one_maker(path: Path) -> Iterator[None]:
    """Let one process at a time make `path`: the others wait, and then find what the first one made."""
    make_directory(path.parent)
    with held(path.parent, waits=True):
        yield


def make_directory(path: Path) -> None:
    """Make a directory to write into, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # Of a file we would hear that it exists, which is not what is wrong with it.
        reason = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"Cannot write to the output directory '{path}' ({reason}): give another one.") from error


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, record: Mapping[str, Any], indent: int | None = 2) -> None:
    """Write a record to a small JSON file atomically."""
    write_text(path, to_json(record, indent) + "\n")


def to_json(record: Mapping[str, Any], indent: int | None = None) -> str:
    """Write a record as JSON; what is not finite becomes null, since JSON has no word for it."""
    return json.dumps(_finite(record), indent=indent, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def refuse_existing(path: Path) -> None:
    """Refuse to write over a directory that holds something, and over the current one, in which a shell may be."""
    with _explain(path):
        if path.is_dir() and not any(path.iterdir()):
            if path.samefile(os.curdir):
                raise UserError(f"The output '{path}' is the current directory: give the name of a new directory.")
        elif path.exists():
            raise UserError(f"The output '{path}' already exists: give another path, or remove it first.")


def check_place(path: Path) -> None:
    """Refuse a file that could not be written, before any work goes into what it is to hold."""
    if path == Path("-"):
        raise UserError("'-' stands for standard output, where this cannot be written: give the name of a file.")
    with _explain(path):
        place = _follow(path)
        if place.is_dir():
            raise UserError(f"'{path}' is a directory: give the name of a file to write.")
        if not place.parent.is_dir():
            raise UserError(f"There is no directory '{place.parent}' to write '{place.name}' to: create it first.")
        if not os.access(place if _is_stream(place) else place.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def refuse_overwriting(outputs: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Refuse an output that is an input or another output, whatever links lead there; "-" is standard input.

    What keeps nothing, such as a pipe or /dev/null, can be both.
    """
    read = {identity: path for path in inputs if (identity := _identity(path)) is not None}
    written: dict[object, Path] = {}
    for path in outputs:
        identity = _identity(path)
        if identity is None:
            continue
        if identity in read:
            raise UserError(
                f"The output '{path}' is also an input ('{read[identity]}'), which would be lost: give another output."
            )
        if identity in written:
            raise UserError(f"The outputs '{written[identity]}' and '{path}' are the same file: give two names.")
        written[identity] = path


def _identity(path: str | Path) -> object:
    """Give what all names of a file share; nothing of what is no regular file."""
    try:
        found = os.fstat(0) if str(path) == "-" else os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


@contextlib.contextmanager
def _explain(path: Path) -> Iterator[None]:
    """Turn what can go wrong while `path` is written into one sentence."""
    try:
        yield
    except OSError as error:
        if not _is_about(error, Path(os.path.realpath(path))):
            raise
        if error.errno in _NO_ROOM:
            what, remedy = _NO_ROOM[error.errno]
            raise DiskFullError(f"{what}: '{path}' could not be written and was not changed", remedy) from error
        if error.errno in _NO_PLACE:
            raise UserError(f"Cannot write '{path}': {error.strerror}; choose a place where you can write.") from error
        raise


def _is_about(error: OSError, place: Path) -> bool:
    """Tell an error of what is written from one of a file that is read meanwhile.

    Of a copy that fails, `shutil` names both files: only the one that is written can be without room.
    """
    named = [name for name in (error.filename, error.filename2) if isinstance(name, str | bytes | os.PathLike)]
    paths = [Path(os.path.realpath(os.fsdecode(name))) for name in named]
    return not paths or any(
        _partial(place) in (path, *path.parents) or path in (place, *place.parents) for path in paths
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    return parse_object(data)


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Parse JSON that is one object."""
    found = json.loads(_decode(data))
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def parse_toml(data: bytes) -> dict[str, Any]:
    """Parse TOML."""
    return tomllib.loads(_decode(data))


def _decode(data: bytes | str) -> str:
    try:
        return data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error


def map_array(path: Path) -> NDArray[Any]:
    """Map an array of a .npy file into memory, to be read alone."""
    # Here, so that settings are read without loading NumPy.
    import numpy as np

    try:
        return np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except Exception as error:
        # NumPy parses the header as Python, and raises whatever that, its types and its sizes can raise.
        raise ValueError("it is cut short, or its header is damaged") from error


def digest_file(path: Path) -> str:
    """Give the SHA-256 of a file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


def digest_record(record: Mapping[str, Any]) -> str:
    """Give the SHA-256 of a JSON object, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def write_manifest(directory: Path, name: str, record: Mapping[str, Any], names: Iterable[str]) -> str:
    """Write what a directory says of itself, with sizes and hashes of the files with these names; give its own hash."""
    kept = {
        file: {"sha256": digest_file(directory / file), "bytes": (directory / file).stat().st_size} for file in names
    }
    written = json.loads(to_json({**record, "files": kept}))  # as it is read back, which is what the hash is of
    digest = digest_record(written)
    write_json(directory / name, {**written, "sha256": digest})
    return digest


def read_manifest(directory: Path, name: str, format: int) -> dict[str, Any]:
    """Read what `write_manifest` wrote; one of another format, or one that was changed, is refused."""
    if not (directory / name).is_file():
        raise ValueError(f"{name} is missing")
    try:
        record = read_object(directory / name)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read ({error})") from error
    if record.get("format") != format:
        raise ValueError(f"{name} has format {shown(record.get('format'))}, and this version reads format {format}")
    if record.get("sha256") != digest_record({key: value for key, value in record.items() if key != "sha256"}):
        raise ValueError(f"{name} has changed since it was written")
    return record


def verify(directory: Path, manifest: Mapping[str, Any], file: str, *, by_size: bool = False) -> None:
    """Refuse a file that is not as the manifest says; `by_size` does not read it, since it may be very large."""
    expected, path = manifest["files"].get(file), directory / file
    if expected is None:
        if path.exists():
            raise ValueError(f"{file} was added after it was written")
        return
    if not path.is_file():
        raise ValueError(f"{file} is missing")
    if (found := path.stat().st_size) != expected["bytes"]:
        raise ValueError(f"{file} has {found:,} bytes, but {expected['bytes']:,} were written")
    try:
        is_same = by_size or digest_file(path) == expected["sha256"]
    except ValueError as error:
        raise ValueError(f"{file} cannot be read ({error})") from error
    if not is_same:
        raise ValueError(f"{file} has changed since it was written")
