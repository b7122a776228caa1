"""TensorBoard events, and a finished run's test figures as such: by frequency, by position, the worst sentences."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from bnce.evaluation.detail import Detail, Group, Sentence
from bnce.evaluation.evaluate import Evaluation

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def open_events(directory: Path, purge_step: int | None = None) -> SummaryWriter:
    """Open a directory for TensorBoard events; what was written there from `purge_step` on is hidden."""
    with warnings.catch_warnings():
        # TensorBoard's own imports warn of their dependencies' futures.
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(directory), purge_step=purge_step)


def write_test_events(directory: Path, step: int, result: Evaluation) -> None:
    """Write the figures after `step` training steps; those of an earlier time are replaced.

    Groups of ranks are a tag each, at the step of the model. Positions are one curve, whose steps are the positions.
    """
    shutil.rmtree(directory, ignore_errors=True)
    writer = open_events(directory)
    try:
        detail = result.detail or Detail([], [], [])
        figures = [("test/ppl_n", result.ppl_n), ("test/ppl_f", result.ppl_f)]
        if (sentences := result.by_sentence) is not None:
            figures += [("test/ppl_n_by_sentence", sentences.ppl_n), ("test/ppl_f_by_sentence", sentences.ppl_f)]
        for tag, value in figures:
            if value is not None:
                writer.add_scalar(tag, value, step)
        for group in detail.by_frequency:
            name = group.name.strip("<>").replace("+", "_and_beyond")
            for kind, value in _perplexities(group):
                writer.add_scalar(f"test_by_frequency_rank/{kind}/{name}", value, step)
        for group in detail.by_position:
            for kind, value in _perplexities(group):
                writer.add_scalar(f"test_by_position/{kind}", value, int(re.split(r"[-+]", group.name)[0]))
        if detail.worst_sentences:
            writer.add_text("test/worst_sentences", _markdown(detail.worst_sentences), step)
    finally:
        writer.close()


def _perplexities(group: Group) -> list[tuple[str, float]]:
    return [(kind, value) for kind, value in (("ppl_n", group.ppl_n), ("ppl_f", group.ppl_f)) if value is not None]


def _markdown(sentences: list[Sentence]) -> str:
    """Make a table of the sentences, every word with its loss behind it."""
    lines = ["| mean loss (nats) | every word with its loss (nats, softmax) |", "|---:|---|"]
    for sentence in sentences:
        words = (
            f"{_escape(word)} *{loss:.1f}*" for word, loss in zip(sentence.words, sentence.losses_nats, strict=True)
        )
        rest = " …" if len(sentence.words) < sentence.num_tokens else ""
        lines.append(f"| {sentence.mean_loss_nats:.2f} | {' '.join(words)}{rest} |")
    return "\n".join(lines)


def _escape(word: str) -> str:
    word = word.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", word)
