"""A run's metrics.jsonl: one JSON object per line, one line per evaluation on validation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bnce import files
from bnce.reading import parse_object

METRICS_FILE = "metrics.jsonl"


def read_metrics(directory: Path) -> tuple[list[dict[str, Any]], int]:
    """Read the evaluations of a run, and count the lines that are none: torn by a crash, or damaged."""
    try:
        data = (directory / METRICS_FILE).read_bytes()
    except FileNotFoundError:
        return [], 0
    records, num_damaged = [], 0
    for line in data.splitlines():
        try:
            record = parse_object(line)
        except ValueError:
            record = {}
        if type(record.get("step")) is int and type(record.get("ppl_f")) in (int, float, type(None)):
            records.append(record)
        else:
            num_damaged += 1
    return records, num_damaged


def write_metrics(directory: Path, records: list[dict[str, Any]]) -> None:
    """Write all evaluations anew."""
    files.write_text(directory / METRICS_FILE, "".join(files.to_json(record) + "\n" for record in records))


def append_metrics(directory: Path, record: Mapping[str, Any]) -> None:
    """Add one evaluation."""
    write_metrics(directory, [*read_metrics(directory)[0], dict(record)])
