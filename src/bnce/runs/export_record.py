"""What a directory from `bnce export --to onnx` says of itself, and whether its files are those that were exported.

Opening it compares small files with their hashes, and the sizes of those that are mapped into memory: to read all of
these takes longer than to score a line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bnce import files
from bnce.errors import UserError, shown
from bnce.reading import digest_file, digest_record, read_object

METADATA_FILE = "model.json"
WEIGHTS_FILE = "weights.bin"
FORMAT = 3
_MAPPED = (".bin", ".npy")
_OWN_HASH = "record_sha256"


def is_exported(path: str | Path) -> bool:
    """Say whether a directory was written by `bnce export --to onnx`."""
    path = Path(path)
    return not (path / "config.toml").is_file() and any(
        (path / name).is_file() for name in (METADATA_FILE, "body.onnx")
    )


def write_record(directory: Path, record: Mapping[str, Any]) -> None:
    """Write the record of an export, with the hashes of all files that are there, and its own."""
    hashes = {file.name: digest_file(file) for file in sorted(directory.iterdir())}
    written = json.loads(files.to_json({"format": FORMAT, **record, "sha256": hashes}))
    written[_OWN_HASH] = digest_record(written)
    files.write_json(directory / METADATA_FILE, written)


def read_record(directory: Path) -> dict[str, Any]:
    """Read the record of an export; one of another version, or one that was changed, is refused."""
    try:
        record = read_object(directory / METADATA_FILE)
    except ValueError as error:
        raise damaged_export(directory, f"{METADATA_FILE} cannot be read ({error})") from error
    if (found := record.get("format")) != FORMAT:
        raise UserError(
            f"'{directory}' was exported by bnce {record.get('bnce', '')} in format {shown(found)}, and this version "
            f"opens format {FORMAT}: export the run again with 'bnce export RUN --to onnx'."
        )
    if record.pop(_OWN_HASH, None) != digest_record(record):
        raise damaged_export(directory, f"{METADATA_FILE} is not the file that was exported")
    return record


def check_quickly(directory: Path, record: Mapping[str, Any]) -> None:
    """Refuse an export with small files that have changed, or weights of another size."""
    for name in record["sha256"]:
        if not name.endswith(_MAPPED):
            check_file(directory, name, record)
    places = record["weights"].values()
    ends = (one["offset"] + np.dtype(one["dtype"]).itemsize * int(np.prod(one["shape"])) for one in places)
    expected, path = max(ends), directory / WEIGHTS_FILE
    if (num_bytes := path.stat().st_size if path.is_file() else 0) != expected:
        raise damaged_export(directory, f"{WEIGHTS_FILE} has {num_bytes:,} bytes, but {expected:,} were exported")


def check_file(directory: Path, name: str, record: Mapping[str, Any]) -> None:
    """Refuse a file that is not the one that was exported; all of it is read."""
    if not (directory / name).is_file():
        raise damaged_export(directory, f"{name} is missing")
    try:
        found = digest_file(directory / name)
    except ValueError as error:
        raise damaged_export(directory, f"{name} cannot be read ({error})") from error
    if found != record["sha256"][name]:
        raise damaged_export(directory, f"{name} is not the file that was exported")


def damaged_export(directory: Path, what: str) -> UserError:
    """Say what is wrong with an export."""
    return UserError(f"The exported run '{directory}' is damaged: {what}; export the run again.")
