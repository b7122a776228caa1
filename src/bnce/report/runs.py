"""A run directory as the report reads it: settings, summary, validation curve and, once made, the test."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnce.errors import UserError
from bnce.files import parse_toml, read_object
from bnce.runs.metrics import METRICS_FILE, read_metrics
from bnce.settings import check_format


@dataclass(frozen=True)
class Run:
    """What one training run left behind."""

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]
    evaluation: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """The directory's own name, also when the path given was `.`."""
        return printable(self.path.resolve().name)

    @property
    def origin(self) -> str | None:
        """The name of the run that its weights came from, if they came from one."""
        found = self.config.get("init")
        return printable(Path(found).name) if isinstance(found, str) and found else None

    @property
    def warnings(self) -> list[str]:
        """The sentences in which the run warned of itself."""
        found = self.summary.get("warnings")
        return [printable(item) for item in found if isinstance(item, str)] if isinstance(found, list) else []

    def settings(self, table: str) -> Mapping[str, Any]:
        """One table of the configuration, empty when the run has none of that name."""
        found = self.config.get(table)
        return found if isinstance(found, Mapping) else {}


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Read run directories; one that is given twice is read once."""
    # Not Path.resolve: it fails on links that lead in a circle, which are refused below as what they are.
    once = {os.path.realpath(path): path for path in reversed([Path(path) for path in paths])}
    return [read_run(path) for path in reversed(once.values())]


def has_figures(path: Path) -> bool:
    """Say whether a run has been evaluated at least once, on whatever text."""
    metrics = path / METRICS_FILE
    return (path / "evaluation.json").is_file() or (metrics.is_file() and metrics.stat().st_size > 0)


def read_run(path: Path) -> Run:
    """Read one run directory, or say in one sentence why it cannot be compared."""
    if not (path / "config.toml").is_file():
        raise _not_a_run(path)
    config = _read_config(path / "config.toml")
    evaluation = path / "evaluation.json"
    run = Run(
        path=path,
        config=config,
        summary=_read_object(path / "summary.json"),
        metrics=_read_metrics(path),
        evaluation=_read_object(evaluation) if evaluation.exists() else None,
    )
    if not run.metrics and run.evaluation is None:
        raise UserError(
            f"The run '{path}' has no metrics yet, and a comparison needs at least one evaluation: "
            "wait for the first one, or run 'bnce evaluate --save' on it."
        )
    return run


def number(record: Mapping[str, Any], key: str) -> float | None:
    """A finite number, or None: a perplexity that overflowed is as absent as one never computed."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def curve(run: Run, x_key: str, y_key: str) -> list[tuple[float, float]]:
    """Read of a run's evaluations while it trained what a logarithmic axis can show."""
    pairs = ((number(record, x_key), number(record, y_key)) for record in run.metrics)
    return [(x, y) for x, y in pairs if x is not None and x > 0 and y is not None and y > 0]


def count(record: Mapping[str, Any], key: str) -> int | None:
    """A whole number, or None."""
    value = number(record, key)
    return None if value is None else int(value)


def text(record: Mapping[str, Any], key: str) -> str | None:
    """A printable string, or None."""
    value = record.get(key)
    return printable(value) if isinstance(value, str) and value else None


def printable(value: str) -> str:
    """The text without what would move a terminal's cursor or break XML."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in value)


def _not_a_run(path: Path) -> UserError:
    if not path.exists():
        return UserError(f"There is no run directory '{path}': give directories from 'bnce train'.")
    inside = sorted(found.parent.name for found in path.glob("*/config.toml")) if path.is_dir() else []
    hint = f"give the runs inside it, such as '{path / inside[0]}'" if inside else "give a directory from 'bnce train'"
    return UserError(f"'{path}' is not a run directory, because it has no config.toml: {hint}.")


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = parse_toml(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"The settings '{path}' cannot be read as TOML ({error}): restore the file or leave this run out."
        ) from error
    for table in ("model", "loss"):
        section = config.get(table)
        if not isinstance(section, dict) or not text(section, "name"):
            raise UserError(
                f"The settings '{path}' name no {table}: they need a table [{table}] with a name, "
                "as 'bnce train' writes it; restore the file or leave this run out."
            )
    check_format(config, str(path))
    return {key: value for key, value in config.items() if key != "format"}


def _read_object(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        why = "so its training never started: train it, or leave this run out"
        if (path.parent / "model.safetensors").exists():
            why = "because it is an exported model: give the run that it came from"
        raise UserError(f"The run '{path.parent}' has no {path.name}, {why}.")
    try:
        return read_object(path)
    except ValueError as error:
        raise UserError(
            f"'{path}' cannot be read as a JSON object ({error}): restore the file or leave this run out."
        ) from error


def _read_metrics(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        metrics = read_metrics(path)
    except OSError as error:
        raise UserError(f"'{path / METRICS_FILE}' cannot be read ({error.strerror}): leave this run out.") from error
    for number, why in metrics.damaged.items():
        raise UserError(
            f"Line {number} of '{path / METRICS_FILE}' is damaged ({why}): remove that line or leave this run out."
        )
    return tuple(metrics.records)
