"""How far a run has come, how fast, and how much of its time is used: what a checkpoint keeps of it besides tensors."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from bnce.machine.devices import synchronize
from bnce.machine.processes import World


@dataclass
class Progress:
    """The place of a run in its text, its best evaluation so far, its clock, and what is told of it at the end.

    The clock runs during training and stops during evaluation. What is done once per process, such as compiling
    kernels, is timed apart, because it says nothing about the speed of training.
    """

    step: int = 0
    tokens: int = 0
    tokens_at_evaluation: int = 0
    best_perplexity: float = math.inf
    best_step: int = 0
    evaluations_without_better: int = 0
    evaluated_step: int = 0  # the last step that was evaluated
    warnings: list[str] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)  # of settings, when the run was resumed
    devices: list[str] = field(default_factory=list)  # more than one where a run was resumed on another
    seconds: float = 0.0  # of training alone
    startup_seconds: float = 0.0  # of a GPU's first steps, in which kernels are compiled and the step is captured
    timed_tokens: int = 0  # those that `seconds` went into
    seconds_at_evaluation: float = 0.0
    timed_tokens_at_evaluation: int = 0
    budget_used_seconds: float = 0.0  # of training.budget_seconds: training and its evaluations, also of earlier parts

    def __post_init__(self) -> None:
        self._started: float | None = None
        self._budget_since: float | None = None

    def start_clock(self) -> float:
        """Let the clock run; returns the time."""
        self._started = time.monotonic()
        return self._started

    def stop_clock(self, device: torch.device) -> None:
        """Let the clock stand, once the device has done all it was given."""
        synchronize(device)
        self.seconds, self._started = self._elapsed(), None

    def count_step(self, num_tokens: int, device: torch.device, *, is_startup: bool) -> None:
        """Count a step that was made."""
        self.step += 1
        self.tokens += num_tokens
        if not is_startup:
            self.timed_tokens += num_tokens
            return
        synchronize(device)
        now = time.monotonic()
        assert self._started is not None
        self.startup_seconds += now - self._started
        self._started = now

    def count_evaluation(self, perplexity: float) -> None:
        """Count an evaluation on validation after the last step."""
        self.evaluations_without_better += 1
        if perplexity < self.best_perplexity:
            self.best_perplexity, self.best_step, self.evaluations_without_better = perplexity, self.step, 0
        self.tokens_at_evaluation, self.evaluated_step = self.tokens, self.step
        self.seconds_at_evaluation, self.timed_tokens_at_evaluation = self.seconds, self.timed_tokens

    @property
    def words_per_second(self) -> float:
        """The speed of the run so far, its start-up left out."""
        return self.timed_tokens / self.seconds if self.seconds else 0.0

    @property
    def recent_words_per_second(self) -> float:
        """The speed since the last evaluation."""
        seconds = self._elapsed() - self.seconds_at_evaluation
        return (self.timed_tokens - self.timed_tokens_at_evaluation) / seconds if seconds > 0 else 0.0

    def _elapsed(self) -> float:
        return self.seconds + (time.monotonic() - self._started if self._started is not None else 0.0)

    def use_budget(self, world: World) -> None:
        """Count the time since the last call; of many processes all call it, and the first one counts."""
        now = time.monotonic()
        if self._budget_since is not None:
            self.budget_used_seconds = world.share(self.budget_used_seconds + now - self._budget_since)
        self._budget_since = now

    def steps_in_budget(self, budget_seconds: float, unmeasured: int) -> int:
        """Estimate the number of steps of the run from those it has made; `unmeasured` before there are any."""
        share = self.budget_used_seconds / budget_seconds
        if share >= 1.0:
            return self.step
        return max(self.step + 1, round(self.step / share) if self.step and share else unmeasured)

    def to_record(self) -> dict[str, Any]:
        """Give it as JSON has it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Progress:
        """Read what `to_record` gave."""
        return cls(**{one.name: record[one.name] for one in dataclasses.fields(cls)})
