"""The test sentences that each run found hardest, as tables of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bnce.report.comparison import Comparison, Entry
from bnce.report.runs import number, printable

# A loss at which a word is shaded fully: e^-12 is about one in 160,000.
FULL_LOSS_NATS = 12.0


@dataclass(frozen=True)
class WorstSentence:
    """A sentence with every word's loss in nats."""

    mean_loss_nats: float
    words: list[tuple[str, float]]
    is_cut: bool


def sentence_section(comparison: Comparison, legend: Sequence[str]) -> list[str]:
    """Write the worst sentences of every run that has recorded them, each run's folded but the first's."""
    lines: list[str] = []
    for entry, mark in zip(comparison.entries, legend, strict=True):
        if sentences := read_worst_sentences(entry):
            opened = "" if lines else " open"
            lines += [
                f'<details class="card"{opened}>',
                f"<summary>{mark}{escape(entry.row.shown)}</summary>",
                '<div class="details scroll"><table class="sentences">',
                '<thead><tr><th scope="col">mean loss</th><th scope="col">sentence</th></tr></thead><tbody>',
                *(_sentence_row(sentence) for sentence in sentences),
                "</tbody></table></div></details>",
            ]
    if not lines:
        return []
    guide = (
        "The test sentences of five words or more with the highest mean loss. Below each word is its loss, "
        "−ln p with the softmax, in nats; a stronger colour means a less expected word."
    )
    return ["<h2>Worst sentences</h2>", f'<p class="guide">{escape(guide)}</p>', *lines]


def read_worst_sentences(entry: Entry) -> list[WorstSentence]:
    """Read a run's worst sentences; what is not as an evaluation writes it is left out."""
    sentences = []
    detail = (entry.run.evaluation or {}).get("detail")
    records = detail.get("worst_sentences") if isinstance(detail, Mapping) else None
    for record in records if isinstance(records, list) else []:
        if not isinstance(record, Mapping):
            continue
        mean, length = number(record, "mean_loss_nats"), number(record, "num_tokens")
        words, losses = record.get("words"), record.get("losses_nats")
        if mean is None or not isinstance(words, list) or not isinstance(losses, list) or len(words) != len(losses):
            continue
        # A loss that was not finite is null in the file: as high as can be shown.
        pairs = [
            (printable(str(word)), FULL_LOSS_NATS if (known := number({"loss": loss}, "loss")) is None else known)
            for word, loss in zip(words, losses, strict=True)
        ]
        sentences.append(WorstSentence(mean, pairs, length is not None and length > len(words)))
    return sentences


def _sentence_row(sentence: WorstSentence) -> str:
    cells = []
    for word, loss in sentence.words:
        share = round(100 * min(1.0, max(0.0, loss / FULL_LOSS_NATS)))
        cells.append(f'<span class="word" style="--loss:{share}%">{escape(word)}<small>{loss:.1f}</small></span>')
    rest = " …" if sentence.is_cut else ""
    return f"<tr><td>{sentence.mean_loss_nats:.2f}</td><td>{' '.join(cells)}{rest}</td></tr>"
