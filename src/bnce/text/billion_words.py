"""OBWB: the One Billion Word Benchmark, release 13, from its tar or its directory, with the paper's splits.

Shards are read in the order of their numbers, whatever order they have in the tar: one that comes too early
waits in a temporary file, packed. So a tar and the directory it unpacks to give the same corpus.
"""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path

from bnce.errors import UserError
from bnce.text.sources import Advance, Document, check_errors, check_source, decode_lines, group_lines, read_chunks
from bnce.text.unpack import CHUNK_BYTES, DAMAGE, open_packed

MIN_COUNT = 3

# Shard 0 of 100 is not for training: it is what was cut into the 50 held-out ones.
_SHARDS = {"train": range(1, 100), "valid": range(5), "test": range(5, 50)}
_EVERY = [(split, number) for split, numbers in _SHARDS.items() for number in numbers]
_NAME = re.compile(
    r"(?:^|/)(?:training-monolingual\.tokenized\.shuffled/news\.en-(?P<train>\d{5})-of-00100"
    r"|heldout-monolingual\.tokenized\.shuffled/news\.en\.heldout-(?P<heldout>\d{5})-of-00050)$"
)
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_NAMED_AT_MOST = 5

Shard = tuple[str, int]


def shard_name(shard: Shard) -> str:
    """Give the path of a shard in the release."""
    split, number = shard
    if split == "train":
        return f"training-monolingual.tokenized.shuffled/news.en-{number:05}-of-00100"
    return f"heldout-monolingual.tokenized.shuffled/news.en.heldout-{number:05}-of-00050"


def check_release(path: str) -> None:
    """Refuse what is no release, or a directory that lacks a part of it."""
    if os.path.isdir(path):
        _find_shards(path)
    else:
        check_source(path)
        if not path.lower().endswith(_TAR_ENDINGS):
            raise UserError(
                f"'{path}' is neither a directory nor one of {', '.join(_TAR_ENDINGS)}: "
                "give 1-billion-word-language-modeling-benchmark-r13output.tar.gz or what it unpacks to."
            )


def read_shards(path: str, errors: str = "strict", advance: Advance | None = None) -> Iterator[tuple[str, Document]]:
    """Yield the sentences of the release with their splits, some hundred lines a document."""
    check_errors(errors)
    check_release(path)
    if os.path.isdir(path):
        for shard, file in _find_shards(path).items():
            yield from _documents(shard, read_chunks(file, advance), errors)
    else:
        yield from _read_tar(path, errors, advance)


def release_bytes(path: str) -> int:
    """Tell how much there is to read, for progress."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(map(os.path.getsize, _find_shards(path).values()))


def _documents(shard: Shard, chunks: Iterator[bytes], errors: str) -> Iterator[tuple[str, Document]]:
    for document in group_lines(decode_lines(chunks, f"Shard '{shard_name(shard)}'", errors)):
        yield shard[0], document


def _find_shards(directory: str) -> dict[Shard, str]:
    """Find the shards under a directory, in the order they are read; a shard may be packed by itself."""
    found: dict[Shard, str] = {}
    for place, _, names in os.walk(directory):
        for name in names:
            file = os.path.join(place, name)
            shard = _parse(file.replace(os.sep, "/"))
            if shard is not None:
                _refuse_second(found, shard, directory)
                found[shard] = file
    _refuse_missing(found, directory)
    return {shard: found[shard] for shard in _EVERY}


def _parse(name: str) -> Shard | None:
    match = _NAME.search(name)
    if match is None:
        return None
    number = int(match["train"] or match["heldout"])
    shard = ("train" if match["train"] else "valid" if number in _SHARDS["valid"] else "test", number)
    return shard if number in _SHARDS[shard[0]] else None


def _read_tar(path: str, errors: str, advance: Advance | None) -> Iterator[tuple[str, Document]]:
    turn = {split: numbers[0] for split, numbers in _SHARDS.items()}
    seen: set[Shard] = set()
    waiting: dict[Shard, Path] = {}
    with tempfile.TemporaryDirectory(prefix="bnce-") as scratch:
        for shard, chunks in _tar_shards(path, advance):
            _refuse_second(seen, shard, path)
            seen.add(shard)
            split, number = shard
            if number != turn[split]:
                waiting[shard] = Path(scratch, f"{split}-{number}.zst")
                with open_packed(waiting[shard], ".zst") as packed:
                    packed.writelines(chunks)
                continue
            yield from _documents(shard, chunks, errors)
            turn[split] += 1
            while (file := waiting.pop((split, turn[split]), None)) is not None:
                yield from _documents((split, turn[split]), read_chunks(str(file)), errors)
                file.unlink()
                turn[split] += 1
    _refuse_missing(seen, path)


def _tar_shards(path: str, advance: Advance | None) -> Iterator[tuple[Shard, Iterator[bytes]]]:
    """Yield the shards of a tar as they come, each to be read before the next."""
    chunks = read_chunks(path, advance)
    archive: tarfile.TarFile
    with _told(path), tarfile.open(fileobj=_Joined(chunks), mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            shard = _parse(member.name) if member.isfile() else None
            if shard is not None:
                yield shard, _member_chunks(archive, member, path)
    # A tar ends before its packing does, and the checksum comes last.
    for _ in chunks:
        pass


def _member_chunks(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> Iterator[bytes]:
    with _told(path):
        file = archive.extractfile(member)
        assert file is not None
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


class _Joined:
    """Chunks as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, memoryview(b"")

    def read(self, num_bytes: int) -> bytes:
        """Read what is there of a chunk, and only at the end nothing."""
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        piece, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return bytes(piece)


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    # The others are what tarfile makes of headers that are no numbers.
    except (*DAMAGE, tarfile.TarError, ValueError, OverflowError) as error:
        raise UserError(f"'{path}' is damaged, incomplete or not a tar file ({error}): download it again.") from error


def _refuse_second(found: Container[Shard], shard: Shard, path: str) -> None:
    if shard in found:
        raise UserError(f"'{path}' contains {shard_name(shard)} twice: give the release as published.")


def _refuse_missing(found: Container[Shard], path: str) -> None:
    missing = [shard_name(shard) for shard in _EVERY if shard not in found]
    if missing:
        more = f" and {len(missing) - _NAMED_AT_MOST} more" if len(missing) > _NAMED_AT_MOST else ""
        raise UserError(
            f"'{path}' lacks {len(missing)} of the {len(_EVERY)} shards of the release: "
            f"{', '.join(missing[:_NAMED_AT_MOST])}{more}; give the whole release."
        )
