"""Shards as they lie on disk, read in blocks of bounded size: JSON lines, plain or packed, and Parquet.

A block keeps what its records are, byte for byte or column for column, until their scores are there to be written
beside them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bnce.errors import UserError, argument
from bnce.filtering.cutting import Fields, Problem, Texts
from bnce.text.records import JSON_ENDINGS, PARQUET_ENDINGS, check_column, check_once, open_parquet
from bnce.text.sources import (
    MAX_LINE_BYTES,
    STANDARD_INPUT,
    Advance,
    check_source,
    expand_sources,
    file_ending,
    named,
    read_chunks,
    source_bytes,
)
from bnce.text.unpack import PACKERS

BLOCK_BYTES = 2**20
_MAX_ROWS = 2**12

JSON, PARQUET = "jsonl", "parquet"


@dataclass(frozen=True)
class Shard:
    """A file of records; `name` is its path below the directory that all shards of a command share."""

    path: str
    name: str

    @property
    def form(self) -> str:
        """Its format."""
        return PARQUET if file_ending(self.path) in PARQUET_ENDINGS else JSON

    @property
    def stem(self) -> str:
        """Its name without the endings that say what it is."""
        name = self.name
        if file_ending(name) in PACKERS:
            name = os.path.splitext(name)[0]
        return os.path.splitext(name)[0]

    @property
    def stamp(self) -> list[int]:
        """What tells a file that was changed: its size, and when it was written."""
        found = os.stat(self.path)
        return [found.st_size, found.st_mtime_ns]


@dataclass
class Block:
    """Some records of a shard, and what is to be cut of them; `problems` are those that cannot even be looked at."""

    texts: Texts
    kept: Any  # the lines, or the rows with all their columns
    problems: list[Problem]
    end: End | None = None  # of the last block of a shard


class End(NamedTuple):
    """How a shard ended: what it was before it was read, and the damage that kept the rest from being read."""

    stamp: list[int]
    damage: str | None


def find_shards(sources: Sequence[str]) -> list[Shard]:
    """List the shards that paths, directories and patterns name, each once and in their order."""
    paths = list(dict.fromkeys(map(os.path.abspath, expand_sources([one for one in sources if one != STANDARD_INPUT]))))
    if len(paths) < 1 or STANDARD_INPUT in sources:
        raise UserError("There are no shards to filter: give files that end in .jsonl or .parquet, not standard input.")
    for path in paths:
        inner = os.path.splitext(path)[0] if file_ending(path) in PACKERS else path
        is_packed = inner != path
        if file_ending(inner) not in JSON_ENDINGS and (is_packed or file_ending(inner) not in PARQUET_ENDINGS):
            raise UserError(
                f"'{path}' does not have the name of a shard: give files that end in {', '.join(JSON_ENDINGS)} (also "
                f"with {', '.join(PACKERS)}) or {', '.join(PARQUET_ENDINGS)}."
            )
        check_source(path)
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [Shard(path, os.path.relpath(path, root)) for path in paths]


def read_all_blocks(shards: Iterable[Shard], fields: Fields, advance: Advance | None = None) -> Iterator[Block]:
    """Read one shard after the other; the last block of each, which may have no records, says how it ended."""
    for shard in shards:
        stamp, damage, last = shard.stamp, None, Block(Texts(1, b""), b"", [])
        try:
            for place, block in enumerate(read_blocks(shard, fields, advance)):
                if place:
                    yield last
                last = block
        except UserError as error:
            damage = str(error)
        yield replace(last, end=End(stamp, damage))


def read_blocks(shard: Shard, fields: Fields, advance: Advance | None = None) -> Iterator[Block]:
    """Read a shard; damage is an error where it is met, after the blocks before it."""
    if shard.form == PARQUET:
        return _read_parquet(shard, fields, advance)
    return _read_json(shard, advance)


def find_damage(shard: Shard, fields: Fields) -> str | None:
    """Say what keeps all of a shard from being read; what is wrong inside is only found there."""
    if shard.form == JSON:
        return None
    try:
        with open_parquet(shard.path) as file:
            check_columns(shard, file.schema_arrow, fields)
    except UserError as error:
        return str(error)
    return None


def _read_json(shard: Shard, advance: Advance | None) -> Iterator[Block]:
    """Cut a file into blocks that end where lines do; a line that is too long is left out as it comes by."""
    first, rest, is_dropping = 1, b"", False
    problems: list[Problem] = []

    def block(data: bytes) -> Block:
        nonlocal first, problems
        made = Block(Texts(first, data), data, problems)
        first, problems = first + data.count(b"\n"), []
        return made

    try:
        for chunk in read_chunks(shard.path, advance):
            if is_dropping:
                end = chunk.find(b"\n")
                if end < 0:
                    continue
                # The end of the line stays, so that lines are counted.
                chunk, is_dropping = chunk[end:], False
            rest += chunk
            end = rest.rfind(b"\n") + 1
            if end >= BLOCK_BYTES or (end and len(rest) > MAX_LINE_BYTES):
                yield block(rest[:end])
                rest = rest[end:]
            if len(rest) > MAX_LINE_BYTES and b"\n" not in rest:
                reason = f"is longer than {MAX_LINE_BYTES // 2**20} MiB: give one record per line."
                problems.append(Problem(first, reason))
                rest, is_dropping = b"", True
    except UserError:
        # What was read before the damage is good, but for the line that it is in.
        yield block(rest[: rest.rfind(b"\n") + 1])
        raise
    if rest or problems:
        yield block(rest)


def _read_parquet(shard: Shard, fields: Fields, advance: Advance | None) -> Iterator[Block]:
    import pyarrow

    with open_parquet(shard.path) as file:
        schema = file.schema_arrow
        check_columns(shard, schema, fields)
        num_rows, size = file.metadata.num_rows, source_bytes(shard.path)
        unpacked = sum(file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups))
        at_once = max(1, min(_MAX_ROWS, BLOCK_BYTES * num_rows // max(1, unpacked)))
        first = 1
        for batch in file.iter_batches(at_once, use_threads=False):
            texts = batch.column(schema.get_field_index(fields.text))
            if pyarrow.types.is_dictionary(texts.type):
                texts = texts.dictionary_decode()
            yield Block(Texts(first, texts), batch, [])
            if advance is not None:
                advance(size * (first - 1 + batch.num_rows) // num_rows - size * (first - 1) // num_rows)
            first += batch.num_rows


def check_columns(shard: Shard, schema: Any, fields: Fields) -> None:
    """Refuse a Parquet file without one column of texts, or with one of those that are to be added."""
    check_column(shard.path, schema, fields.text, nulls=True)
    if fields.id is not None:
        check_once(shard.path, schema.names, fields.id, "id")
    for name in fields.added:
        if name in schema.names:
            place = named(shard.path)
            raise UserError(f"{place} already has a column '{name}': give other names with {argument('names')}.")
