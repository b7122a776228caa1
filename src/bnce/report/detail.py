"""Where the test text is hard for each run: plots by frequency and by position, and the worst sentences as a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from bnce.report import numbers
from bnce.report.comparison import Comparison, Entry
from bnce.report.drawing import make_logarithmic, new_axes
from bnce.report.plots import STYLES, Marked, Plot, make_plot, mark_entries
from bnce.report.runs import number, printable, text
from bnce.text.normalise import UNKNOWN_WORD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADINGS = {
    "by_frequency": ("frequency", "Test perplexity by word frequency"),
    "by_position": ("position", "Test perplexity by position in the sentence"),
}
_CAPTIONS = {
    "by_frequency": "Words by their rank in the training text; <unk> is drawn separately, its PPLn as a ring. ",
    "by_position": "Position 1 is the first word after a sentence end. ",
}
_LABELS = {"by_frequency": "rank in the training text", "by_position": "position in the sentence"}

# A loss at which a word is shaded fully: e^-12 is about one in 160,000.
FULL_LOSS_NATS = 12.0


@dataclass(frozen=True)
class Group:
    """A point of a curve; a perplexity that was not recorded, or is not finite, is None."""

    name: str
    ppl_n: float | None
    ppl_f: float | None


@dataclass(frozen=True)
class WorstSentence:
    """A sentence with every word's loss in nats."""

    mean_loss_nats: float
    words: list[tuple[str, float]]
    is_cut: bool


def draw_detail_plots(comparison: Comparison) -> list[Plot]:
    """Draw both plots, or none where no run has recorded any detail."""
    plots = []
    for key, (name, heading) in _HEADINGS.items():
        marked = [pair for pair in mark_entries(comparison.entries) if read_groups(pair[0], key)]
        if marked:
            caption = f"{_CAPTIONS[key]}{STYLES}"
            plots.append(make_plot(name, heading, caption, lambda: _draw_groups(marked, key), marked))  # noqa: B023
    return plots


def read_groups(entry: Entry, key: str) -> list[Group]:
    """Read a run's groups; what is not as an evaluation writes it is left out."""
    groups = []
    for record in _records(entry, key):
        name = text(record, "name")
        group = Group(name or "", number(record, "ppl_n"), number(record, "ppl_f"))
        if name and any(value is not None and value > 0 for value in (group.ppl_n, group.ppl_f)):
            groups.append(group)
    return groups


def read_worst_sentences(entry: Entry) -> list[WorstSentence]:
    """Read a run's worst sentences; what is not as an evaluation writes it is left out."""
    sentences = []
    for record in _records(entry, "worst_sentences"):
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


def _records(entry: Entry, key: str) -> list[Mapping[str, Any]]:
    detail = (entry.run.evaluation or {}).get("detail")
    found = detail.get(key) if isinstance(detail, Mapping) else None
    return [record for record in found if isinstance(record, Mapping)] if isinstance(found, list) else []


def _draw_groups(marked: Sequence[Marked], key: str) -> Figure:
    figure, axes = new_axes()
    # Runs over vocabularies of different sizes have different groups: each stands at its place in the longest list.
    names = sorted({group.name for entry, _ in marked for group in read_groups(entry, key)}, key=_first)
    for entry, marker in marked:
        for ppl, style in (("ppl_f", "-"), ("ppl_n", "--")):
            points = [
                (names.index(group.name), value)
                for group in read_groups(entry, key)
                if (value := getattr(group, ppl)) is not None and value > 0
            ]
            colour = entry.loss.colour.light
            if line := [point for point in points if _is_ranked(names[point[0]])]:
                shown = marker if ppl == "ppl_f" else None
                axes.plot(*zip(*line, strict=True), linestyle=style, color=colour, marker=shown)
            # What has no rank is no further point of the curve.
            for point in points:
                if not _is_ranked(names[point[0]]):
                    fill = colour if ppl == "ppl_f" else "none"
                    size = 4.5 if ppl == "ppl_f" else 8
                    axes.plot(*point, marker=marker, color=colour, markerfacecolor=fill, markersize=size)
    places = [place for place, name in enumerate(names) if len(names) <= 8 or _is_round(name)]
    axes.set_xticks(places, [_label(names[place]) for place in places])
    axes.set_xlabel(_LABELS[key])
    axes.set_ylabel("perplexity per token (log scale)")
    make_logarithmic(axes, "y")
    return figure


def _first(name: str) -> tuple[int, str]:
    """Order groups by the first number they hold; one without, such as `<unk>`, comes last."""
    found = re.match(r"\d+", name)
    return (int(found[0]) if found else 10**12, name)


def _is_ranked(name: str) -> bool:
    return name[:1].isdecimal()


def _is_round(name: str) -> bool:
    """Choose what to name where there is no room for all: 1, 5, 10, … and the last."""
    return name in ("1", UNKNOWN_WORD) or name.endswith("+") or (name.isdecimal() and int(name) % 5 == 0)


def _label(name: str) -> str:
    """Shorten "11-100" to "–100", which says enough beside its neighbour, and "100001+" to "100K+"."""
    if last := re.fullmatch(r"\d+-(\d+)", name):
        return f"–{numbers.axis(int(last[1]))}"
    if first := re.fullmatch(r"(\d+)\+", name):
        return f"{numbers.axis(int(first[1]) - 1)}+"
    return name


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


def _sentence_row(sentence: WorstSentence) -> str:
    cells = []
    for word, loss in sentence.words:
        share = round(100 * min(1.0, max(0.0, loss / FULL_LOSS_NATS)))
        cells.append(f'<span class="word" style="--loss:{share}%">{escape(word)}<small>{loss:.1f}</small></span>')
    rest = " …" if sentence.is_cut else ""
    return f"<tr><td>{sentence.mean_loss_nats:.2f}</td><td>{' '.join(cells)}{rest}</td></tr>"
