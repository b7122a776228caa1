"""Row-wise Adam beside row-wise Adagrad: the table of docs/lab-notebook.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from .paper_runs import LOSSES, MODELS
from .sources import Block, Row, lines_of, markdown

PAGE, SOURCE = "docs/lab-notebook.md", "optimisers.jsonl"
ROWS = [("relu-lstm", loss) for loss in ("softmax", "bnce", "chunk-bnce")] + [
    (model, "chunk-bnce") for model in ("lstm", "relu-rnn", "rnn")
]
DIVERGED = 1e4  # a perplexity that no model has which learned anything


def quotes() -> Iterator[Block]:
    """Give the seeds of the rate that was best on validation text, for both optimisers."""
    lines = [line for line in lines_of(SOURCE) if line["recipe"] == "wiki"]
    rows = []
    for model, loss in ROWS:
        cells = [MODELS[model], LOSSES[loss]]
        for name, bold in (("rowwise", False), ("rowwise-adam", True)):
            runs = _chosen(
                [line for line in lines if (line["model"], line["loss"], line["optimiser"]) == (model, loss, name)]
            )
            found = _told(runs, "test_ppl_f", say=True)
            mark = "**" if bold and "diverged" not in found else ""
            cells += [f"{runs[0]['rate']:g}", f"{mark}{found}{mark}", _told(runs, "test_ppl_n")]
        rows.append(cells)
    head = "| model | loss | row-wise Adagrad: rate | test PPLf | PPLn | row-wise Adam: rate | test PPLf | PPLn |"
    yield Block(PAGE, "optimisers", f"benchmarks/results/{SOURCE}", markdown(head, "llrrrrrr", rows))


def _chosen(lines: Sequence[Row]) -> list[Row]:
    """Give the runs of the rate that was chosen: the one that was trained with more than one seed."""
    most = max(sum(line["rate"] == rate for line in lines) for rate in {line["rate"] for line in lines})
    return [line for line in lines if sum(other["rate"] == line["rate"] for other in lines) == most]


def _told(runs: Sequence[Row], name: str, say: bool = False) -> str:
    if runs[0][name] is None:
        return "–"
    values = [run[name] for run in runs if run["test_ppl_f"] < DIVERGED]
    if len(values) == len(runs):
        return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
    told = ", ".join(f"{value:.1f}" for value in values)
    return f"{told}; one of three diverged" if say else told
