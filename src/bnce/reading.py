"""Small files read back: JSON objects, TOML tables and NumPy arrays; what is wrong with one becomes one kind of error.

Each reader raises a `ValueError` that says what is wrong; whoever called it knows which file, and what to do.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object."""
    return parse_object(_read_bytes(path))


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Parse JSON that is one object."""
    try:
        found = json.loads(_decode(data))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def parse_toml(data: bytes) -> dict[str, Any]:
    """Parse TOML, whose whole numbers have 64 bits."""
    try:
        tables = tomllib.loads(_decode(data))
        _refuse_huge(tables)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return tables


def map_array(path: Path) -> NDArray[Any]:
    """Map an array of a .npy file into memory, to be read alone."""
    # Here, so that settings are read without loading NumPy.
    import numpy as np

    try:
        with warnings.catch_warnings():
            # It warns of headers that no NumPy of today writes: to us they are damage.
            warnings.simplefilter("error")
            array = np.lib.format.open_memmap(path, mode="r")
        num_bytes = path.stat().st_size
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except Exception as error:
        # NumPy parses the header as Python, and raises whatever that, its types and its sizes can raise.
        raise ValueError("it is cut short, or its header is damaged") from error
    if num_bytes != array.offset + array.nbytes:
        raise ValueError("it is longer than its header says")
    return array


def digest_file(path: Path) -> str:
    """Give the SHA-256 of a file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


def digest_record(record: Mapping[str, Any]) -> str:
    """Give the SHA-256 of a JSON object, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


def _decode(data: bytes | str) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error


def _refuse_huge(value: object) -> None:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _refuse_huge(item)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a number in it is beyond 64 bits")
