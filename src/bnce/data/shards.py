"""Shards: files of documents, as JSON lines, plain or packed, or Parquet. Blocks come in, the same with scores go out.

A block keeps its records as they are, byte for byte or column for column, until scores are written behind them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.data.document_scorer import DIGITS, NAMES, Scores
from bnce.errors import UserError
from bnce.text.records import (
    JSON_ENDINGS,
    PARQUET_ENDINGS,
    check_column,
    explain,
    find_text,
    open_parquet,
    parquet_compression,
)
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
from bnce.text.unpack import PACKERS, open_packed

# Fewer documents side by side take longer: at the end of a block only the longest are left.
BLOCK_DOCUMENTS, BLOCK_BYTES = 2**12, 2**23
GROUP_ROWS, GROUP_BYTES = 2**17, 2**25  # of a row group of Parquet, which readers take whole
NUMBER = "record"  # where scores are alone: the number of a record in its shard, from 1
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Shard:
    """A file of records; `name` is its path below the directory that all shards of a command share."""

    path: str
    name: str

    @property
    def is_parquet(self) -> bool:
        """Whether it has columns."""
        return file_ending(self.path) in PARQUET_ENDINGS

    @property
    def stamp(self) -> list[int]:
        """What tells a file that was changed: its size, and when it was written."""
        found = os.stat(self.path)
        return [found.st_size, found.st_mtime_ns]


@dataclass
class Block:
    """Some records of a shard."""

    first: int  # number of the first one, from 1
    records: Any  # lines without their ends, or rows with all their columns
    texts: Any  # the lines, or one column
    damage: str | None = None  # what keeps the rest of the shard from being read


def find_shards(sources: Sequence[str]) -> list[Shard]:
    """List the shards that paths, directories and patterns name, each once and in their order."""
    paths = list(dict.fromkeys(map(os.path.abspath, expand_sources([one for one in sources if one != STANDARD_INPUT]))))
    if not paths or STANDARD_INPUT in sources:
        raise UserError("There are no shards to filter: give files that end in .jsonl or .parquet, not standard input.")
    for path in paths:
        inner = os.path.splitext(path)[0] if file_ending(path) in PACKERS else path
        if file_ending(inner) not in JSON_ENDINGS and file_ending(path) not in PARQUET_ENDINGS:
            raise UserError(
                f"'{path}' does not have the name of a shard: give files that end in {', '.join(JSON_ENDINGS)} (also "
                f"with {', '.join(PACKERS)}) or {', '.join(PARQUET_ENDINGS)}."
            )
        check_source(path)
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [Shard(path, os.path.relpath(path, root)) for path in paths]


def read_blocks(shard: Shard, field: str, added: Sequence[str], advance: Advance | None = None) -> Iterator[Block]:
    """Read a shard in blocks of bounded size, at least one; the last one says what is damaged behind it."""
    blocks = _read_rows(shard, field, added, advance) if shard.is_parquet else _read_lines(shard, advance)
    first = 1
    try:
        for block in blocks:
            yield block
            first = block.first + len(block.records)
    except UserError as error:
        yield Block(first, [], [], str(error))


def _read_lines(shard: Shard, advance: Advance | None) -> Iterator[Block]:
    lines: list[bytes] = []
    first, num_bytes, damage = 1, 0, None
    try:
        for line in _lines(shard, advance):
            lines.append(line)
            num_bytes += len(line)
            if len(lines) == BLOCK_DOCUMENTS or num_bytes > BLOCK_BYTES:
                yield Block(first, lines, lines)
                first, lines, num_bytes = first + len(lines), [], 0
    except UserError as error:  # what was read before it is good
        damage = error
    if lines or (first == 1 and damage is None):
        yield Block(first, lines, lines)
    if damage is not None:
        raise damage


def _lines(shard: Shard, advance: Advance | None) -> Iterator[bytes]:
    """Give lines without their ends; of one that is too long only so much that this can be seen."""
    rest = b""
    for chunk in read_chunks(shard.path, advance):
        first, *others = chunk.split(b"\n")
        rest += first
        for line in others:
            yield rest
            rest = line
        rest = rest[: MAX_LINE_BYTES + 1]
    if rest:
        yield rest


def _read_rows(shard: Shard, field: str, added: Sequence[str], advance: Advance | None) -> Iterator[Block]:
    with open_parquet(shard.path) as file:
        schema, found = file.schema_arrow, file.metadata
        check_column(shard.path, schema, field, nulls=True)
        for name in added:
            if name in schema.names:
                raise UserError(f"{named(shard.path)} already has a column '{name}': rename it, or give --scores-only.")
        size, num_rows, first = source_bytes(shard.path), found.num_rows, 1
        unpacked = sum(found.row_group(number).total_byte_size for number in range(found.num_row_groups))
        at_once = max(1, min(BLOCK_DOCUMENTS, BLOCK_BYTES * num_rows // max(1, unpacked)))
        if not num_rows:
            yield Block(1, [], [])
        for batch in file.iter_batches(at_once, use_threads=False):
            yield Block(first, batch, batch.column(schema.get_field_index(field)))
            if advance is not None:
                advance(size * (first - 1 + len(batch)) // num_rows - size * (first - 1) // num_rows)
            first += len(batch)


def read_texts(block: Block, field: str, added: Sequence[str]) -> tuple[list[int], list[str], list[str]]:
    """Give the documents of a block: which of its records they are, their texts; and what is wrong with others."""
    rows, found, problems = [], [], []
    for row, record in enumerate(block.texts):
        try:
            text = _find_text(record, block.first + row == 1, field, added)
        except (ValueError, RecursionError) as error:
            problems.append(f"{block.first + row} {explain(error)}")
            continue
        if text is not None:
            rows.append(row)
            found.append(text)
    return rows, found, problems


def _find_text(line: Any, is_first: bool, field: str, added: Sequence[str]) -> str | None:
    """Find the text of a line of JSON, or in a cell; a blank line is no document."""
    if not isinstance(line, bytes):
        return line.as_py() or ""
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"is longer than {MAX_LINE_BYTES // 2**20} MiB: give one record per line.")
    line = line.removeprefix(_BYTE_ORDER_MARK) if is_first else line
    if not line or line.isspace():
        return None
    record = json.loads(line.decode())
    text = find_text(record, field)
    for name in added:
        if name in record:
            raise UserError(f"already has a field '{name}': rename it, or give --scores-only.")
    return text


class Output(contextlib.ExitStack):
    """The file that documents of a shard are written to, in its format and packed as it is."""

    def __init__(self, shard: Shard, path: Path, scores_only: bool) -> None:
        super().__init__()
        self._waiting: list[Any] = []
        if not shard.is_parquet:
            self._file: Any = self.enter_context(open_packed(path, file_ending(shard.name)))
            return
        import pyarrow
        import pyarrow.parquet

        with open_parquet(shard.path) as file:
            schema, compression = file.schema_arrow, parquet_compression(file)
        if scores_only:
            schema = pyarrow.schema([(NUMBER, pyarrow.int64())])
        for name, kind in zip(NAMES, (pyarrow.float64(), pyarrow.int64(), pyarrow.float64()), strict=True):
            schema = schema.append(pyarrow.field(name, kind))
        self._file = self.enter_context(pyarrow.parquet.ParquetWriter(str(path), schema, compression=compression))
        self.callback(self._flush)

    def write(self, records: Any, chosen: NDArray[np.int64]) -> None:
        """Write some records of a block, which have their scores."""
        if isinstance(records, list):
            self._file.write(b"".join([records[place] for place in chosen.tolist()]))
            return
        self._waiting.append(records.take(chosen))
        if sum(map(len, self._waiting)) > GROUP_ROWS or sum(one.nbytes for one in self._waiting) > GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        if self._waiting:
            self._file.write_table(pyarrow.concat_tables(self._waiting), row_group_size=GROUP_ROWS)
            self._waiting = []


def with_scores(block: Block, rows: Sequence[int], scores: Scores, scores_only: bool) -> Any:
    """Put scores behind the documents of a block, or behind their numbers: lines, or a table."""
    numbers = block.first + np.array(rows, dtype=np.int64)
    if not isinstance(block.records, list):
        import pyarrow

        table = pyarrow.Table.from_batches([block.records]).take(numbers - block.first)
        table = pyarrow.table({NUMBER: numbers}) if scores_only else table
        for name, part in scores.columns.items():
            table = table.append_column(name, pyarrow.array(part, mask=~np.isfinite(part)))
        return table
    names = [json.dumps(name) for name in NAMES]
    lines = []
    for row, number, *values in zip(
        rows, numbers.tolist(), *(part.tolist() for part in scores.columns.values()), strict=True
    ):
        # In every form the numbers are the same: as they are rounded, and null where there is none.
        shown = [f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value) for value in values]
        told = (value if math.isfinite(float(value)) else "null" for value in shown)
        added = ", ".join(f"{name}: {value}" for name, value in zip(names, told, strict=True)).encode()
        line = b'{"%s": %d}' % (NUMBER.encode(), number) if scores_only else block.records[row]
        end = line.rindex(b"}")
        lines.append(line[:end] + b", " + added + line[end:] + b"\n")
    return lines
