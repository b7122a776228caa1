"""Files and directories that appear whole or not at all: written beside their place, then renamed into it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import math
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bnce.errors import BusyError, DiskFullError, UserError

PARTIAL_SUFFIX = ".partial"
_MAX_STEM_BYTES = 220  # of a file's name in that of its partial: with the rest, what every disk takes

# What a system says of a place that nothing can be written to.
_NO_PLACE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.ENXIO, errno.ETXTBSY),
    *(errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
}


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on success what is there takes the place of `path`, on failure it is removed.

    A link stays, and the file it leads to is replaced. What is no regular file, such as /dev/null or a pipe, is
    never replaced: the text is written through to it once it is whole.
    """
    place = _follow(path)
    with _explain(path, place):
        if _is_stream(place):
            with tempfile.TemporaryDirectory(prefix="bnce-") as scratch:
                partial = Path(scratch) / "written"
                yield partial
                _write_through(partial, place)
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
    place = _follow(path)
    with _explain(path, place):
        _make_parents(place)
        with _scratch(place) as partial:
            yield partial
            refuse_existing(path)
            os.replace(partial, place)
        _sync(place.parent)


def _follow(path: Path) -> Path:
    """Say where a link leads, so that its target is replaced and not the link; `.` and `..` get their names."""
    try:
        # What /dev/stdout leads to may be a pipe, which has no path: it is opened by the link.
        if (path.is_symlink() and not _is_stream(path)) or path.name in ("", ".."):
            return Path(os.path.realpath(path))
    except OSError as error:
        raise _no_place(path, error.strerror) from error
    return path


def _is_stream(path: Path) -> bool:
    """Say whether something must be written to as it is: a device, a pipe, or the file that standard output is."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode):
        return False
    return not stat.S_ISREG(found.st_mode) or _own_stream(found) is not None


def _own_stream(found: os.stat_result) -> int | None:
    """Find the descriptor, standard output or standard error, that has a file open."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.fstat(descriptor)):
                return descriptor
    return None


def _write_through(written: Path, stream: Path) -> None:
    descriptor = _own_stream(os.stat(stream))
    if descriptor is not None and sys.stdout is not None:
        sys.stdout.flush()  # in the order in which it was written
    try:
        with (
            open(written, "rb") as source,
            open(stream, "wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb") as sink,
        ):
            shutil.copyfileobj(source, sink)
    except BrokenPipeError as error:
        if descriptor is not None:
            raise
        raise UserError(
            f"'{stream}' was closed by its reader before everything was written: let it read to the end."
        ) from error


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Yield a new directory beside `path`, where a rename is atomic; its lock says that this process is alive."""
    partial = _partial(path)
    try:
        _remove_stale(path)
        partial.mkdir()
    except FileNotFoundError as error:
        # Some places that are no disks, such as /proc, do not find what is to be made.
        raise _no_place(path, error.strerror) from error
    try:
        with _locked(partial):
            yield partial
    finally:
        # Where nothing could be written, nothing can be removed: the first error is the one to tell.
        shutil.rmtree(partial, ignore_errors=True)


def _partial(path: Path) -> Path:
    return path.with_name(f".{_stem(path)}.{os.getpid()}{PARTIAL_SUFFIX}")


def _stem(path: Path) -> str:
    """Shorten a long name, so that the longest one that a disk takes still has a place beside it."""
    return os.fsdecode(os.fsencode(path.name)[:_MAX_STEM_BYTES]) if len(path.name) <= 255 else path.name


def _make_parents(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        # Said of a parent, which is a file: to hear that something exists would mislead.
        raise _no_place(path, os.strerror(errno.ENOTDIR)) from error
    except FileNotFoundError as error:
        raise _no_place(path, error.strerror) from error


def _remove_stale(path: Path) -> None:
    """Remove what processes that were killed left of their way to `path`."""
    for partial in path.parent.glob(f".{glob.escape(_stem(path))}.*{PARTIAL_SUFFIX}"):
        number = partial.name.removeprefix(f".{_stem(path)}.").removesuffix(PARTIAL_SUFFIX)
        if number.isdecimal() and _is_gone(int(number)):
            # On a shared disk the number may be that of a process elsewhere: only its lock tells.
            with contextlib.suppress(OSError), _locked(partial, required=True):
                remove(partial)


def remove(path: Path) -> None:
    """Remove a file or a directory with all that is in it, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _is_gone(process: int) -> bool:
    if process == os.getpid():
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass
    return False


@contextlib.contextmanager
def _locked(path: Path, *, required: bool = False, waits: bool = False) -> Iterator[None]:
    """Hold the lock of a directory or a file, which ends with the process; some file systems have none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if required:
                raise
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held(directory: Path, busy: str) -> Iterator[None]:
    """Keep a directory to this process; the sentence `busy` is for whoever finds it taken."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(directory, required=True))
        except BlockingIOError as error:
            raise BusyError(busy) from error
        except OSError:  # a file system without locks
            pass
        yield


@contextlib.contextmanager
def one_maker(path: Path) -> Iterator[None]:
    """Let one process at a time make `path`: the others wait, and then find what the first one made."""
    with contextlib.ExitStack() as stack:
        with _explain(path, path):
            _make_parents(path)
            stack.enter_context(_locked(path.parent, waits=True))
        yield


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


def refuse_existing(path: Path) -> None:
    """Refuse to write over a directory that holds something, and where a directory cannot take another's place."""
    try:
        if path.is_dir() and not any(path.iterdir()):
            if path.samefile(os.curdir):
                raise UserError(f"The output '{path}' is the current directory: give the name of a new directory.")
            if path.is_mount():
                raise UserError(f"The output '{path}' is a mount point: give the name of a new directory inside it.")
            return
        exists = path.exists()
    except OSError as error:  # a name that is too long, or a directory that nobody may look into
        raise _no_place(path, error.strerror) from error
    if exists:
        raise UserError(f"The output '{path}' already exists: give another path, or remove it first.")


def make_directory(path: Path) -> None:
    """Make a directory to write into, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # Of a file we would hear that it exists, which is not what is wrong with it.
        reason = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"Cannot write to the output directory '{path}' ({reason}): give another one.") from error


def check_place(path: Path) -> None:
    """Refuse a file that could not be written, before any work goes into what it is to hold."""
    if path == Path("-"):
        raise UserError("'-' stands for standard output, where this cannot be written: give the name of a file.")
    place = _follow(path)
    with _explain(path, place):
        if place.is_dir():
            raise UserError(f"'{path}' is a directory: give the name of a file to write.")
        if not place.parent.is_dir():
            raise UserError(f"There is no directory '{place.parent}' to write '{place.name}' to: create it first.")
        if not os.access(place if _is_stream(place) else place.parent, os.W_OK):
            raise _no_place(path, os.strerror(errno.EACCES))


def refuse_overwriting(outputs: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Refuse an output that is an input or another output, whatever links lead there; "-" is standard input.

    What keeps nothing, such as a pipe or /dev/null, can be both.
    """
    read = {identity: path for path in inputs if (identity := _identity(path)) is not None}
    written: dict[object, Path] = {}
    for path in outputs:
        identity = _identity(path)
        if identity is None or (path.exists() and _is_stream(path)):
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
def _explain(path: Path, place: Path) -> Iterator[None]:
    """Turn what can go wrong while `path`, which leads to `place`, is written into one sentence."""
    try:
        yield
    except OSError as error:
        if not _is_about(error, place):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"The disk is full: '{path}' could not be written and was not changed") from error
        if error.errno == errno.EFBIG:
            raise DiskFullError(
                f"'{path}' could not be written and was not changed, because files may not be that large here",
                "raise the limit (ulimit -f)",
            ) from error
        if error.errno in _NO_PLACE:
            raise _no_place(path, error.strerror) from error
        raise


def _is_about(error: OSError, place: Path) -> bool:
    """Tell an error of what is written from one of a file that is read meanwhile.

    Of a copy that fails, `shutil` names both files: only the one that is written can be without room.
    """
    named = [name for name in (error.filename, error.filename2) if isinstance(name, str | bytes | os.PathLike)]
    paths = [Path(os.fsdecode(name)) for name in named]
    return not paths or any(
        _partial(place) in (path, *path.parents) or path in (place, *place.parents) for path in paths
    )


def _no_place(path: Path, reason: str | None) -> UserError:
    return UserError(f"Cannot write '{path}': {reason}; choose a place where you can write.")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
