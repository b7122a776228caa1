"""Somebody who watches a run."""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Somebody who watches a run, such as a progress bar."""

    def advanced(self, *, tokens: int, words_per_second: float, loss: float, seconds_left: float | None) -> None:
        """Hear of progress; the loss is the mean over tokens since the last evaluation.

        The seconds that are left are those of training and of all evaluations, also on test; None: not known yet.
        """

    def evaluating(self, split: str, num_done: int, num_tokens: int) -> None:
        """Hear how far an evaluation on validation or test has come."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """Hear of an evaluation on validation."""

    def noticed(self, sentence: str) -> None:
        """Hear of something worth a line."""
