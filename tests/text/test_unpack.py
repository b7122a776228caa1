"""Packed files come out whole, or not at all."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import random
import zipfile

import pyarrow
import pytest

from bnce.text import unpack as unpack_module
from bnce.text.unpack import CHUNK_BYTES, DAMAGE, NotOneFileError, unpack

TEXT = b"".join(b"line %d of some text\n" % number for number in range(3000))
PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda text: pyarrow.compress(text, codec="zstd", asbytes=True),
}
PACKED = [ending for ending in PACK if ending]


def text_of(packed: bytes, ending: str) -> bytes:
    return b"".join(unpack(io.BytesIO(packed), ending))


@pytest.mark.parametrize("chunk_bytes", [64, 2**20])
@pytest.mark.parametrize("ending", PACK)
def test_text_comes_back_in_bounded_chunks(monkeypatch: pytest.MonkeyPatch, ending: str, chunk_bytes: int) -> None:
    monkeypatch.setattr(unpack_module, "CHUNK_BYTES", chunk_bytes)
    chunks = list(unpack(io.BytesIO(PACK[ending](TEXT)), ending))
    assert b"".join(chunks) == TEXT
    assert min(map(len, chunks)) > 0
    assert max(map(len, chunks)) <= chunk_bytes


@pytest.mark.parametrize("ending", PACKED)
def test_streams_put_together(ending: str) -> None:
    assert text_of(PACK[ending](TEXT) + PACK[ending](b"and more"), ending) == TEXT + b"and more"


def test_padding_between_streams() -> None:
    streams = [lzma.compress(letter) for letter in (b"a", b"b", b"c")]
    packed = streams[0] + bytes(8) + streams[1] + bytes(2 * CHUNK_BYTES) + streams[2] + bytes(4)
    assert text_of(packed, ".xz") == b"abc"


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("keep", [4, 0.5, -1])
def test_cut_short(ending: str, keep: float) -> None:
    packed = PACK[ending](TEXT)
    end = int(keep * len(packed)) if keep == 0.5 else int(keep)
    with pytest.raises(DAMAGE):
        text_of(packed[:end], ending)


@pytest.mark.parametrize("ending", PACKED)
def test_damaged_second_stream(ending: str) -> None:
    second = bytearray(PACK[ending](TEXT))
    second[0] ^= 0x55
    with pytest.raises(DAMAGE):
        text_of(PACK[ending](TEXT) + second, ending)


def test_damage_anywhere_is_told_by_the_known_errors() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text.txt", TEXT[:3000])
    whole = {".zip": packed.getvalue(), **{ending: PACK[ending](TEXT[:3000]) for ending in PACKED}}
    generator = random.Random(1)
    for ending, content in whole.items():
        for _ in range(150):
            damaged = bytearray(content)
            at = generator.randrange(len(damaged))
            length = generator.choice([1, 1, 4, 20, len(damaged)])
            damaged[at : at + length] = generator.choice([b"", bytes(length), generator.randbytes(length)])
            # Of these packings only zstd may come without a checksum, and at byte 0 a cut leaves an empty file.
            with contextlib.suppress(*DAMAGE, NotOneFileError):
                assert text_of(bytes(damaged), ending) == TEXT[:3000] or ending == ".zst" or not damaged


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
def test_changed_byte(ending: str) -> None:
    packed = bytearray(PACK[ending](TEXT))
    packed[len(packed) // 2] ^= 0x55
    with pytest.raises(DAMAGE):
        text_of(packed, ending)
