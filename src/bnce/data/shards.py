"""Shards: files of documents, as JSON lines, plain or packed, or Parquet. Blocks come in, the same with scores go out.

A block keeps its records as they are, byte for byte or column for column, until scores are written behind them.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.data.document_scorer import NAMES, Scores
from bnce.errors import UserError, argument
from bnce.text import records, sources
from bnce.text.records import JSON_ENDINGS, PARQUET_ENDINGS, open_parquet
from bnce.text.sources import MAX_LINE_BYTES, Advance, file_ending, named
from bnce.text.unpack import PACKERS, open_packed

# Fewer documents side by side take longer: at the end of a block only the longest are left.
BLOCK_DOCUMENTS, BLOCK_BYTES = 2**12, 2**23
GROUP_BYTES = 2**25  # of a row group of Parquet, which readers take whole
NUMBER = "record"  # where scores are alone: the number of a record in its shard, from 1

Write = Callable[[Any, NDArray[np.int64]], object]  # writes some of the records that a block has


@dataclass(frozen=True)
class Shard:
    """A file of records, below the directory that all shards of a command share."""

    path: str
    root: str

    @property
    def name(self) -> str:
        """Its path below the root, under which its outputs lie, too."""
        return os.path.relpath(self.path, self.root)

    @property
    def is_parquet(self) -> bool:
        """Whether it has columns."""
        return file_ending(self.path) in PARQUET_ENDINGS


@dataclass(frozen=True)
class Block:
    """Some records of a shard; those in `rows` are documents, with a text each."""

    first: int = 1  # number of the first one, from 1
    records: Any = ()  # lines without their ends, or rows with all their columns
    rows: Sequence[int] = ()
    texts: Sequence[str] = ()
    problems: Sequence[str] = ()  # what cannot be read, each in a sentence


def find_shards(names: Sequence[str]) -> list[Shard]:
    """List the shards that paths, directories and patterns name, each once and in their order."""
    paths = list(dict.fromkeys(map(os.path.abspath, sources.expand_sources(names))))
    for path in paths:
        inner = os.path.splitext(path)[0] if file_ending(path) in PACKERS else path
        if file_ending(inner) not in JSON_ENDINGS and file_ending(path) not in PARQUET_ENDINGS:
            raise UserError(
                f"'{path}' does not have the name of a shard: give files that end in {', '.join(JSON_ENDINGS)} (also "
                f"with {', '.join(PACKERS)}) or {', '.join(PARQUET_ENDINGS)}."
            )
        sources.check_source(path)
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [Shard(path, root) for path in paths]


def read_blocks(shard: Shard, field: str, added: Sequence[str], advance: Advance | None = None) -> Iterator[Block]:
    """Read a shard in blocks of bounded size, at least one; what is damaged is a problem of the last one.

    A record with one of the fields that are to be `added` is a problem, too.
    """
    first, kind = 1, "row" if shard.is_parquet else "line"
    read = _read_rows(shard, field, added, advance) if shard.is_parquet else _read_lines(shard, advance)
    try:
        for part, cells in read:
            rows, texts, problems = [], [], []
            for row, cell in enumerate(cells):
                try:
                    text = _find_text(cell, first + row == 1, field, added)
                except (ValueError, RecursionError) as error:
                    problems.append(f"{named(shard.path)}, {kind} {first + row} {records.explain(error)}")
                    continue
                if text is not None:
                    rows.append(row)
                    texts.append(text)
            yield Block(first, part, rows, texts, problems)
            first += len(cells)
        if first == 1:
            yield Block()
    except UserError as error:
        yield Block(problems=[str(error)])


def _find_text(cell: Any, is_first: bool, field: str, added: Sequence[str]) -> str | None:
    """Find the text of a line of JSON, or in a cell; a blank line is no document."""
    if not isinstance(cell, bytes):
        return cell.as_py() or ""
    if len(cell) > MAX_LINE_BYTES:
        raise UserError(f"is longer than {MAX_LINE_BYTES // 2**20} MiB: give one record per line.")
    line = cell.removeprefix(codecs.BOM_UTF8) if is_first else cell
    if not line or line.isspace():
        return None
    record = json.loads(line.decode())
    text = records.find_text(record, field)
    for name in added:
        if name in record:
            raise UserError(f"already has a field '{name}': rename it, or give {argument('scores_only', True)}.")
    return text


def _read_lines(shard: Shard, advance: Advance | None) -> Iterator[tuple[list[bytes], list[bytes]]]:
    damage: list[UserError] = []

    def good_lines() -> Iterator[bytes]:
        try:
            yield from _split(sources.read_chunks(shard.path, advance))
        except UserError as error:  # what was read before it is good
            damage.append(error)

    for lines in sources.batches(
        good_lines(), lambda line: max(len(line), BLOCK_BYTES // BLOCK_DOCUMENTS), BLOCK_BYTES
    ):
        yield lines, lines
    if damage:
        raise damage[0]


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Give lines without their ends; of one that is too long only so much that this can be seen."""
    rest = b""
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest += first
        for line in others:
            yield rest
            rest = line
        rest = rest[: MAX_LINE_BYTES + 1]
    if rest:
        yield rest


def _read_rows(shard: Shard, field: str, added: Sequence[str], advance: Advance | None) -> Iterator[tuple[Any, Any]]:
    with open_parquet(shard.path) as file:
        schema, found = file.schema_arrow, file.metadata
        records.check_column(shard.path, schema, field, nulls=True)
        for name in added:
            if name in schema.names:
                hint = f"rename it, or give {argument('scores_only', True)}"
                raise UserError(f"{named(shard.path)} already has a column '{name}': {hint}.")
        size, num_rows, end = sources.source_bytes(shard.path), found.num_rows, 0
        unpacked = sum(found.row_group(number).total_byte_size for number in range(found.num_row_groups))
        at_once = max(1, min(BLOCK_DOCUMENTS, BLOCK_BYTES * num_rows // max(1, unpacked)))
        for batch in file.iter_batches(at_once, use_threads=False):
            yield batch, batch.column(schema.get_field_index(field))
            begin, end = end, end + len(batch)
            if advance is not None:
                advance(size * end // num_rows - size * begin // num_rows)


def with_scores(block: Block, scores: Scores, scores_only: bool) -> Any:
    """Put scores behind the documents of a block, or behind their numbers: lines, or a table."""
    numbers = [block.first + row for row in block.rows]
    if not isinstance(block.records, list):
        import pyarrow

        table = pyarrow.table({NUMBER: numbers})
        if not scores_only:
            table = pyarrow.Table.from_batches([block.records]).take(block.rows)
        for name, part in scores.columns.items():
            table = table.append_column(name, pyarrow.array(part, mask=np.isnan(part)))
        return table
    lines = []
    for row, number, *values in zip(block.rows, numbers, *scores.lists().values(), strict=True):
        added = json.dumps(dict(zip(NAMES, values, strict=True)))[1:-1].encode()
        line = json.dumps({NUMBER: number}).encode() if scores_only else block.records[row]
        end = line.rindex(b"}")
        lines.append(line[:end] + b", " + added + line[end:] + b"\n")
    return lines


@contextlib.contextmanager
def open_output(shard: Shard, path: Path, scores_only: bool) -> Iterator[Write]:
    """Open a file in the format of a shard, packed as it is; give what writes the chosen ones of some records to it."""
    if not shard.is_parquet:
        with open_packed(path, file_ending(shard.name)) as file:
            yield lambda lines, chosen: file.write(b"".join([lines[place] for place in chosen]))
        return
    import pyarrow
    import pyarrow.parquet

    with open_parquet(shard.path) as source:
        schema, compression = source.schema_arrow, records.parquet_compression(source)
    if scores_only:
        schema = pyarrow.schema([(NUMBER, pyarrow.int64())])
    for name, kind in zip(NAMES, (pyarrow.float64(), pyarrow.int64(), pyarrow.float64()), strict=True):
        schema = schema.append(pyarrow.field(name, kind))
    waiting: list[Any] = []
    with pyarrow.parquet.ParquetWriter(str(path), schema, compression=compression) as writer:

        def write(table: Any, chosen: NDArray[np.int64]) -> None:
            waiting.append(table.take(chosen))
            if sum(one.nbytes for one in waiting) > GROUP_BYTES:
                writer.write_table(pyarrow.concat_tables(waiting))
                waiting.clear()

        yield write
        if waiting:
            writer.write_table(pyarrow.concat_tables(waiting))
