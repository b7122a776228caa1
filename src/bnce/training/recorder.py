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
from bnce.machine.packages import need


class Observer(Protocol):
    """Somebody who watches a run, such as a progress bar."""

    def advanced(self, *, tokens: int, words_per_second: float, loss: float, seconds_left: float) -> None:
        """Hear of progress; the loss is the mean over tokens since the last evaluation.

        The seconds that are left are those of training and its evaluations at the pace so far.
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
        self.directory, self.observer, self.writes = directory, observer, writes
        self.advanced, self.evaluating, self.noticed = observer.advanced, observer.evaluating, observer.noticed
        self.writer: Any = None
        if writes:
            need("tensorboard", "Training")

    def start(self, step: int) -> None:
        """Open the events; after a resume, what was written beyond its step is hidden."""
        with self._without_tensorboard():
            if self.writes:
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
        # A directory of its own: a resume hides what the others say of later steps, and positions are no steps.
        with self._without_tensorboard():
            if self.writes:
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
            self.writer, self.writes = None, False
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
    found: list[tuple[str, Any, int]] = [("test/{}", result, step)]
    if result.by_sentence is not None:
        found.append(("test/{}_by_sentence", result.by_sentence, step))
    if result.detail is not None:
        for group in result.detail.by_frequency:
            name = group.name.strip("<>").replace("+", "_and_beyond")
            found.append((f"test_by_frequency_rank/{{}}/{name}", group, step))
        for group in result.detail.by_position:
            found.append(("test_by_position/{}", group, int(re.split(r"[-+]", group.name)[0])))
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.closing(open_events(directory)) as writer:
        for tag, figures, at in found:
            for key in ("ppl_n", "ppl_f"):
                if (value := getattr(figures, key)) is not None:
                    writer.add_scalar(tag.format(key), value, at)
