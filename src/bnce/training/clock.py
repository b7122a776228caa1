"""How long a run has trained, and how fast: the clock runs during training and stops during evaluation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from bnce.machine.devices import synchronize

_KEPT = ("seconds", "startup_seconds", "timed_tokens", "timed_tokens_at_evaluation", "seconds_at_evaluation")


class TrainingClock:
    """Counts the seconds of training alone, and the tokens that went by in them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0
        self.startup_seconds = 0.0  # of a GPU's first steps, in which kernels are compiled and the step is captured
        self.timed_tokens = 0  # those that `seconds` went into
        self.seconds_at_evaluation = 0.0
        self.timed_tokens_at_evaluation = 0
        self._started: float | None = None

    def start(self) -> float:
        """Let the clock run; returns the time."""
        self._started = time.monotonic()
        return self._started

    def pause(self) -> None:
        """Let the clock stand, once the device has done all it was given."""
        synchronize(self.device)
        self.seconds, self._started = self._elapsed(), None

    def count(self, num_tokens: int, *, is_startup: bool) -> None:
        """Hear of a step that was made.

        Work that is done once per process is kept apart, because it says nothing about the training speed.
        """
        if not is_startup:
            self.timed_tokens += num_tokens
            return
        synchronize(self.device)
        now = time.monotonic()
        assert self._started is not None
        self.startup_seconds += now - self._started
        self._started = now

    def mark_evaluation(self) -> None:
        """Reset the counts between two evaluations."""
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

    def state(self) -> dict[str, float]:
        """Give what a resumed run needs."""
        return {name: getattr(self, name) for name in _KEPT}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for name in _KEPT:
            setattr(self, name, state[name])
