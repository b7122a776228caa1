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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bnce.errors import BusyError, UserError

PARTIAL_SUFFIX = ".partial"


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on success it is synced and renamed to `path`, on failure removed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    try:
        with _explain_full_disk(path):
            yield partial
            with open(partial, "rb") as written:
                os.fsync(written.fileno())
            os.replace(partial, path)
            _sync_directory(path.parent)
    finally:
        # Where nothing could be written, nothing can be removed: the first error is the one to tell.
        with contextlib.suppress(OSError):
            partial.unlink()


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a fresh directory to fill; on success it becomes `path`, on failure it is removed."""
    refuse_existing(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    try:
        with _explain_full_disk(path):
            _make_room(path, partial)
            with _locked(partial):
                yield partial
                refuse_existing(path)
                os.replace(partial, path)
            _sync_directory(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_room(path: Path, partial: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        partial.mkdir()
    except FileExistsError as error:
        # Said of a parent, which is a file: to hear that something exists would mislead.
        raise _no_place(path, os.strerror(errno.ENOTDIR)) from error
    except OSError as error:
        # Some places that are no disks, such as /proc, do not find what is to be made.
        if error.errno in (errno.ENAMETOOLONG, errno.ENOENT):
            raise _no_place(path, error.strerror) from error
        raise


def _remove_stale(path: Path) -> None:
    """Remove what processes that were killed left of their way to `path`."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL_SUFFIX}"):
        number = partial.name.removesuffix(PARTIAL_SUFFIX).rpartition(".")[2]
        if number.isdecimal() and partial.is_dir() and _is_gone(int(number)):
            # On a shared disk the number may be that of a process elsewhere: only its lock tells.
            with contextlib.suppress(OSError), _locked(partial, required=True):
                shutil.rmtree(partial, ignore_errors=True)


def _is_gone(process: int) -> bool:
    if process == os.getpid():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


@contextlib.contextmanager
def _locked(directory: Path, required: bool = False) -> Iterator[None]:
    """Hold a directory's lock, which ends with the process however that ends; some file systems have none."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def to_json(record: Mapping[str, Any], indent: int | None = None) -> str:
    """Write a record as JSON; what is not finite becomes null, since JSON has no word for it."""
    return json.dumps(_finite(record), indent=indent, ensure_ascii=False)


def refuse_existing(path: Path) -> None:
    """Refuse to write over a directory that holds something."""
    try:
        if path.is_dir() and not any(path.iterdir()):
            return
        exists = path.exists()
    except OSError as error:  # a name that is too long, or a directory that nobody may look into
        raise _no_place(path, error.strerror) from error
    if exists:
        raise UserError(f"The output '{path}' exists already: give another path, or remove it first.")


def check_place(path: Path) -> None:
    """Refuse a file that could not be written, before any work goes into what it is to hold."""
    if path.is_dir():
        raise UserError(f"'{path}' is a directory: give the name of a file to write.")
    if not path.parent.is_dir():
        raise UserError(f"There is no directory '{path.parent}' to write '{path.name}' into: make it first.")


@contextlib.contextmanager
def _explain_full_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"The disk is full: '{path}' could not be written, and what was there is as it was; "
                "free some space, then run the same command again."
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR):
            raise _no_place(path, error.strerror) from error
        raise


def _no_place(path: Path, reason: str | None) -> UserError:
    return UserError(f"Cannot write '{path}': {reason}; choose a place you may write to.")


def _sync_directory(path: Path) -> None:
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
