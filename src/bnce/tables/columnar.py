"""Parquet and Arrow files, a batch at a time: the columns that were there stay as they are, and new ones follow."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bnce.errors import UserError
from bnce.files import atomic_file
from bnce.tables.columns import Block, Columns, Row, find_column, truth
from bnce.text.records import parquet_compression
from bnce.text.sources import check_source, named

BATCH_ROWS = 2**13
_ARROW_MAGIC = b"ARROW1"


class ColumnarFile:
    """An open Parquet or Arrow file; `form` is its format, and that of what is written: Arrow has files and streams."""

    def __init__(self, path: str, form: str) -> None:
        check_source(path)
        self.name, self.form = named(path), form
        if form == "arrow":
            with open(path, "rb") as file:
                self.form = form if file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC else "arrow stream"
        with self._told():
            self._file = _open(path, self.form)
        self.schema = self._file.schema_arrow if form == "parquet" else self._file.schema
        self.names: list[str] = self.schema.names

    def batches(self) -> Iterator[Any]:
        """Read the batches of the file."""
        with self._told():
            if self.form == "parquet":
                yield from self._file.iter_batches(BATCH_ROWS, use_threads=False)
            elif self.form == "arrow":
                yield from map(self._file.get_batch, range(self._file.num_record_batches))
            else:
                yield from self._file

    @property
    def compression(self) -> str:
        """How a Parquet file is compressed, which the new one is, too."""
        return parquet_compression(self._file) if self.form == "parquet" else "none"

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        import pyarrow

        try:
            yield
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            kind = "a Parquet" if self.form == "parquet" else "an Arrow"
            raise UserError(f"{self.name} is damaged or not {kind} file ({reason}): write it again.") from error


def rows_of(table: Any, name: str, columns: Columns) -> Iterator[Row]:
    """Give the rows of an Arrow table or batch; an empty word is one of no letters."""

    def column(of: str) -> Any:
        return table.column(find_column(table.schema.names, of, name))

    words = _words(column(columns.word), columns.word, name)
    texts = [_keys(column(one), one, name) for one in columns.text]
    keys = None if columns.sentence is None else _keys(column(columns.sentence), columns.sentence, name)
    truths = None if columns.glued is None else column(columns.glued).to_pylist()
    for place, word in enumerate(words):
        key = None if keys is None else keys[place]
        is_glued = truths is not None and truth(truths[place], place + 1, name)
        yield Row(word or "", tuple([values[place] for values in texts]), key, is_glued)


def arrow_columns(block: Block) -> list[Any]:
    """Turn measured columns into Arrow's, in which NaN is null."""
    import pyarrow

    return [pyarrow.array(one, mask=np.isnan(one)) if one.dtype.kind == "f" else pyarrow.array(one) for one in block]


def write_columnar(
    out: Path,
    form: str,
    schema: Any,
    columns: Mapping[str, type],
    parts: Iterable[tuple[Any, Block]],
    compression: str = "snappy",
) -> None:
    """Write batches with their new columns."""
    import pyarrow

    kinds = {float: pyarrow.float64(), int: pyarrow.int64(), bool: pyarrow.bool_()}
    for name, kind in columns.items():
        schema = schema.append(pyarrow.field(name, kinds[kind]))
    with atomic_file(out) as partial, _writer(str(partial), form, schema, compression) as writer:
        for batch, block in parts:
            writer.write_batch(pyarrow.RecordBatch.from_arrays([*batch.columns, *arrow_columns(block)], schema=schema))


def in_batches(batches: deque[Any], blocks: Iterable[Block]) -> Iterator[tuple[Any, Block]]:
    """Give every batch that waits the rows that were measured for it; blocks end elsewhere than batches."""
    left: Block | None = None
    for block in blocks:
        left = block if left is None else [np.concatenate(pair) for pair in zip(left, block, strict=True)]
        while batches and batches[0].num_rows <= len(left[0]):
            num_rows = batches[0].num_rows
            yield batches.popleft(), [column[:num_rows] for column in left]
            left = [column[num_rows:] for column in left]


def _open(path: str, form: str) -> Any:
    import pyarrow
    import pyarrow.parquet

    if form == "parquet":
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False)
    source = pyarrow.memory_map(path)
    return pyarrow.ipc.open_file(source) if form == "arrow" else pyarrow.ipc.open_stream(source)


def _writer(path: str, form: str, schema: Any, compression: str) -> Any:
    import pyarrow
    import pyarrow.parquet

    if form == "parquet":
        return pyarrow.parquet.ParquetWriter(path, schema, compression=compression)
    return (pyarrow.ipc.new_file if form == "arrow" else pyarrow.ipc.new_stream)(path, schema)


def _words(column: Any, name: str, table: str) -> list[str | None]:
    import pyarrow

    kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    is_text = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
    if not any(check(kind) for check in (*is_text, pyarrow.types.is_null)):
        raise UserError(f"{table} has {kind} in its column '{name}': it must be text; name the column with the words.")
    found: list[str | None] = column.to_pylist()
    return found


def _keys(column: Any, name: str, table: str) -> list[Any]:
    import pyarrow

    if pyarrow.types.is_nested(column.type):
        raise UserError(f"{table} has {column.type} in its column '{name}': name a column of numbers or of text.")
    # NaN is not equal to itself: of rows without a value each would be a text of its own.
    return [None if value != value else value for value in column.to_pylist()]
