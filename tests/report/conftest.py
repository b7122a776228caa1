"""Run directories without a run: the files a trainer writes, with numbers a test can choose."""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import run_command
from making import loss_of, model_of

from bnce import LOSSES
from bnce.settings import RunConfig, TrainingConfig, to_toml

PLOT = "data:image/svg+xml;base64,"

# PPLn, PPLf, words/s and parameters of the paper's Table 2.
PAPER = {
    ("ffnn", "softmax"): (None, 110.2, 8.4e3, 48.8e6),
    ("ffnn", "snce"): (129.8, 125.4, 29.1e3, 48.8e6),
    ("ffnn", "bnce"): (119.4, 113.7, 35.1e3, 48.8e6),
    ("rnn", "softmax"): (None, 79.7, 5.9e3, 64.6e6),
    ("rnn", "snce"): (88.7, 84.2, 37.8e3, 64.6e6),
    ("rnn", "bnce"): (87.6, 82.5, 43.7e3, 64.6e6),
    ("relu-lstm", "softmax"): (None, 59.2, 8.2e3, 50.3e6),
    ("relu-lstm", "snce"): (68.4, 67.1, 26.9e3, 50.3e6),
    ("relu-lstm", "bnce"): (64.9, 62.4, 32.0e3, 50.3e6),
}


def write_run_directory(
    path: Path,
    model: str = "rnn",
    loss: str = "bnce",
    *,
    num_noise: int = 0,
    evaluated: bool = True,
    summary: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
    num_evaluations: int = 12,
    num_done: int | None = None,
) -> Path:
    """Write a finished run with the paper's figures; `summary` and `evaluation` replace single values.

    With `num_done`, so many of its evaluations have been made.
    """
    ppl_n, ppl_f, speed, num_parameters = PAPER[model, loss if loss != "nce" else "snce"]
    path.mkdir(parents=True)
    drawn = {"num_noise": num_noise} if "num_noise" in LOSSES[loss].__struct_fields__ else {}
    config = RunConfig(
        recipe="ltcb",
        corpus="corpora/ltcb",
        model=model_of(model, 200, 600, 400),
        loss=loss_of(loss, **drawn),
        training=TrainingConfig(epochs=4, evaluations_per_epoch=3),
    )
    (path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    tokens = 4 * 133_000_000
    record = {
        "num_parameters": int(num_parameters),
        "num_table_parameters": int(num_parameters * 0.98),
        "vocab_size": 80_000,
        "vocabulary_digest": "5f3a9c0d7e21b846",
        "device": "CPU, 2 threads",
        "torch": "2.13.0",
        "bnce": "0.1.0",
        "commit": "0a1b2c3d4e5f",
        "command": f"bnce train ltcb --model {model} --loss {loss}",
        "seed": 1,
        "status": "finished",
        "words_per_second": speed,
        "train_seconds": tokens / speed,
        "tokens": tokens,
        "epochs": 4.0,
    }
    (path / "summary.json").write_text(json.dumps(record | (summary or {})), encoding="utf-8")
    lines = [_metrics_line(i, num_evaluations, ppl_n, ppl_f, speed, tokens) for i in range(1, num_evaluations + 1)]
    lines = lines[:num_done]
    (path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    if evaluated:
        test = _test_figures(ppl_n, ppl_f) | (evaluation or {})
        (path / "evaluation.json").write_text(json.dumps(test), encoding="utf-8")
    return path


def _metrics_line(index: int, of: int, ppl_n: float | None, ppl_f: float, speed: float, tokens: int) -> str:
    done = index / of
    above = 1 + 4 * math.exp(-4 * done)
    return json.dumps(
        {
            "step": index * 1000,
            "epoch": 4 * done,
            "tokens": int(tokens * done),
            "seconds": tokens * done / speed,
            "words_per_second": speed,
            "loss": 5.0,
            "ppl_n": None if ppl_n is None else ppl_n * above * (1 + 0.3 * math.exp(-5 * done)),
            "ppl_f": ppl_f * above,
            "log_z_mean": 9.1,
            "log_z_std": 0.4,
            "lr": 0.4,
            "grad_norm": 1.0,
            "peak_memory_bytes": 3 * 2**30 + index,
        }
    )


def _test_figures(ppl_n: float | None, ppl_f: float) -> dict[str, Any]:
    mean, std = (11.5, 1.4) if ppl_n is None else (9 + math.log(ppl_n / ppl_f), 0.28 + ppl_f / 500)
    edges = [mean + std * (i - 20) / 5 for i in range(41)]
    counts = [int(20_000 * math.exp(-((i - 19.5) ** 2) / 50)) for i in range(40)]
    return {
        "split": "test",
        "ppl_n": ppl_n,
        "ppl_f": ppl_f,
        "ppl_f_no_unk": ppl_f * 0.97,
        "log_z_mean": mean,
        "log_z_std": std,
        "log_z_histogram": {"edges": edges, "counts": counts},
        "log_z": 9.0,
        "num_tokens": 7_800_000,
        "num_oov": 165_600,
        "num_sentences": 600_000,
        "text_sha256": "dd" * 32,
        "log10_prob_f": -1.0,
        "log10_prob_n": -1.0,
    }


@pytest.fixture
def write_run():
    return write_run_directory


@pytest.fixture
def compare_runs(bnce):
    """Give what `bnce compare --json` says of runs, with the cells of its Markdown table as `cells`."""

    def compare(paths):
        record = bnce("compare", *paths, "--json").json
        rows = [SimpleNamespace(**row) for row in record["rows"]]
        conditions = SimpleNamespace(**record["conditions"])
        written = bnce("compare", *paths, "--format", "markdown").stdout
        table = [line for line in written.splitlines() if line.startswith("|")]
        # A bar inside a cell is escaped, so that only the table's own bars part cells.
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
        return SimpleNamespace(
            title=record["title"], rows=rows, conditions=conditions, markdown=written, head=cells[0], cells=cells[2:]
        )

    return compare


@dataclass(frozen=True)
class Report:
    """The files of a report: the page, the SVG of its plots by heading, and the tables."""

    page: str
    plots: dict[str, str]
    markdown: str
    json: str


def write_report(directory, paths):
    """Run `bnce compare --out`, and read what it wrote."""
    run_command("compare", *paths, "--out", directory)
    written = {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}
    assert set(written) == {"report.html", "table.md", "table.json"}
    page = written["report.html"]
    images = dict(re.findall(rf'<h3>([^<]*)</h3>\n<img src="{re.escape(PLOT)}([^"]*)"', page))
    plots = {heading: base64.b64decode(image).decode() for heading, image in images.items()}
    return Report(page, plots, written["table.md"], written["table.json"])


@pytest.fixture
def report(tmp_path):
    """Give what `bnce compare --out` writes of runs."""
    return lambda paths: write_report(tmp_path / "report of runs", paths)
