"""Packed files as chunks of bounded size: .gz, .xz, .bz2 and .zst, unpacked to the end or refused."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import pyarrow

CHUNK_BYTES = 2**20
# What the readers raise for a file that is damaged, cut short or of another format.
DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error, pyarrow.ArrowException)


def unpack(raw: IO[bytes], ending: str) -> Iterator[bytes]:
    """Yield the text in an open file, unpacked as the ending of its name asks."""
    if ending == ".gz":
        return _read(gzip.GzipFile(fileobj=raw))
    if ending == ".xz":
        # Of the formats lzma knows only this one: to an older one eight zeros and some are a whole, empty file.
        return _unpack_streams(raw, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ))
    if ending == ".bz2":
        return _unpack_streams(raw, bz2.BZ2Decompressor)
    if ending == ".zst":
        return _read(pyarrow.CompressedInputStream(raw, "zstd"))
    return _read(raw)


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
