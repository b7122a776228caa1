"""Records with a text in one of their fields: JSON lines, packed or not, and Parquet. A record is a document."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from bnce.errors import UserError, argument
from bnce.text.sources import Advance, Document, check_errors, check_source, file_ending, named, no_words, read_lines
from bnce.text.unpack import PACKED

DEFAULT_FIELD = "text"

JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
PARQUET_ENDINGS = (".parquet", ".pq")
_BATCH_RECORDS = 1024


def holds_records(path: str) -> bool:
    """Tell by its name whether a file holds records, not lines of text."""
    return _kind(path) in JSON_ENDINGS + PARQUET_ENDINGS


def read_records(
    path: str, field: str = DEFAULT_FIELD, errors: str = "strict", advance: Advance | None = None
) -> Iterator[Document]:
    """Yield the lines of every record's text; a record whose text is null or blank is none."""
    check_errors(errors)
    check_source(path)
    is_parquet = _kind(path) in PARQUET_ENDINGS
    texts = _read_parquet(path, field, advance) if is_parquet else _read_json(path, field, errors, advance)
    any_words = False
    for place, text in texts:
        if not text or text.isspace():
            continue
        any_words = True
        whole = whole_characters(text)
        if errors == "strict" and whole != text:
            raise UserError(
                f"{place} has a NUL or half of a character: fix it, or give {argument('errors', 'replace')} to put "
                "U+FFFD in its place."
            )
        yield whole.replace("\r\n", "\n").split("\n")
    if not any_words:
        raise no_words(named(path))


def read_passages(
    path: str, field: str = DEFAULT_FIELD, blank_ends: bool = False, advance: Advance | None = None
) -> Iterator[Iterable[str]]:
    """Stream the lines of one source as they stand, blank ones among them, by document.

    A record is a document. A text of lines is one document, or with `blank_ends` blank lines end one and are no part
    of any.
    """
    if holds_records(path):
        yield from read_records(path, field, advance=advance)
        return
    lines = read_lines(path, advance=advance)
    for is_blank, document in itertools.groupby(lines, key=lambda line: blank_ends and not line.strip()):
        if not is_blank:
            yield document


def _kind(path: str) -> str:
    ending = file_ending(path)
    return file_ending(os.path.splitext(path)[0]) if ending in PACKED else ending


def _read_json(path: str, field: str, errors: str, advance: Advance | None) -> Iterator[tuple[str, str | None]]:
    for number, line in enumerate(read_lines(path, errors, advance), start=1):
        if not line or line.isspace():
            continue
        place = f"{named(path)}, line {number}"
        try:
            text = find_text(json.loads(line), field)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place} {explain(error)}") from error
        yield place, text


def find_text(record: Any, field: str) -> str:
    """Find the text of a record, empty where it is null; an error says what follows the record's place in a message."""
    if not isinstance(record, dict):
        raise UserError(f"is {_json_type(record)}, not a JSON object: give one record per line.")
    check_field(record, field, "field")
    text = record[field]
    if not isinstance(text, str | None):
        raise UserError(
            f"has {_json_type(text)} in its field '{field}': it must be a string; name another with "
            f"{argument('field')}."
        )
    return text or ""


def check_field(fields: Collection[str], field: str, option: str, what: str = "field", place: str = "") -> None:
    """Refuse a record, or a file with columns, that lacks what an option names."""
    if field not in fields:
        has = ", ".join(f"'{name}'" for name in list(fields)[:8]) or "none"
        raise UserError(
            f"{place}has no {what} '{field:.60}': it has {has:.200}; name a {what} with {argument(option)}."
        )


def explain(error: Exception) -> str:
    """Say what keeps a record from being read, to follow its place in a message."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"has invalid UTF-8 (byte 0x{error.object[error.start]:02x}): convert the file to UTF-8."
    if isinstance(error, RecursionError):
        return "is nested too deeply: give one record per line."
    return f"is not JSON ({error!s:.100}): give one record per line."


def _read_parquet(path: str, field: str, advance: Advance | None) -> Iterator[tuple[str, str | None]]:
    with open_parquet(path) as file:
        check_column(path, file.schema_arrow, field)
        num_records = 0
        share = os.path.getsize(path) / max(1, file.metadata.num_rows)
        for batch in file.iter_batches(_BATCH_RECORDS, columns=[field], use_threads=False):
            for text in batch.column(0).to_pylist():
                num_records += 1
                yield f"{named(path)}, record {num_records}", text
            if advance is not None:
                before = num_records - batch.num_rows
                advance(round(share * num_records) - round(share * before))


@contextlib.contextmanager
def open_parquet(path: str) -> Iterator[Any]:
    """Open a Parquet file, and say in one sentence what is wrong with it."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise UserError(f"{named(path)} is damaged or not a Parquet file ({reason:.200}): fetch it again.") from error


def parquet_compression(file: Any) -> str:
    """Tell how an open Parquet file is compressed, which a new one like it is, too."""
    found = file.metadata
    name = found.row_group(0).column(0).compression if found.num_row_groups and found.num_columns else "SNAPPY"
    return "none" if name == "UNCOMPRESSED" else str(name).lower()


def check_once(path: str, names: Sequence[str], column: str, option: str) -> None:
    """Refuse a file that does not have exactly one column of a name."""
    check_field(names, column, option, "column", f"{named(path)} ")
    if (number := list(names).count(column)) > 1:
        raise UserError(
            f"{named(path)} has {number} columns with the name '{column:.60}': rename all but one of them, or name "
            f"another column with {argument(option)}."
        )


def check_column(path: str, schema: Any, field: str, *, nulls: bool = False) -> None:
    """Refuse a Parquet file without a column of texts; of nulls alone, where that will do."""
    import pyarrow

    check_once(path, schema.names, field, "field")
    kind = schema.field(field).type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
    if not is_text and not (nulls and pyarrow.types.is_null(kind)):
        raise UserError(
            f"{named(path)} has {kind} in its column '{field}': it must be text; name another with {argument('field')}."
        )


def whole_characters(text: str) -> str:
    """Put U+FFFD for what only escapes can spell: NULs, and halves of characters, which no file of text holds."""
    if "\0" not in text and text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
