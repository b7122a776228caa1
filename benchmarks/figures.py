"""Draw the plots of README and docs/results.md from the kept results of the paper's experiments.

    python benchmarks/figures.py                                     # from benchmarks/results to docs/images
    python benchmarks/figures.py --keep experiments/ltcb-all         # first keep the curves of an experiment's runs

`ltcb-quarter`, `ltcb` and `ltcb-all` were trained on 1/4, 1/2 and all of the text. The curves that are kept now were
read back from the plot that was published first, to six digits.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator

from bnce.report.comparison import compare_runs
from bnce.report.names import LossName, name_loss
from bnce.report.quality import MARGIN
from bnce.report.runs import curve

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results" / "h200" / "experiments"
CURVES = "time-to-quality.json"
MODEL = "relu-lstm"
WHOLE = "ltcb-all"
PARTS = {"ltcb-quarter": "1/4", "ltcb": "1/2", "ltcb-all-3": "all"}  # all three were trained in the same way
STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}

Row = dict[str, Any]


def rows(kept: Path, part: str) -> list[tuple[LossName, Row]]:
    """Read the rows of the model in one experiment, with the names of their losses."""
    found: list[Row] = json.loads((kept / f"{part}.json").read_text(encoding="utf-8"))["rows"]
    return [(name_loss({**row, "name": row["loss"]}), row) for row in found if row["model"] == MODEL]


def keep_curves(experiment: Path, kept: Path) -> None:
    """Write down the validation perplexity of every run by its seconds of training."""
    runs = sorted(path.parent for path in experiment.glob(f"{MODEL}-*/metrics.jsonl"))
    points = {entry.row.run: curve(entry.run, "seconds", "ppl_f") for entry in compare_runs(runs).entries}
    lines = [f"  {json.dumps(run)}: {json.dumps(points[run])}" for run in sorted(points)]
    (kept / CURVES).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def draw_time(kept: Path, out: Path) -> None:
    """Draw validation perplexity by seconds of training, and when each run was within 5% of the softmax's best."""
    curves = json.loads((kept / CURVES).read_text(encoding="utf-8"))
    runs = [(loss, row) for loss, row in rows(kept, WHOLE) if row["softmax_quality_ppl_f"] is not None]
    target = runs[0][1]["softmax_quality_ppl_f"]
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for loss, row in runs:
        seconds = row["seconds_to_softmax_quality"]
        bound = "≤ " if row["reached_at_first_evaluation"] else ""
        reached = "does not reach it" if seconds is None else f"{bound}{seconds:.1f} s"
        colour = loss.colour
        points = zip(*curves[row["run"]], strict=True)
        axes.plot(*points, "o-", color=colour, markersize=4, label=f"{loss.shown}: {reached}")
        if seconds is not None:
            axes.plot([seconds], [target], "o", color=colour, markersize=10, markerfacecolor="none", markeredgewidth=2)
    axes.axhline(target, color="#57606a", linestyle=":", linewidth=1.2)
    axes.annotate(
        f"{100 * (MARGIN - 1):.0f}% above the softmax's best PPLf", (0.01, target), (0, 5),
        xycoords=("axes fraction", "data"), textcoords="offset points", ha="left",
    )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="seconds of training (log scale)", ylabel="validation PPLf (log scale)")
    for axis, ticks in ((axes.xaxis, [1, 2, 5, 10, 20, 50]), (axes.yaxis, [60, 80, 100, 150, 200, 300])):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    axes.legend(frameon=False, title=f"time to reach a PPLf of {target:.1f}", alignment="left")
    figure.savefig(out / "time-to-quality.svg", metadata={"Date": None})


def read_gaps(kept: Path) -> list[tuple[LossName, dict[str, float]]]:
    """Read for every loss by how many per cent PPLn is above PPLf on test, by part; a part may lack a loss."""
    gaps: dict[str, tuple[LossName, dict[str, float]]] = {}
    for part in PARTS:
        for loss, row in rows(kept, part):
            if row["split"] == "test" and row["ppl_n"] is not None and row["ppl_f"] is not None:
                gaps.setdefault(row["loss"], (loss, {}))[1][part] = 100 * (row["ppl_n"] / row["ppl_f"] - 1)
    return list(gaps.values())


def draw_gap(kept: Path, out: Path) -> None:
    """Draw how far PPLn is from PPLf on test, by the amount of text."""
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for loss, gaps in read_gaps(kept):
        places = [list(PARTS).index(part) for part in gaps]
        axes.plot(places, list(gaps.values()), "o-", color=loss.colour, label=loss.shown)
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
    parser.add_argument("--keep", type=Path, help="an experiment on all of the text whose curves replace the kept ones")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="a directory for the plots")
    given = parser.parse_args()
    if given.keep is not None:
        keep_curves(given.keep, KEPT)
    given.out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({**STYLE, "svg.hashsalt": "bnce"}):
        draw_time(KEPT, given.out)
        draw_gap(KEPT, given.out)


if __name__ == "__main__":
    main()
