"""Packed files: .gz, .xz, .bz2, .zst and .zip, unpacked in chunks of bounded size to the end or refused; and packed."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

CHUNK_BYTES = 2**20
# What the readers raise for a file that is damaged, cut short or of another format.
DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile)
PACKERS = (".gz", ".xz", ".bz2", ".zst")  # of what is written
PACKED = (*PACKERS, ".zip")


class NotOneFileError(Exception):
    """An archive holds several files, or not the one that is asked for."""


def unpack(raw: IO[bytes], ending: str, member: str | None = None) -> Iterator[bytes]:
    """Yield the text in an open file, unpacked as the ending of its name asks.

    `member` is the name, without directories, of the file to read in a .zip; without it there must be only one.
    """
    if ending == ".zip":
        return _unzip(raw, member)
    if ending in (".gz", ".tgz"):
        return _read(gzip.GzipFile(fileobj=raw))
    if ending == ".xz":
        # Of the formats lzma knows only this one: to an older one eight zeros and some are a whole, empty file.
        return _unpack_streams(raw, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ))
    if ending == ".bz2":
        return _unpack_streams(raw, bz2.BZ2Decompressor)
    if ending == ".zst":
        return _unpack_zstd(raw)
    return _read(raw)


@contextlib.contextmanager
def open_packed(path: Path, ending: str) -> Iterator[IO[bytes]]:
    """Open a file to write bytes, packed if the ending of the output's name says so."""
    with open(path, "wb") as raw, _pack(raw, ending) as file:
        yield file


def _pack(raw: IO[bytes], ending: str) -> Any:
    if ending == ".gz":
        # Without its name and the time in it: the same content gives the same bytes.
        return gzip.GzipFile("", "wb", 6, raw, mtime=0)
    if ending == ".xz":
        return lzma.LZMAFile(raw, "wb", preset=3)
    if ending == ".bz2":
        return bz2.BZ2File(raw, "wb")
    if ending == ".zst":
        import pyarrow

        return pyarrow.CompressedOutputStream(raw, "zstd")
    return raw


@contextlib.contextmanager
def open_zip(file: IO[bytes] | str) -> Iterator[zipfile.ZipFile]:
    """Open an archive; whatever zipfile raises over damage becomes a BadZipFile."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    # ValueError: a place before the file's start. RuntimeError: a password, or a packing that Python has no code for.
    except (ValueError, LookupError, RuntimeError, OverflowError, struct.error) as error:
        raise zipfile.BadZipFile(str(error)) from error


def find_member(archive: zipfile.ZipFile, member: str | None = None) -> zipfile.ZipInfo:
    """Find the file of an archive that is meant."""
    files = [entry for entry in archive.infolist() if not entry.is_dir()]
    if member is not None:
        files = [entry for entry in files if entry.filename.rpartition("/")[2] == member]
    if len(files) != 1:
        raise NotOneFileError(f"{len(files)} files{'' if member is None else f' named {member}'}")
    return files[0]


def _unzip(raw: IO[bytes], member: str | None) -> Iterator[bytes]:
    with open_zip(raw) as archive, archive.open(find_member(archive, member)) as stream:
        yield from _read(stream)


def _unpack_zstd(raw: IO[bytes]) -> Iterator[bytes]:
    import pyarrow

    try:
        yield from _read(pyarrow.CompressedInputStream(_Lent(raw), "zstd"))
    except pyarrow.ArrowException as error:
        raise EOFError(str(error)) from error


class _Lent:
    """A file that stays open: pyarrow closes what it reads from, and whoever opened it still asks where it stands."""

    closed = False

    def __init__(self, raw: IO[bytes]) -> None:
        self.read = raw.read

    def close(self) -> None:
        """Leave it open."""


def _read(stream: Any) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def _unpack_streams(raw: IO[bytes], decompressor: Callable[[], Any]) -> Iterator[bytes]:
    """Unpack every stream of a file that may be several, put one behind the other.

    The standard library's LZMAFile and BZ2File take a later stream that is damaged for the end of the file,
    and so would lose text without a word.
    """
    packed = raw.read(CHUNK_BYTES)
    while packed:
        stream = decompressor()
        while not stream.eof:
            if stream.needs_input and not packed and not (packed := raw.read(CHUNK_BYTES)):
                raise EOFError("it ends too early")
            chunk = stream.decompress(packed, CHUNK_BYTES)
            packed = b""
            if chunk:
                yield chunk
        packed = stream.unused_data.lstrip(b"\0")
        # Zeros between streams are padding that the xz format allows.
        while not packed and (more := raw.read(CHUNK_BYTES)):
            packed = more.lstrip(b"\0")
