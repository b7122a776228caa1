"""The report's plots: perplexity against words and against time, log Z on test, training speed, and time to quality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bnce.report import numbers
from bnce.report.comparison import Comparison, Entry
from bnce.report.drawing import HEIGHT, INK, make_logarithmic, new_axes, page_style, to_image
from bnce.report.names import ModelName
from bnce.report.quality import MARGIN
from bnce.report.runs import curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Runs of one loss share its colour and differ by marker: matplotlib's name, and the sign in the legend.
MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("X", "✖"), ("*", "★"))

_STYLES = "Solid: PPLf, with the full softmax. Dashed: PPLn, with the constant Z."
_MAX_MARKERS = 12  # on a curve
_MAX_LETTERS = 60  # of a name above its bar

_Marked = tuple[Entry, str]  # a run and its marker


@dataclass(frozen=True)
class Plot:
    """A plot with its heading, caption and whom its legend names; no drawing when no run has the data."""

    heading: str
    caption: str
    image: str | None  # its address, which holds all of it
    legend: tuple[Entry, ...]
    lacks: str = "No run has recorded this yet."  # what is told where there is no drawing


def draw_plots(comparison: Comparison) -> list[Plot]:
    """Draw the report's plots."""
    marked = list(zip(comparison.entries, (name for name, _ in markers(comparison.entries)), strict=True))
    curves = [pair for pair in marked if curve(pair[0].run, "tokens", "ppl_f")]
    timed = [pair for pair in marked if curve(pair[0].run, "seconds", "ppl_f")]
    # The log Z of an exactly normalised model is 0 and would only stretch the axis.
    normalised = [pair for pair in marked if _histogram(pair[0]) and not pair[0].loss.record.structure]
    speeds = [pair for pair in marked if pair[0].row.words_per_second is not None]
    sought = [pair for pair in marked if pair[0].row.softmax_quality_ppl_f is not None]
    return [
        _make_plot(
            "Validation perplexity by training words",
            f"{_STYLES} Lower is better.",
            lambda: _draw_curves(curves, "tokens", "training words"),
            curves,
        ),
        _make_plot(
            "Validation perplexity by training time",
            f"{_STYLES} Further left is faster.",
            lambda: _draw_curves(timed, "seconds", "training time (seconds, log scale)"),
            timed,
        ),
        _make_plot(
            "Normalisation on test",
            "The distribution of log Z (natural logarithm) over test contexts. The dotted line is the constant ln Z of "
            "PPLn. A model that normalises itself has a narrow peak there.",
            lambda: _draw_log_z(normalised),
            normalised,
        ),
        _make_plot(
            "Training speed",
            "Training words per second; in brackets, relative to the softmax run of the same model.",
            lambda: _draw_speeds(speeds),
            speeds,
            has_legend=False,  # bars bear their names
        ),
        _make_plot(
            "Time to quality",
            f"Seconds of training until validation PPLf came within {100 * (MARGIN - 1):.0f}% of the best PPLf of the "
            "finished softmax run of the same model. Shorter is better. ≤: reached at the first evaluation.",
            lambda: _draw_quality(sought),
            sought,
            has_legend=False,
            lacks="This plot needs a finished softmax run of the same model on the same corpus, and runs with "
            "evaluations on validation to compare with it.",
        ),
    ]


def markers(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Give every model its marker, and a further run of the same model and colour one that no model has."""
    models = list(dict.fromkeys(entry.model for entry in entries))
    seen: set[tuple[ModelName, str]] = set()
    num_further: Counter[str] = Counter()
    chosen = []
    for entry in entries:
        place = models.index(entry.model)
        if (entry.model, entry.loss.colour) in seen:
            place = len(models) + num_further[entry.loss.colour]
            num_further[entry.loss.colour] += 1
        seen.add((entry.model, entry.loss.colour))
        chosen.append(MARKERS[place % len(MARKERS)])
    return chosen


def _make_plot(
    heading: str,
    caption: str,
    draw: Callable[[], Figure],
    marked: Sequence[_Marked],
    *,
    has_legend: bool = True,
    lacks: str = Plot.lacks,
) -> Plot:
    """Draw a plot in the page's style, if there are runs to draw; or else say what it `lacks`."""
    if not marked:
        return Plot(heading, caption, None, (), lacks)
    with page_style():
        image = to_image(draw())
    return Plot(heading, caption, image, tuple(entry for entry, _ in marked) if has_legend else ())


def _draw_curves(marked: Sequence[_Marked], key: str, label: str) -> Figure:
    figure, axes = new_axes()
    for entry, marker in marked:
        for ppl, style in (("ppl_f", "-"), ("ppl_n", "--")):
            if points := curve(entry.run, key, ppl):
                axes.plot(
                    *zip(*points, strict=True),
                    linestyle=style,
                    color=entry.loss.colour,
                    marker=marker if ppl == "ppl_f" else None,
                    markevery=max(1, len(points) // _MAX_MARKERS),
                )
    axes.set_xlabel(label)
    axes.set_ylabel("perplexity per token (log scale)")
    axes.xaxis.set_major_formatter(numbers.axis)
    make_logarithmic(axes, "y")
    if key == "seconds":
        make_logarithmic(axes, "x")
    return figure


def _draw_log_z(marked: Sequence[_Marked]) -> Figure:
    figure, axes = new_axes()
    bounds: list[float] = []
    for entry, marker in marked:
        histogram = _histogram(entry)
        assert histogram is not None
        edges, counts = histogram
        density = counts / counts.sum() / np.diff(edges)
        peak = int(density.argmax())
        colour = entry.loss.colour
        axes.stairs(density, edges, color=colour, linewidth=1.8)
        axes.plot((edges[peak] + edges[peak + 1]) / 2, density[peak], marker=marker, color=colour)
        bounds += _bulk(edges, counts)
    learned = (entry.row.log_z_constant_nats for entry, _ in marked if entry.loss.record.normalises)
    for constant in sorted({constant for constant in learned if constant is not None}):
        axes.axvline(constant, color=INK, linestyle=":", linewidth=1.4)
        at, beside = (constant, 1), (4, -2)
        axes.annotate(
            f"ln Z = {constant:.4g}",
            at,
            beside,
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
        )
        bounds.append(constant)
    margin = 0.05 * (max(bounds) - min(bounds))
    axes.set_xlim(min(bounds) - margin, max(bounds) + margin)
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("log Z of a context (nats)")
    axes.set_ylabel("share of contexts per nat")
    return figure


def _histogram(entry: Entry) -> tuple[np.ndarray, np.ndarray] | None:
    found = (entry.run.evaluation or {}).get("log_z_histogram")
    if not isinstance(found, Mapping):
        return None
    try:
        edges, counts = (np.asarray(found[key], dtype=float) for key in ("edges", "counts"))
    except (KeyError, TypeError, ValueError):
        return None
    usable = len(edges) == len(counts) + 1 and counts.sum() > 0 and bool((np.diff(edges) > 0).all())
    return (edges, counts) if usable else None


def _bulk(edges: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Where all but the outermost half per cent of contexts lie: one outlier must not flatten a plot."""
    below = np.cumsum(counts) / counts.sum()
    low, high = np.searchsorted(below, (0.0025, 0.9975))
    return float(edges[low]), float(edges[high + 1])


def _draw_speeds(marked: Sequence[_Marked]) -> Figure:
    bars = []
    for entry, _ in marked:
        speed, factor = entry.row.words_per_second or 0.0, entry.row.speedup_over_softmax
        bars.append((entry, speed, numbers.speed(speed) + ("" if factor is None else f" ({numbers.ratio(factor)}×)")))
    return _draw_bars(bars, "training words per second")


def _draw_quality(marked: Sequence[_Marked]) -> Figure:
    bars = []
    for entry, _ in marked:
        seconds, at_first = entry.row.seconds_to_softmax_quality, entry.row.reached_at_first_evaluation
        shown = "not reached" if seconds is None else numbers.duration(seconds)
        bars.append((entry, seconds or 0.0, f"≤ {shown}" if at_first else shown))
    return _draw_bars(bars, "seconds of training")


def _draw_bars(bars: Sequence[tuple[Entry, float, str]], label: str) -> Figure:
    """Draw one bar per run, with its name above it and its value behind it."""
    figure, axes = new_axes(height=max(HEIGHT, 0.9 + 0.5 * len(bars)))
    longest = max(value for _, value, _ in bars) or 1.0
    for place, (entry, value, shown) in enumerate(bars):
        axes.barh(place, value, height=0.42, color=entry.loss.colour)
        name = entry.row.label
        name = name if len(name) <= _MAX_LETTERS else f"{name[: _MAX_LETTERS - 1]}…"
        # Outside the layout: a long name must not squeeze the bars.
        axes.text(0, place - 0.27, name, va="bottom", fontsize=10.5, in_layout=False)
        axes.text(value + 0.01 * longest, place, shown, va="center", fontsize=10.5, in_layout=False)
    axes.set_ylim(len(bars) - 0.6, -0.75)
    axes.set_xlim(0, longest * 1.32)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(numbers.axis)
    axes.set_xlabel(label)
    return figure
