"""What a run that is resumed may change, and what must be as it was.

Weights, the optimiser's memory and the place in the text go on only where the network, the loss, the text and the
batches are the same. Rates, the length of the run and how often it is measured and saved may change on the way. The
validation text may not: the best model so far is the best on that text.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bnce.config import SECTIONS, OptimiserConfig, RunConfig
from bnce.errors import UserError, argument
from bnce.kinds.optimisers import OPTIMISERS

MAY_CHANGE = frozenset(
    {
        "loss.softmax",
        "optimiser.learning_rate",
        "optimiser.body_learning_rate",
        "optimiser.clip_norm",
        "optimiser.schedule",
        "optimiser.patience",
        "optimiser.warmup_steps",
        "training.epochs",
        "training.evaluations_per_epoch",
        "training.max_test_tokens",
        "training.stop_after",
        "training.checkpoint_seconds",
        "training.precision",
        "training.deterministic",
    }
)

Differences = Mapping[str, tuple[Any, Any]]


def find_differences(before: RunConfig, now: RunConfig) -> Differences:
    """List the settings in which two configs differ, by name, with both values; where the corpus lies is none."""
    found: dict[str, tuple[Any, Any]] = {}
    if before.recipe != now.recipe:
        found["recipe"] = before.recipe, now.recipe
    for section in SECTIONS:
        old, new = dataclasses.asdict(getattr(before, section)), dataclasses.asdict(getattr(now, section))
        found |= {f"{section}.{key}": (value, new[key]) for key, value in old.items() if value != new[key]}
    return found


def describe_differences(differences: Differences) -> str:
    """Name settings that differ: what they were, and what they are not."""
    return ", ".join(f"{key} {before}, not {now}" for key, (before, now) in differences.items())


def check_changes(before: RunConfig, now: RunConfig, run: object) -> Differences:
    """List the settings that change in a run; refuse those that may not, all by name."""
    differences = find_differences(before, now)
    fixed = {key: values for key, values in differences.items() if key not in MAY_CHANGE}
    if fixed:
        raise UserError(
            f"The run '{run}' was started with other settings ({describe_differences(fixed)}), which cannot change on "
            f"the way: leave them out, or train a new run with another {argument('out')}. A resumed run may change "
            f"{', '.join(sorted(MAY_CHANGE))}."
        )
    return differences


def resume_command(path: Path, *words: str) -> str:
    """Write what somebody types to go on with a run."""
    return shlex.join(["bnce", "train", "--out", str(path), "--resume", *words])


def advise_lower_rates(path: Path, optimiser: OptimiserConfig, checkpoint: Path | None, has_figures: bool) -> str:
    """Say how to go on with a run that blew up: with rates half as high, from where it can go on."""
    rates = OPTIMISERS.find(optimiser.name).rates
    settings = [f"optimiser.{key}={getattr(optimiser, key) / 2:g}" for key in rates]
    words = [word for setting in settings for word in ("--set", setting)]
    if checkpoint is not None:
        return (
            f"the last good checkpoint is '{checkpoint}'. Go on from it with lower rates:  "
            f"{resume_command(path, *words)}"
        )
    if has_figures:  # which a new start would take away
        return f"there is no checkpoint. Train a new run with lower rates, such as {' and '.join(settings)}."
    return f"there is no checkpoint yet. Start it again with lower rates:  {resume_command(path, *words)}"
