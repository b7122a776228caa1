"""The tables of docs/other-fields.md, from the lines that benchmarks/items.py writes."""

from __future__ import annotations

import statistics
from typing import Any

from item_model import LOSSES

Line = dict[str, Any]


def choose(lines: list[Line], name: str, loss: str) -> Line | None:
    """Choose the run of the search that is best on validation."""
    found = [line for line in lines if (line["stage"], line["set"], line["loss"]) == ("search", name, loss)]
    return max(found, key=lambda line: line["valid_ndcg"], default=None)


def markdown(lines: list[Line]) -> str:
    """Write a table per set, and one of the catalogues."""
    sets = list(dict.fromkeys(line["set"] for line in lines if line["stage"] in ("search", "final", "measure")))
    tables = [_of_set(lines, name) for name in sets]
    catalogues = [line for line in lines if line["stage"] == "catalogue"]
    if catalogues:
        tables.append(_of_catalogues(catalogues))
    return "\n\n".join(tables)


def _of_set(lines: list[Line], name: str) -> str:
    of_set = [line for line in lines if line["set"] == name]
    items = next(line["num_items"] for line in of_set)
    rows = [
        f"| {name.replace('_', ' ')}, {items:,} items | rate, dropout | HR@10 | NDCG@10 | unseen: HR@10 | NDCG@10 "
        "| epochs to best | ms per step | seconds to best | peak MiB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for loss, words in LOSSES.items():
        runs = [line for line in of_set if line["stage"] == "final" and line["loss"] == loss]
        searched, few = choose(lines, name, loss), ""
        if not runs and searched is None:
            continue
        if not runs and searched is not None:
            runs, few = [searched], " (search)"
        rate = f"{runs[0]['rate']:g}, {runs[0]['dropout']:g}"
        cells = [words + few, rate, *(_spread(runs, name) for name in ("hr", "ndcg", "hr_unseen", "ndcg_unseen"))]
        not_ended = "+" if any(run["ended"] == "epochs" for run in runs) else ""
        cells.append(f"{statistics.mean(run['epoch'] for run in runs):.0f}{not_ended}")
        alone = next((line for line in of_set if line["stage"] == "measure" and line["loss"] == loss), None)
        if alone is None:
            cells += ["–", "–", "–"]
        else:
            steps = statistics.mean(run["epoch"] * run["steps_per_epoch"] for run in runs)
            cells += [f"{alone['ms_per_step']:.2f}", f"{steps * alone['ms_per_step'] / 1000:.1f}", _mebibytes(alone)]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _of_catalogues(lines: list[Line]) -> str:
    rows = [
        "| items | loss | ms per step | items per second | peak GiB | of that parameters and optimiser state |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for line in lines:
        if line.get("gave_up"):
            rows.append(f"| {line['num_items']:,} | {line['words']} | {line['gave_up']} | | | |")
            continue
        memory = line["peak_memory_bytes"]
        gibibytes = "–" if memory is None else f"{memory / 2**30:.2f}"
        rows.append(
            f"| {line['num_items']:,} | {line['words']} | {line['ms_per_step']:.2f} | {line['items_per_second']:,.0f} "
            f"| {gibibytes} | {line['held_bytes'] / 2**30:.2f} |"
        )
    return "\n".join(rows)


def _spread(runs: list[Line], name: str) -> str:
    values = [run[name] for run in runs]
    mean = f"{statistics.mean(values):.4f}"
    return f"{mean} ± {statistics.stdev(values):.4f}" if len(values) > 1 else mean


def _mebibytes(line: Line) -> str:
    memory = line["peak_memory_bytes"]
    return "–" if memory is None else f"{memory / 2**20:,.0f}"
