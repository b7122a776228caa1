"""Alternatives to the softmax: docs/alternatives.md."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator

from .paper_runs import ppl
from .sources import H200, Block, Row, Said, above, lines_of, markdown, millions, said, text_of, thousands, times
from .words_and_pieces import final_runs, mean

PAGE = "docs/alternatives.md"
TEXTS = ("its own test", "books", "docstrings", "references")
LOSSES = {"bnce": "B-NCE", "chunk-bnce": "chunk B-NCE", "chunk-softmax": "chunk softmax"}
EXACT = {"self-normalised-softmax": "self-normalised softmax"}
FITTED = {
    "as trained": "as trained",
    "constant fitted to validation text": "constant fitted to validation text",
    "head fitted to validation text": "head fitted to validation text",
    "as trained, on the rest": "as trained, without the text's first fifth",
    "constant fitted to its first fifth, on the rest": "constant fitted to the text's first fifth, without it",
}
AWAY_HEAD = "| PPLn above PPLf | Wikipedia, test | books | docstrings of Python code | references of speech |"


def quotes() -> Iterator[Block | Said]:
    """Give what the page quotes."""
    rows: list[Row] = json.loads(text_of("h200/alternatives.json"))["rows"]
    by = {row["alternative"]: row for row in rows if row["model"] == "relu-lstm"}
    of_lstm = [row for row in rows if row["model"] == "lstm"]
    large: list[Row] = json.loads(text_of("h200/cased-alternatives.json"))["rows"]
    head = (
        "| loss | PPLf | PPLn | log Z | training words/s | × softmax | scoring words/s, one CPU thread | "
        "scoring words/s, GPU | seeds |"
    )
    for name, source, of_model in (
        ("alternatives", "alternatives.json", by.values()),
        ("alternatives-lstm", "alternatives.json", of_lstm),
        ("alternatives-large", "cased-alternatives.json", large),
    ):
        yield Block(PAGE, name, f"{H200}/{source}", markdown(head, "lrrrrrrrr", map(_cells, of_model)))
    fitted = [row for row in (by["chunk-softmax"], by["chunk-bnce"], *of_lstm, *large) if row["ppl_n_fitted"]]
    gaps = {
        loss: [above(row["ppl_n_fitted"], row["ppl_f"]) for row in fitted if row["alternative"] == loss]
        for loss in ("chunk-softmax", "chunk-bnce")
    }
    yield said(
        PAGE,
        "is then {} to {}% above its PPLf, that of chunk B-NCE {} to {}%.",
        *(f"{find(gaps[loss]):.1f}" for loss in gaps for find in (min, max)),
    )
    softmax, ours, bnce = (by[name] for name in ("softmax", "chunk-softmax", "chunk-bnce"))
    yield said(
        PAGE,
        "PPLf {}% below chunk B-NCE and {}% below the softmax. Both train at almost the same speed ({} and {} words "
        "per second).",
        *(f"{-above(ours['ppl_f'], other['ppl_f']):.1f}" for other in (bnce, softmax)),
        *(millions(row["words_per_second"]) for row in (ours, bnce)),
    )
    yield said(
        PAGE,
        "As trained, its PPLn is {}% below its PPLf. With the mean of ln Z over 400,000 validation tokens as the "
        "constant, it is {}% above.",
        f"{-above(ours['ppl_n'], ours['ppl_f']):.1f}",
        f"{above(ours['ppl_n_fitted'], ours['ppl_f']):.1f}",
    )
    runs = {side: mean(found, "ppl_f") for side, found in final_runs().items()}
    new = statistics.mean(
        line["test"]["ppl_f"] for line in lines_of("h200/bodies-chunk-softmax.jsonl") if line["stage"] == "final"
    )
    yield said(
        PAGE,
        "its PPLf is {}% below chunk B-NCE and level with the softmax ({}, {} and {};",
        f"{-above(new, runs['words chunk-bnce']):.1f}",
        *(ppl(value) for value in (new, runs["words chunk-bnce"], runs["words softmax"])),
    )
    yield Block(PAGE, "away", f"{H200}/away.jsonl and {H200}/alternatives-runs.jsonl", _away())
    yield Block(PAGE, "calibrated", "benchmarks/results/away.jsonl", _calibrated())


def _cells(row: Row) -> list[str]:
    def with_deviation(name: str) -> str:
        if row[name] is None:
            return "–"
        apart = row[f"{name}_deviation"]
        return ppl(row[name]) if apart is None else f"{row[name]:.2f} ± {apart:.2f}"

    return [
        row["shown"],
        with_deviation("ppl_f"),
        with_deviation("ppl_n"),
        f"{row['log_z_mean_nats']:.2f} ± {row['log_z_std_nats']:.2f}",
        millions(row["words_per_second"]),
        "–" if row["speedup_over_softmax"] is None else times(row["speedup_over_softmax"]),
        thousands(row["cpu_scoring_words_per_second"]),
        millions(row["gpu_scoring_words_per_second"]),
        str(len(row["seeds"])),
    ]


def _away() -> str:
    by = {(line["run"], line["how"], line["text"]): line for line in lines_of("h200/away.jsonl")}
    fitted = _valid_log_z()
    rows = []
    for loss, shown in (LOSSES | EXACT).items():
        run = f"relu-lstm-{loss}-seed2"
        of_run = [by[run, "as trained", text] for text in TEXTS]
        rows.append([f"{shown}, as trained", *(_signed(above(one["ppl_n"], one["ppl_f"])) for one in of_run)])
        shifts = (fitted[run] - one["log_z_mean"] for one in of_run)
        told = f"{shown}, the mean of ln Z over 400,000 validation tokens"
        rows.append([told, *(_signed(100 * math.expm1(shift)) for shift in shifts)])
    return markdown(AWAY_HEAD, "lrrrr", rows)


def _calibrated() -> str:
    by = {(line["run"], line["how"], line["text"]): line for line in lines_of("away.jsonl")}
    rows = []
    for loss, shown in LOSSES.items():
        for how, told in FITTED.items():
            lines = [by.get((f"relu-lstm-{loss}", how, text)) for text in TEXTS]
            cells = ["" if one is None else _signed(above(one["ppl_n"], one["ppl_f"])) for one in lines]
            rows.append([f"{shown}, {told}", *cells])
    return markdown(AWAY_HEAD, "lrrrr", rows)


def _valid_log_z() -> dict[str, float]:
    """Give the mean of ln Z(context) on validation text where each run's PPLf was lowest."""
    found = {}
    for run in lines_of("h200/alternatives-runs.jsonl"):
        records = [json.loads(line) for line in run["files"].get("metrics.jsonl", "").splitlines()]
        records = [record for record in records if record.get("ppl_f") is not None]
        if records:
            found[run["run"]] = float(min(records, key=lambda record: record["ppl_f"])["log_z_mean"])
    return found


def _signed(percent: float) -> str:
    return f"{percent:+.1f}%".replace("-", "−")
