"""What is told of a run while it trains, also written as TensorBoard events."""

from __future__ import annotations

import contextlib
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bnce.evaluation.evaluate import Evaluation


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


if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


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


def open_events(directory: Path, purge_step: int | None = None) -> SummaryWriter:
    """Open a directory for TensorBoard events; what was written there from `purge_step` on is hidden."""
    with warnings.catch_warnings():
        # TensorBoard's own imports warn of their dependencies' futures.
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(directory), purge_step=purge_step)


def write_test_events(directory: Path, step: int, result: Evaluation) -> None:
    """Write the figures on test after `step` training steps; those of an earlier time are replaced.

    Groups of ranks are a tag each, at the step of the model. Positions are one curve, whose steps are the positions.
    """
    figures = [("test/ppl_n", result.ppl_n, step), ("test/ppl_f", result.ppl_f, step)]
    if (alone := result.by_sentence) is not None:
        figures += [("test/ppl_n_by_sentence", alone.ppl_n, step), ("test/ppl_f_by_sentence", alone.ppl_f, step)]
    if (detail := result.detail) is not None:
        for group in detail.by_frequency:
            name = group.name.strip("<>").replace("+", "_and_beyond")
            figures += [(f"test_by_frequency_rank/ppl_n/{name}", group.ppl_n, step)]
            figures += [(f"test_by_frequency_rank/ppl_f/{name}", group.ppl_f, step)]
        for group in detail.by_position:
            place = int(re.split(r"[-+]", group.name)[0])
            figures += [("test_by_position/ppl_n", group.ppl_n, place), ("test_by_position/ppl_f", group.ppl_f, place)]
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.closing(open_events(directory)) as writer:
        for tag, value, at in figures:
            if value is not None:
                writer.add_scalar(tag, value, at)
