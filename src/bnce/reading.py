"""Small files read back: JSON objects, TOML tables and NumPy arrays; what is wrong with one becomes one kind of error.

Each reader raises a `ValueError` that says what is wrong; whoever called it knows which file, and what to do.

A directory that other commands open has one manifest: a JSON file with a format number, the size and SHA-256 of the
files that belong to the directory, and last its own hash.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnce import files
from bnce.errors import shown

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


def write_manifest(directory: Path, name: str, record: Mapping[str, Any], names: Iterable[str]) -> str:
    """Write what a directory says of itself, with sizes and hashes of the files with these names; give its own hash."""
    kept = {
        file: {"sha256": digest_file(directory / file), "bytes": (directory / file).stat().st_size} for file in names
    }
    written = json.loads(files.to_json({**record, "files": kept}))  # as it is read back, which is what the hash is of
    digest = digest_record(written)
    files.write_json(directory / name, {**written, "sha256": digest})
    return digest


def read_manifest(directory: Path, name: str, format: int) -> dict[str, Any]:
    """Read what `write_manifest` wrote; one of another format, or one that was changed, is refused."""
    if not (directory / name).is_file():
        raise ValueError(f"{name} is missing")
    try:
        record = read_object(directory / name)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read ({error})") from error
    if record.get("format") != format:
        raise ValueError(f"{name} has format {shown(record.get('format'))}, and this version reads format {format}")
    if record.get("sha256") != digest_record({key: value for key, value in record.items() if key != "sha256"}):
        raise ValueError(f"{name} has changed since it was written")
    return record


def verify(directory: Path, manifest: Mapping[str, Any], file: str, *, by_size: bool = False) -> None:
    """Refuse a file that is not as the manifest says; `by_size` does not read it, since it may be very large."""
    expected, path = manifest["files"].get(file), directory / file
    if expected is None:
        if path.exists():
            raise ValueError(f"{file} was added after it was written")
        return
    if not path.is_file():
        raise ValueError(f"{file} is missing")
    if (found := path.stat().st_size) != expected["bytes"]:
        raise ValueError(f"{file} has {found:,} bytes, but {expected['bytes']:,} were written")
    try:
        is_same = by_size or digest_file(path) == expected["sha256"]
    except ValueError as error:
        raise ValueError(f"{file} cannot be read ({error})") from error
    if not is_same:
        raise ValueError(f"{file} has changed since it was written")


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
