"""How the learning rates change over a run."""

from __future__ import annotations

import math
from collections.abc import Callable

from bnce.registry import OptimiserConfig

# What is left of the rate when so much of the run is left.
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "cosine": lambda left: 0.5 - 0.5 * math.cos(math.pi * left),
}


class Schedule:
    """The factor on the learning rates: halved when validation stops improving, or falling to nothing by the end."""

    FLOOR = 0.003  # the last steps of a decay still move

    def __init__(self, config: OptimiserConfig, total_steps: int) -> None:
        self.config = config
        self.set_total_steps(total_steps)
        self.halvings = 0
        self.epochs_without_better = 0
        self.best = float("inf")

    def set_total_steps(self, total_steps: int) -> None:
        """Fit the decay to the length of the run, which is an estimate where that depends on the speed."""
        self.total_steps = total_steps
        self.warmup_steps = min(self.config.warmup_steps, total_steps // 2)  # a short run warms up for its first half

    def factor(self, step: int) -> float:
        """Compute the factor for the step with this number, counted from 0."""
        if self.config.schedule == "halve":
            return 0.5**self.halvings
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        left = DECAYS[self.config.schedule](1.0 - step / self.total_steps)
        return warm * max(self.FLOOR, left)

    def end_epoch(self, perplexity: float) -> None:
        """Note an epoch's validation perplexity; `patience` epochs without a better one halve the rate."""
        if perplexity < self.best:
            self.best, self.epochs_without_better = perplexity, 0
            return
        self.epochs_without_better += 1
        if self.epochs_without_better >= self.config.patience:
            self.halvings, self.epochs_without_better = self.halvings + 1, 0

    def state(self) -> dict[str, float]:
        """Give what a resumed run needs."""
        return {"halvings": self.halvings, "epochs_without_better": self.epochs_without_better, "best": self.best}

    def load_state(self, state: dict[str, float]) -> None:
        """Restore what `state` returned."""
        self.halvings = int(state["halvings"])
        self.epochs_without_better = int(state["epochs_without_better"])
        self.best = float(state["best"])
