"""Training speed on a quiet machine, and while other processes use every core.

python benchmarks/threads.py --out benchmarks/results

A process that only computes is started on every core, and the same training steps are timed without and with them, in
turns. "spin" is how PyTorch's threads wait for each other by themselves; "watched" is what every command of bnce does.
The machine must be quiet otherwise: the first column shows whether it was. With fair shares the best ratio is 0.5.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from bnce.bench import bench
from bnce.config import RunConfig, load_recipe
from bnce.corpus.workers import num_cores
from bnce.run_directory import describe_device
from bnce.threads import INTERVAL_SECONDS, NUM_QUIET_INTERVALS, use_threads
from bnce.version import __version__

CPU = torch.device("cpu")
GOAL = 0.4


def main() -> None:
    """Measure, print, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a directory for threads.md")
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--loss", default="bnce")
    parser.add_argument("--vocab-size", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of every time that is taken")
    options = parser.parse_args()
    config = load_recipe(options.recipe, loss=options.loss)
    every = num_cores()
    lines = [
        "| threads | waiting | quiet, words/s | busy, words/s | busy / quiet | busy / best quiet |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    rows = []
    for num_threads, is_watched in ((1, False), (every, False), (every, True)):  # once watched, always watched
        if is_watched:
            use_threads(num_threads)
        else:
            torch.set_num_threads(num_threads)
        quiet, busy = measure(config, options.vocab_size, options.rounds, options.seconds)
        rows.append((num_threads, "watched" if is_watched else "spin", quiet, busy))
    best = max(quiet for _, _, quiet, _ in rows)
    for num_threads, waiting, quiet, busy in rows:
        lines.append(
            f"| {num_threads} | {waiting} | {quiet:,.0f} | {busy:,.0f} | {busy / quiet:.2f} | {busy / best:.2f} |"
        )
    lines += [
        "",
        f"{describe_device(CPU)}, torch {torch.__version__}, bnce {__version__}; recipe {options.recipe}, "
        f"{options.loss}, V = {options.vocab_size:,}; {every} busy processes; median of {options.rounds} rounds of "
        f"{options.seconds:g} s. Goal: the last row's ratios at least {GOAL}.",
    ]
    print("\n".join(lines))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "threads.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure(config: RunConfig, vocab_size: int, num_rounds: int, seconds: float) -> tuple[float, float]:
    """Time training without and with busy processes, in turns; returns the medians in words per second."""
    quiet, busy = [], []
    for _ in range(num_rounds):
        quiet.append(words_per_second(config, vocab_size, seconds))
        with busy_cores():
            words_per_second(config, vocab_size, 2 * INTERVAL_SECONDS)  # until it is noticed
            busy.append(words_per_second(config, vocab_size, seconds))
        words_per_second(config, vocab_size, (NUM_QUIET_INTERVALS + 1) * INTERVAL_SECONDS)
    return statistics.median(quiet), statistics.median(busy)


def words_per_second(config: RunConfig, vocab_size: int, seconds: float) -> float:
    """Train for so long."""
    result = bench([(config, vocab_size)], CPU, num_rounds=1, round_seconds=seconds)
    return float(result["measurements"][0]["words_per_second"])


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with a process of its own."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_cores())]
    time.sleep(0.2)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
