"""Records with a text in one of their fields: JSON lines, packed or not, and Parquet. A record is a document."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from bnce.errors import UserError, argument
from bnce.text.sources import Advance, Document, check_errors, check_source, file_ending, named, no_words, read_lines
from bnce.text.unpack import PACKED

DEFAULT_FIELD = "text"

_JSON_LINES = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")
_BATCH_RECORDS = 1024


def holds_records(path: str) -> bool:
    """Tell by its name whether a file holds records, not lines of text."""
    return _kind(path) in _JSON_LINES + _PARQUET


def read_records(
    path: str, field: str = DEFAULT_FIELD, errors: str = "strict", advance: Advance | None = None
) -> Iterator[Document]:
    """Yield the lines of every record's text; a record whose text is null or blank is none."""
    check_errors(errors)
    check_source(path)
    texts = _read_parquet(path, field, advance) if _kind(path) in _PARQUET else _read_json(path, field, errors, advance)
    any_words = False
    for place, text in texts:
        if not text or text.isspace():
            continue
        any_words = True
        yield _whole_characters(text, errors, place).replace("\r\n", "\n").split("\n")
    if not any_words:
        raise no_words(named(path))


def _kind(path: str) -> str:
    ending = file_ending(path)
    return file_ending(os.path.splitext(path)[0]) if ending in PACKED else ending


def _read_json(path: str, field: str, errors: str, advance: Advance | None) -> Iterator[tuple[str, str | None]]:
    for number, line in enumerate(read_lines(path, errors, advance), start=1):
        if not line or line.isspace():
            continue
        place = f"{named(path)}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place} is not JSON ({error}): give one record per line.") from error
        if not isinstance(record, dict):
            raise UserError(f"{place} is {_json_type(record)}, not a JSON object: give one record per line.")
        if field not in record:
            raise _no_field(place, field, record)
        text = record[field]
        if not isinstance(text, str | None):
            raise UserError(
                f"{place} has {_json_type(text)} in its field '{field}': "
                f"it must be a string; name another with {argument('field')}."
            )
        yield place, text


def _read_parquet(path: str, field: str, advance: Advance | None) -> Iterator[tuple[str, str | None]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            if field not in file.schema_arrow.names:
                raise _no_field(named(path), field, file.schema_arrow.names)
            kind = file.schema_arrow.field(field).type
            if pyarrow.types.is_dictionary(kind):
                kind = kind.value_type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise UserError(
                    f"{named(path)} has {kind} in its column '{field}': it must be text; name another with "
                    f"{argument('field')}."
                )
            num_records = 0
            share = os.path.getsize(path) / max(1, file.metadata.num_rows)
            for batch in file.iter_batches(_BATCH_RECORDS, columns=[field], use_threads=False):
                for text in batch.column(0).to_pylist():
                    num_records += 1
                    yield f"{named(path)}, record {num_records}", text
                if advance is not None:
                    before = num_records - batch.num_rows
                    advance(round(share * num_records) - round(share * before))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise UserError(f"{named(path)} is damaged or not a Parquet file ({reason}): download it again.") from error


def _whole_characters(text: str, errors: str, place: str) -> str:
    """Meet what only escapes can spell: NULs, and halves of characters, which no file of text holds."""
    if "\0" not in text and text.isascii():
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
    if errors == "strict" and whole != text:
        raise UserError(
            f"{place} has a NUL or half of a character: fix it, or give {argument('errors', 'replace')} to put U+FFFD "
            "in "
            "its place."
        )
    return whole


def _no_field(place: str, field: str, fields: Any) -> UserError:
    names = ", ".join(f"'{name}'" for name in list(fields)[:8])
    return UserError(
        f"{place} has no field '{field}': it has {names or 'none'}; name a field with {argument('field')}."
    )


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
