"""What a directory from `bnce export --to onnx` says of itself, and whether its files are those that were exported.

Opening it compares small files with their hashes, and the sizes of those that are mapped into memory: to read all of
these takes longer than to score a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bnce.errors import UserError
from bnce.files import read_manifest, verify, write_manifest

METADATA_FILE = "model.json"
WEIGHTS_FILE = "weights.bin"
FORMAT = 4
_MAPPED = (".bin", ".npy")


def is_exported(path: str | Path) -> bool:
    """Say whether a directory was written by `bnce export --to onnx`."""
    path = Path(path)
    return not (path / "config.toml").is_file() and any(
        (path / name).is_file() for name in (METADATA_FILE, "body.onnx")
    )


def write_record(directory: Path, record: Mapping[str, Any]) -> None:
    """Write the record of an export, with the hashes of all files that are there, and its own."""
    names = sorted(path.name for path in directory.iterdir())
    write_manifest(directory, METADATA_FILE, {"format": FORMAT, **record}, names)


def open_record(directory: Path) -> dict[str, Any]:
    """Read the record of an export; one of another version, or with files that have changed, is refused."""
    try:
        record = read_manifest(directory, METADATA_FILE, FORMAT)
        for name in record["files"]:
            verify(directory, record, name, by_size=name.endswith(_MAPPED))
    except ValueError as error:
        raise damaged_export(directory, str(error)) from error
    return record


def damaged_export(directory: Path, what: str) -> UserError:
    """Say what is wrong with an export."""
    return UserError(f"The exported run '{directory}' is damaged or of another version: {what}; export the run again.")
