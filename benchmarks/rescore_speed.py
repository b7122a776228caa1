"""How much rescoring n-best lists adds to recognition: seconds per second of speech, on one CPU thread.

    bnce prepare train.txt --valid valid.txt --test test.txt --tokens spoken --vocab-size 80000 --out corpora/books
    python benchmarks/rescore_speed.py --corpus corpora/books --lists test-other.jsonl.xz --hours 5.1 \\
        --work DIR --out benchmarks/results/rescore_speed.md

A model is trained for three steps: speed does not depend on what it has learned, so its weights are as good as random.
Then `OMP_NUM_THREADS=1 bnce rescore RUN LISTS` runs as a user types it, in a process of its own. The whole command is
timed: the start of Python, reading the lists, loading the model, scoring, writing. The bar is on the CPU's seconds,
which are those of the clock where nothing else runs. The softmax is timed on the first utterances and on a
quarter of them, and its seconds for all words are reckoned from both.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from score import processor

# A name, the arguments of `bnce train`, how it is called, and the most seconds per second of speech.
MODELS = {
    "relu-lstm": (["wiki", "--model", "relu-lstm", "--loss", "chunk-bnce"], "ReLu-LSTM 200–600–400", 0.003),
    "transformer": (["transformer"], "Transformer 512 × 6", 0.02),
}
MODES = ("unnormalised", "normalised")
FEW_TOKENS = ("training.max_train_tokens=20000", "training.max_valid_tokens=500", "training.max_test_tokens=500")
ONCE = ("training.epochs=1", "training.evaluations_per_epoch=1")
COLUMNS = (
    "| model | probabilities | hypotheses | seconds, whole command | CPU seconds | of these loading | "
    "hypotheses/s, scoring alone | CPU seconds per second of speech | goal |"
)


def run_bnce(*arguments: object) -> tuple[str, float, float]:
    """Run a command of bnce on one thread; give what it prints, its seconds from start to end, and those of the CPU."""
    begin, before = time.perf_counter(), _cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-m", "bnce", *map(str, arguments), "--device", "cpu"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout, time.perf_counter() - begin, _cpu_seconds() - before


def _cpu_seconds() -> float:
    """Sum up what the processes that have ended used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def make_run(name: str, corpus: Path, work: Path) -> Path:
    """Train for a few steps, unless that was done."""
    run = work / name
    if not (run / "evaluation.json").exists():
        settings = [part for setting in (*FEW_TOKENS, *ONCE) for part in ("--set", setting)]
        run_bnce("train", *MODELS[name][0], "--corpus", corpus, "--out", run, *settings)
    return run


def write_part(lists: Path, num: int, work: Path) -> Path:
    """Write the first utterances of lists."""
    part = work / f"first-{num}.jsonl"
    with lzma.open(lists, "rt", encoding="utf-8") if lists.suffix == ".xz" else open(lists, encoding="utf-8") as file:
        part.write_text("".join(line for _, line in zip(range(num), file, strict=False)), encoding="utf-8")
    return part


def measure(run: Path, lists: Path, mode: str, work: Path, num_rounds: int) -> list[dict[str, Any]]:
    """Rescore some times over."""
    rounds = []
    for _ in range(num_rounds):
        printed, seconds, cpu = run_bnce("rescore", run, lists, "--mode", mode, "--out", work / "best.txt", "--json")
        found = json.loads(printed)
        rounds.append({"wall": seconds, "cpu": cpu, "found": found})
        print(
            f"{run.name} {mode}: {seconds:.1f} s, CPU {cpu:.1f} s, {found['hypotheses_per_second']:,.0f} hypotheses/s",
            flush=True,
        )
    return rounds


def reckon(rounds: list[dict[str, Any]], num_words: int) -> float:
    """Reckon the CPU's seconds for all words from those for few and for more: what is always done is in both."""
    (few, first), (more, last) = sorted((one["found"]["form"]["num_words"], one["cpu"]) for one in rounds)
    return float(first + (last - first) / (more - few) * (num_words - few))


def table_row(name: str, mode: str, rounds: list[dict[str, Any]], num_all: int, num_words: int, hours: float) -> str:
    """Write a row: medians, and the least and most seconds."""
    _, shown, bar = MODELS[name]
    walls = sorted(one["wall"] for one in rounds)
    found = [one["found"] for one in rounds]
    speed = statistics.median(one["hypotheses_per_second"] for one in found)
    num = max(one["num_hypotheses"] for one in found)
    cpu = statistics.median(one["cpu"] for one in rounds)
    seconds = f"{statistics.median(walls):.1f} ({walls[0]:.1f}–{walls[-1]:.1f})"
    if num < num_all:
        cpu = reckon(rounds, num_words)
        seconds = f"extrapolated from {num:,} hypotheses"
    share = cpu / (3600 * hours)
    told = f"{bar:g}, {'met' if share < bar else '**missed**'}" if mode == "unnormalised" else ""
    load = statistics.median(one["seconds"]["load"] for one in found)
    cells = [shown, mode, f"{num_all:,}", seconds, f"{cpu:,.1f}", f"{load:.1f}", f"{speed:,.0f}", f"{share:.5f}", told]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure all models in both modes, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="prepared corpus")
    parser.add_argument("--lists", type=Path, required=True, help="n-best lists: JSON lines, plain or .xz")
    parser.add_argument("--hours", type=float, required=True, help="hours of speech that the lists are of")
    parser.add_argument("--work", type=Path, required=True, help="directory for runs")
    parser.add_argument("--models", default=",".join(MODELS), help="models, divided by commas (all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the unnormalised mode (3)")
    parser.add_argument("--exact-utterances", type=int, default=100, help="utterances for the softmax (100)")
    parser.add_argument("--out", type=Path, help="write the table to this file")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    parts = [write_part(given.lists, num, given.work) for num in (given.exact_utterances // 4, given.exact_utterances)]
    rows = []
    for name in given.models.split(","):
        run = make_run(name, given.corpus, given.work)
        fast = measure(run, given.lists, MODES[0], given.work, given.rounds)
        num_all = fast[0]["found"]["num_hypotheses"]
        num_words = fast[0]["found"]["form"]["num_words"]
        exact = [one for part in parts for one in measure(run, part, MODES[1], given.work, 1)]
        rows += [
            table_row(name, mode, rounds, num_all, num_words, given.hours)
            for mode, rounds in zip(MODES, (fast, exact), strict=True)
        ]
    words = len((given.corpus / "vocab.txt").read_text(encoding="utf-8").splitlines())
    lines = [
        f"Machine: {processor()}, {os.cpu_count()} cores, 1 thread. Python {platform.python_version()}, PyTorch "
        f"{torch.__version__}. Load of the machine at the end: {os.getloadavg()[1]:.1f}.",
        f"V = {words:,}; {given.hours:g} hours of speech. The models were trained for three steps, so their "
        "weights are nearly random.",
        "",
        COLUMNS,
        f"|---|---|{'---:|' * 6}---|",
        *rows,
        "",
    ]
    print("\n".join(lines))
    if given.out is not None:
        given.out.write_text("\n".join(["# Rescoring: seconds per second of speech", "", *lines]), encoding="utf-8")


if __name__ == "__main__":
    main()
