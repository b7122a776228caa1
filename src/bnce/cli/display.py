"""How a run shows itself on the terminal while it trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bnce.cli.console import progress_bar

if TYPE_CHECKING:
    from bnce.corpus.store import Corpus
    from bnce.settings import RunConfig


@contextlib.contextmanager
def shown_training(corpus: Corpus, config: RunConfig) -> Iterator[Display]:
    """Show the progress of a run that is trained on a corpus."""
    display = Display(config, len(corpus.split("train")))
    with display.bar:
        yield display


class Display:
    """Shows a run's progress on standard error."""

    def __init__(self, config: RunConfig, num_train_tokens: int) -> None:
        limit = config.training.max_train_tokens or num_train_tokens
        streams = config.training.batch_size
        # How far a budget goes depends on the speed.
        epochs = None if config.training.budget_seconds else config.training.epochs
        total = None if epochs is None else round(epochs * (min(limit, num_train_tokens) // streams * streams))
        self.bar = progress_bar("speed", "perplexity", where_there_is_room=["loss"])
        self.is_evaluating = False
        empty: dict[str, Any] = {"speed": "", "perplexity": "", "loss": ""}
        self.name = f"{config.model.name} {config.loss.name}"
        self.task = self.bar.add_task(self.name, total=total, **empty)
        self.evaluation = self.bar.add_task("evaluating", total=None, visible=False, **empty)

    def advanced(self, *, tokens: int, words_per_second: float, loss: float, seconds_left: float | None) -> None:
        """Move the bar."""
        self.bar.update(
            self.task,
            completed=tokens,
            speed=f"{words_per_second:,.0f} w/s",
            loss=f"loss {loss:.3f}",
            seconds_left=seconds_left,
        )

    def evaluating(self, split: str, num_done: int, num_tokens: int) -> None:
        """Show a second bar as long as an evaluation takes."""
        if not self.is_evaluating:
            self.bar.reset(self.evaluation, description=f"evaluating on {split}", total=num_tokens)
        self.is_evaluating = num_done < num_tokens
        self.bar.update(self.evaluation, completed=num_done, visible=self.is_evaluating)

    def evaluated(self, record: dict[str, Any]) -> None:
        """Show the newest perplexities, in a line of their own where there is no bar to show them."""
        constant = "" if record["ppl_n"] is None else f"PPLn {record['ppl_n']:.1f} "
        perplexity = f"{constant}PPLf {record['ppl_f']:.1f}"
        self.bar.update(self.task, perplexity=perplexity)
        if self.bar.disable and not record["step"]:
            self.bar.tell(f"{self.name} before the first step: validation {perplexity}")
        elif self.bar.disable:
            self.bar.tell(
                f"{self.name} step {record['step']:,}, epoch {record['epoch']:.2f}: loss {record['loss']:.3f}, "
                f"validation {perplexity}, {record['words_per_second']:,.0f} words/s"
            )

    def noticed(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        self.bar.tell(sentence)
