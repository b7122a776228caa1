"""Packed text the user's way: `prepare`, `score` and `evaluate --text` read it as if unpacked, or refuse it."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from command import Command

from bnce import Corpus


def pack_zip(text: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text.txt", text)
    return packed.getvalue()


def pack_zstd(text: bytes) -> bytes:
    return bytes(pyarrow.compress(text, codec="zstd", asbytes=True))


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": pack_zstd,
    ".zip": pack_zip,
}
# Several streams, frames or members in one file, as pzstd, pigz, pbzip2 and `cat` make them.
SEVERAL = [ending for ending in PACK if ending != ".zip"]


def test_every_packing_is_tried(bnce: Command) -> None:
    (told,) = re.findall(r"Text files \(plain, (.*?)\),", " ".join(bnce("prepare", "--help").stdout.split()))
    assert told == ".gz, .xz, .bz2, .zst or .zip"
    assert set(PACK) == set(re.findall(r"\.\w+", told))


def write_packed(text: bytes, ending: str, path: Path, num_parts: int = 1) -> Path:
    bounds = [len(text) * part // num_parts for part in range(num_parts + 1)]
    parts = [text[low:high] for low, high in itertools.pairwise(bounds)]
    path = path.with_name(f"{path.name}{ending}")
    path.write_bytes(b"".join(PACK[ending](part) for part in parts))
    return path


@pytest.mark.parametrize(
    ("ending", "num_parts"), [*((ending, 1) for ending in PACK), *((ending, 3) for ending in SEVERAL)]
)
def test_packed_text_is_read_like_plain_text(
    bnce: Command, trained: Path, corpus: Path, texts: Path, tmp_path: Path, ending: str, num_parts: int
) -> None:
    def packed(name: str) -> Path:
        return write_packed((texts / name).read_bytes(), ending, tmp_path / name, num_parts)

    made = tmp_path / "corpus"
    options = ["--valid", packed("valid.txt"), "--test", packed("test.txt"), "--vocab", corpus / "vocab.txt"]
    assert bnce("prepare", packed("train.txt"), "--out", made, "--workers", 1, *options).status == 0
    assert Corpus.open(made).manifest.hashes == Corpus.open(corpus).manifest.hashes

    text = packed("test.txt")
    plain = bnce("score", trained, texts / "test.txt")
    assert bnce("score", trained, text).stdout == plain.stdout.replace(str(texts / "test.txt"), str(text))

    expected = bnce("evaluate", trained, "--text", texts / "test.txt", "--json").json
    assert bnce("evaluate", trained, "--text", text, "--json").json == {**expected, "text": str(text)}


@pytest.mark.parametrize(
    ("ending", "num_parts"), [(".gz", 1), (".xz", 2), (".bz2", 2), (".zst", 1), (".zst", 2), (".zip", 1)]
)
def test_text_that_is_cut_short_is_refused(
    bnce: Command, trained: Path, texts: Path, place: Path, tmp_path: Path, ending: str, num_parts: int
) -> None:
    text = write_packed((texts / "test.txt").read_bytes(), ending, tmp_path / "text.txt", num_parts)
    text.write_bytes(text.read_bytes()[:-5])
    for command in (
        ["prepare", text, "--out", place / "c", "--workers", 1],
        ["score", trained, text],
        ["evaluate", trained, "--text", text],
    ):
        outcome = bnce(*command)
        assert outcome.status == 2
        assert f"'{text}' is damaged, incomplete or not what its file extension says" in outcome.stderr
        assert "Traceback" not in outcome.stderr
    assert not list(place.iterdir())
