"""What is told of a run while it trains, also written as TensorBoard events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from bnce.evaluation.evaluate import Evaluation
from bnce.evaluation.events import open_events, write_test_events


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


class Recorder:
    """Passes everything on to the observer, and writes it as TensorBoard events."""

    def __init__(self, directory: Path, observer: Observer, *, writes: bool = True) -> None:
        self.directory, self.observer = directory, observer
        self.advanced, self.evaluating, self.noticed = observer.advanced, observer.evaluating, observer.noticed
        self.writer: Any = None
        self.given_up = not writes

    def start(self, step: int) -> None:
        """Open the events; after a resume, what was written beyond its step is hidden."""
        if self.given_up:
            return
        with self._without_tensorboard():
            self.writer = open_events(self.directory, purge_step=step + 1)

    def evaluated(self, record: dict[str, Any]) -> None:
        """Write an evaluation on validation, and pass it on."""
        with self._without_tensorboard():
            for key, value in record.items():
                if self.writer is not None and key != "step" and value is not None:
                    self.writer.add_scalar(key, value, record["step"])
        self.observer.evaluated(record)

    def tested(self, step: int, result: Evaluation) -> None:
        """Write the figures on test."""
        if not self.given_up:
            # A directory of its own: a resume hides what the others say of later steps, and positions are no steps.
            with self._without_tensorboard():
                write_test_events(self.directory / "test", step, result)

    def close(self) -> None:
        """Finish the events."""
        with self._without_tensorboard():
            if self.writer is not None:
                self.writer.close()

    @contextlib.contextmanager
    def _without_tensorboard(self) -> Iterator[None]:
        """Go on without events that cannot be written: metrics.jsonl has the same figures."""
        try:
            yield
        except OSError as error:
            self.writer, self.given_up = None, True
            self.noticed(
                f"TensorBoard events cannot be written to '{self.directory}' ({error.strerror}). Training continues "
                "without them."
            )
