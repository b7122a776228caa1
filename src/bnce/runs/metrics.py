"""A run's metrics.jsonl: one JSON object per line, one line per evaluation on validation.

It is written and read here alone, so that training and reports agree on which lines are evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bnce import files
from bnce.errors import shown
from bnce.files import parse_object

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Metrics:
    """The evaluations of a run by their steps, and what is wrong with the file, by the numbers of its lines."""

    records: list[dict[str, Any]] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)  # lines that are no evaluation


def read_metrics(directory: Path) -> Metrics:
    """Read the evaluations of a run; where steps are repeated, after a resume, what was done last holds."""
    try:
        lines = (directory / METRICS_FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return Metrics()
    metrics = Metrics()
    records = metrics.records
    for number, line in enumerate(lines, start=1):
        try:
            record = parse_object(line)
            for key, kinds in (("step", (int,)), ("ppl_f", (int, float, type(None)))):
                if key not in record:
                    raise ValueError(f"it has no {key}")
                if type(record[key]) not in kinds:
                    raise ValueError(f"its {key} is {shown(record[key])}")
        except ValueError as error:
            if number < len(lines):  # a crash may tear the last
                metrics.damaged[number] = str(error)
            continue
        while records and records[-1]["step"] >= record["step"]:
            records.pop()
        records.append(record)
    return metrics


def append_metrics(directory: Path, record: Mapping[str, Any]) -> None:
    """Add one evaluation."""
    _write(directory, [*read_metrics(directory).records, record])


def keep_metrics_up_to(directory: Path, step: int) -> int:
    """Drop the evaluations after a step that the run is resumed from: they will be made again.

    Returns how many damaged lines are dropped, too.
    """
    metrics = read_metrics(directory)
    _write(directory, [record for record in metrics.records if record["step"] <= step])
    return len(metrics.damaged)


def _write(directory: Path, records: list[Mapping[str, Any]]) -> None:
    files.write_text(directory / METRICS_FILE, "".join(files.to_json(record) + "\n" for record in records))
