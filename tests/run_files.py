"""What the files of a run say, read as any other program reads them; and files of mixtures."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

MODEL_FILE = "model.safetensors"


def settings_of(run: Path) -> dict[str, Any]:
    """Read the settings of a run."""
    return tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))


def summary_of(run: Path) -> dict[str, Any]:
    """Read the summary of a run."""
    record: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return record


def status_of(run: Path) -> str | None:
    """Read how far a run has come; None before it has begun."""
    return summary_of(run)["status"] if (run / "summary.json").exists() else None


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """Read the evaluations of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def states_of(run: Path) -> list[Path]:
    """List the states that a run can be resumed from, oldest first."""
    return sorted(run.glob("state-*.safetensors"))


def words_of(directory: Path) -> list[str]:
    """Read the words of a run or of a corpus, in the order of their ids."""
    return (directory / "vocab.txt").read_text(encoding="utf-8").splitlines()


def sizes_of(run: Path) -> dict[str, int]:
    """Count the numbers of every tensor of a model."""
    return {name: tensor.size for name, tensor in load_file(run / MODEL_FILE).items()}


def num_parameters_of(run: Path) -> int:
    """Count the parameters of a model whose constant Z was not trained."""
    return sum(size for name, size in sizes_of(run).items() if name != "output.log_z")


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory, as another process does that works there."""
    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def write_mixture(path: Path, components: Sequence[Path], weights: Sequence[float]) -> Path:
    """Write a mixture of models."""
    parts = zip(components, weights, strict=True)
    path.write_text("".join(f'[[components]]\npath = "{part}"\nweight = {weight}\n' for part, weight in parts))
    return path
