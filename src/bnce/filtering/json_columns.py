"""Columns for records of JSON: their types keep what the records say, and a number that would change is refused."""

from __future__ import annotations

import contextlib
import json
import re
from decimal import Decimal
from typing import Any

_LONG_INTEGER = re.compile(rb"\d{16}")  # 2^53, from where on not every integer is a float64, has 16 digits


class InexactError(ValueError):
    """An integer that would become a floating-point number."""


def _stays(integer: Decimal) -> bool:
    return -(2**63) <= integer < 2**63 and Decimal(float(integer)) == integer


def check_integers(lines: bytes, schema: Any) -> None:
    """Refuse integers that would not stay what they are.

    Where one of a column has more than 63 bits, or is not whole, Arrow makes floating-point numbers of all.
    """
    import pyarrow

    def check(value: Any, kind: Any) -> None:
        if isinstance(value, dict) and pyarrow.types.is_struct(kind):
            for name, one in value.items():
                if kind.get_field_index(name) >= 0:
                    check(one, kind.field(name).type)
        elif isinstance(value, list) and pyarrow.types.is_list(kind):
            for one in value:
                check(one, kind.value_type)
        elif isinstance(value, Decimal) and pyarrow.types.is_floating(kind) and not _stays(value):
            raise InexactError(f"the integer {value} would not stay one in a column of {kind}")

    if _LONG_INTEGER.search(lines) is None:
        return
    for line in lines.split(b"\n"):
        if _LONG_INTEGER.search(line) is not None:
            with contextlib.suppress(RecursionError):
                check(json.loads(line, parse_int=Decimal), pyarrow.struct(list(schema)))


def without_times(schema: Any) -> Any:
    """Keep what was a string in JSON one: a date is read as a time, and no value at all as nothing."""
    import pyarrow

    def keep(kind: Any) -> Any:
        if pyarrow.types.is_timestamp(kind) or pyarrow.types.is_null(kind):
            return pyarrow.string()
        if pyarrow.types.is_struct(kind):
            return pyarrow.struct([field.with_type(keep(field.type)) for field in kind])
        if pyarrow.types.is_list(kind):
            return pyarrow.list_(keep(kind.value_type))
        return kind

    return pyarrow.schema([field.with_type(keep(field.type)) for field in schema])
