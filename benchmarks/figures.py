"""Draw the plots of docs/results.md from the figures of experiments (runs need not have their models any more).

    python benchmarks/figures.py experiments --out docs/images

`experiments` holds what `bnce experiment` wrote: ltcb-quarter, ltcb and ltcb-all, on 1/4, 1/2 and all of the text.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator

from bnce.errors import UserError
from bnce.report.comparison import Entry, compare_runs
from bnce.report.quality import MARGIN
from bnce.report.runs import curve

PARTS = {"ltcb-quarter": "1/4", "ltcb": "1/2", "ltcb-all": "all"}
STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}


def entries(directory: Path, model: str = "relu-lstm") -> list[Entry]:
    """Read the runs of one model."""
    paths = sorted(path.parent for path in directory.glob(f"{model}-*/metrics.jsonl"))
    return [entry for entry in compare_runs(paths).entries if entry.row.model == model]


def draw_time(runs: list[Entry], out: Path) -> None:
    """Draw validation perplexity by seconds of training, and when each run reached the softmax's best and 5%."""
    runs = [entry for entry in runs if entry.row.softmax_quality_ppl_f is not None]
    if not runs:
        raise UserError("There is no finished softmax run to be as good as: finish one, then draw again.")
    target = runs[0].row.softmax_quality_ppl_f
    assert target is not None
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for entry in runs:
        colour, points = entry.loss.colour.light, curve(entry.run, "seconds", "ppl_f")
        seconds = entry.row.seconds_to_softmax_quality
        bound = "≤ " if entry.row.reached_at_first_evaluation else ""
        reached = "not there" if seconds is None else f"there after {bound}{seconds:.1f} s"
        axes.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, label=f"{entry.loss.shown}: {reached}")
        if seconds is not None:
            axes.plot([seconds], [target], "o", color=colour, markersize=10, markerfacecolor="none", markeredgewidth=2)
    axes.axhline(target, color="#57606a", linestyle=":", linewidth=1.2)
    axes.annotate(
        f"softmax's best and {100 * (MARGIN - 1):.0f}%: {target:.1f}", (0.01, target), (0, 5),
        xycoords=("axes fraction", "data"), textcoords="offset points", ha="left",
    )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="seconds of training (log scale)", ylabel="validation PPLf (log scale)")
    for axis, ticks in ((axes.xaxis, [1, 2, 5, 10, 20, 50]), (axes.yaxis, [60, 80, 100, 150, 200, 300])):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)
    figure.savefig(out / "time-to-quality.svg", metadata={"Date": None})


def read_gaps(experiments: Path) -> list[tuple[Entry, dict[str, float]]]:
    """Read for every loss by how many per cent PPLn is above PPLf on test, by part; a part may lack a loss."""
    gaps: dict[str, tuple[Entry, dict[str, float]]] = {}
    for part in PARTS:
        for entry in entries(experiments / part):
            row = entry.row
            if row.split == "test" and row.ppl_n is not None and row.ppl_f is not None:
                gaps.setdefault(row.loss, (entry, {}))[1][part] = 100 * (row.ppl_n / row.ppl_f - 1)
    return list(gaps.values())


def draw_gap(experiments: Path, out: Path) -> None:
    """Draw how far PPLn is from PPLf on test, by the amount of text."""
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for entry, gaps in read_gaps(experiments):
        places = [list(PARTS).index(part) for part in gaps]
        axes.plot(places, list(gaps.values()), "o-", color=entry.loss.colour.light, label=entry.loss.shown)
        for place, value in zip(places, gaps.values(), strict=True):
            axes.annotate(
                f"{value:+.1f}%",
                (place, value),
                (0, 7 if value > 1.5 else -16),
                textcoords="offset points",
                ha="center",
            )
    axes.set_xticks(range(len(PARTS)), list(PARTS.values()))
    axes.axhline(0, color="#57606a", linewidth=1)
    axes.set(xlabel="training text, one epoch", ylabel="PPLn above PPLf on test (%)")
    axes.margins(x=0.08, y=0.2)
    axes.legend(frameon=False)
    figure.savefig(out / "normalisation-gap.svg", metadata={"Date": None})


def main() -> None:
    """Draw both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiments", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({**STYLE, "svg.hashsalt": "bnce"}):
        draw_time(entries(given.experiments / "ltcb-all"), given.out)
        draw_gap(given.experiments, given.out)


if __name__ == "__main__":
    main()
