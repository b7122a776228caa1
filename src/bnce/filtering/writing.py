"""The outputs of a shard: records as they were with their scores, or names and scores alone, each part in its file."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError, argument
from bnce.filtering.cutting import CutBlock, write_json
from bnce.filtering.json_columns import InexactError, check_integers, without_times
from bnce.filtering.shards import JSON, PARQUET, Block, Shard
from bnce.text.records import open_parquet, parquet_compression, whole_characters
from bnce.text.sources import file_ending, named
from bnce.text.unpack import open_packed

DIGITS = 6  # of a perplexity: more of them differ between machines
GROUP_BYTES = 2**25
GROUP_ROWS = 2**17


class Scores(NamedTuple):
    """What documents get."""

    perplexity: NDArray[np.float64]  # NaN for a document without words
    num_words: NDArray[np.int64]
    unknown_rate: NDArray[np.float64]  # NaN, too


@dataclass(frozen=True)
class Form:
    """How records come out: their format, the names of the scores, and whether there is anything else."""

    to: str | None = None  # None: as they come in
    names: tuple[str, str, str] = ("perplexity", "num_words", "unknown_rate")
    scores_only: bool = False
    id: str | None = None

    def format_of(self, shard: Shard) -> str:
        """Say what a shard comes out as."""
        return self.to or shard.form

    def name_of(self, shard: Shard) -> str:
        """Name the output of a shard."""
        if self.format_of(shard) == shard.form:
            return shard.name
        return f"{shard.stem}.{'parquet' if self.to == PARQUET else 'jsonl.zst'}"

    def check(self, shards: Sequence[Shard]) -> None:
        """Refuse what cannot be written."""
        if self.scores_only and (self.id or "record") in self.names:
            raise UserError(
                f"A score and the id of a document would both be called '{self.id or 'record'}': give the scores "
                f"other names with {argument('names')}."
            )
        places: dict[str, Shard] = {}
        for shard in shards:
            other = places.setdefault(self.name_of(shard), shard)
            if other is not shard:
                raise UserError(
                    f"'{other.path}' and '{shard.path}' would both be written to '{self.name_of(shard)}': filter them "
                    "into different directories."
                )
            if self.to == JSON and shard.form == PARQUET and not self.scores_only:
                raise UserError(
                    f"'{shard.path}' is Parquet, whose columns JSON cannot keep as they are: leave out "
                    f"{argument('to')}, or give {argument('scores_only', True)}."
                )


def write_number(value: float) -> str:
    """Write a score as JSON does; one that is not there, or not finite, is null."""
    return f"{value:.{DIGITS}g}" if math.isfinite(value) else "null"


def rounded(value_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round scores to the digits that are written."""
    return np.array([float(f"{value:.{DIGITS}g}") for value in value_N.tolist()], dtype=np.float64)


class Output(contextlib.ExitStack):
    """Writes the blocks of a shard, in their order, to the files of its parts; a part without a path is dropped."""

    def __init__(self, shard: Shard, form: Form, paths: Sequence[Path | None]) -> None:
        super().__init__()
        self._shard, self._form = shard, form
        self._writes_parquet = form.format_of(shard) == PARQUET
        self._schema: Any = None
        self._parts: list[Any] = [None if path is None else self.enter_context(self._open(path)) for path in paths]
        if self._writes_parquet and shard.form == PARQUET:
            # A file without rows has columns, too.
            with open_parquet(shard.path) as file:
                empty = file.schema_arrow.empty_table()
            if form.scores_only:
                empty = empty.select([form.id]) if form.id else _table("record", np.zeros(0, dtype=np.int64))
            for part in self._parts:
                if part is not None:
                    part.write(self._with_scores(empty, Scores(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0))))

    def _open(self, path: Path) -> Any:
        if self._writes_parquet:
            if self._shard.form != PARQUET:
                return _ParquetFile(path, "zstd")
            with open_parquet(self._shard.path) as file:
                return _ParquetFile(path, parquet_compression(file))
        return open_packed(path, file_ending(self._form.name_of(self._shard)))

    def write(self, block: Block, cut: CutBlock, scores: Scores, part_N: NDArray[np.int64]) -> None:
        """Write the documents of a block, each to its part."""
        if not len(part_N):
            return
        records: Any = self._arrow(block, cut, scores) if self._writes_parquet else self._lines(block, cut, scores)
        for part, file in enumerate(self._parts):
            chosen = np.flatnonzero(part_N == part)
            if file is None or not len(chosen):
                continue
            if self._writes_parquet:
                file.write(records.take(chosen) if len(chosen) < len(part_N) else records)
            else:
                file.write(b"".join([records[place] for place in chosen.tolist()]))

    def _lines(self, block: Block, cut: CutBlock, scores: Scores) -> list[bytes]:
        p, w, u = (f'"{name}": '.encode() for name in map(_escaped, self._form.names))
        added = [
            b"%b%b, %b%d, %b%b}" % (p, write_number(ppl).encode(), w, words, u, write_number(rate).encode())
            for ppl, words, rate in zip(*(part.tolist() for part in scores), strict=True)
        ]
        if self._form.scores_only:
            key = _escaped(self._form.id or "record")
            return [
                f'{{"{key}": {name}, '.encode() + tail + b"\n"
                for name, tail in zip(self._names(block, cut), added, strict=True)
            ]
        lines = block.kept.split(b"\n")
        made = []
        for row, tail in zip(cut.row_N.tolist(), added, strict=True):
            line = lines[row]
            end = line.rindex(b"}")
            made.append(line[:end] + b", " + tail + line[end + 1 :] + b"\n")
        return made

    def _names(self, block: Block, cut: CutBlock) -> list[str]:
        """Give what names the documents, as JSON."""
        if self._form.id is None:
            return [str(number) for number in _numbers(block, cut).tolist()]
        if cut.names is not None:
            return cut.names
        return [write_json(name) for name in block.kept.column(self._form.id).take(cut.row_N).to_pylist()]

    def _name_table(self, block: Block, cut: CutBlock) -> Any:
        """Give what names the documents, as a table: columns stay as they are, and JSON becomes texts."""
        import pyarrow

        if self._form.id is None:
            return _table("record", _numbers(block, cut))
        if cut.names is None:
            return pyarrow.Table.from_batches([block.kept]).select([self._form.id]).take(cut.row_N)
        names = [_undecorated(name) for name in cut.names]
        return _table(self._form.id, pyarrow.array(names, pyarrow.string()))

    def _arrow(self, block: Block, cut: CutBlock, scores: Scores) -> Any:
        import pyarrow

        if self._form.scores_only:
            table = self._name_table(block, cut)
        elif self._shard.form == PARQUET:
            table = pyarrow.Table.from_batches([block.kept])
            if len(cut.row_N) < len(table):
                table = table.take(cut.row_N)
        else:
            table = self._parse(block, cut)
        return self._with_scores(table, scores)

    def _with_scores(self, table: Any, scores: Scores) -> Any:
        import pyarrow

        for name, part in zip(self._form.names, scores, strict=True):
            is_null = ~np.isfinite(part) if part.dtype.kind == "f" else None
            table = table.append_column(name, pyarrow.array(part, mask=is_null))
        return table

    def _parse(self, block: Block, cut: CutBlock) -> Any:
        """Make columns of JSON: those of the first block, and their types, are those of the file."""
        import pyarrow
        import pyarrow.json

        lines = block.kept.split(b"\n")
        text = b"\n".join([lines[row] for row in cut.row_N.tolist()]).removeprefix(b"\xef\xbb\xbf")
        read = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            if self._schema is None:
                self._schema = without_times(pyarrow.json.read_json(pyarrow.BufferReader(text), read).schema)
            check_integers(text, self._schema)
            parse = pyarrow.json.ParseOptions(self._schema, unexpected_field_behavior="error")
            return pyarrow.json.read_json(pyarrow.BufferReader(text), read, parse)
        except (pyarrow.ArrowException, InexactError) as error:
            raise UserError(
                f"{named(self._shard.path)} has records from line {block.texts.first} on that do not fit the columns "
                f"of its first records ({str(error).splitlines()[0]:.100}): write JSON lines ({argument('to', JSON)})."
            ) from error


class _ParquetFile(contextlib.AbstractContextManager["_ParquetFile"]):
    """Gathers rows into groups of a usual size: a group per block would be many small ones."""

    def __init__(self, path: Path, compression: str) -> None:
        self._path, self._compression = path, compression
        self._waiting: list[Any] = []
        self._writer: Any = None

    def write(self, records: Any) -> None:
        self._waiting.append(records)
        if sum(one.nbytes for one in self._waiting) > GROUP_BYTES or sum(map(len, self._waiting)) > GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow
        import pyarrow.parquet

        if self._waiting:
            table = pyarrow.concat_tables(self._waiting)
            if self._writer is None:
                self._writer = pyarrow.parquet.ParquetWriter(
                    str(self._path), table.schema, compression=self._compression
                )
            self._writer.write_table(table, row_group_size=max(1, len(table)))
            self._waiting = []

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        import pyarrow
        import pyarrow.parquet

        if kind is None:
            self._flush()
            if self._writer is None:  # no records at all
                pyarrow.parquet.write_table(pyarrow.table({}), str(self._path))
        if self._writer is not None:
            self._writer.close()


def _numbers(block: Block, cut: CutBlock) -> NDArray[np.int64]:
    return cut.row_N + block.texts.first


def _table(name: str, values: Any) -> Any:
    import pyarrow

    return pyarrow.table({name: pyarrow.array(values)})


def _undecorated(name: str) -> str | None:
    """Give a name as a text: a string of JSON itself, without quotes, null as nothing, and anything else as JSON."""
    if name == "null":
        return None
    return whole_characters(json.loads(name)) if name.startswith('"') else name


def _escaped(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]
