"""Training speed on a idle machine, and while other processes use every core.

python benchmarks/threads.py --out benchmarks/results

A process that only computes is started on every core, and the same training steps are timed without and with them, in
turns, by a process of their own each time: on which cores the system puts its threads is chance, and stays so for as
long as it runs. "spin" is how PyTorch's threads wait for each other by themselves; "sleep" is how they wait in every
command of bnce. The machine must be idle otherwise: the first column shows whether it was. With fair shares the best
ratio is 0.5.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from bench import bench

from bnce.__main__ import SPIN_COUNT
from bnce.machine.threads import num_cores
from bnce.recipes import load_recipe
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
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of every time that is taken")
    parser.add_argument("--once", nargs=2, metavar=("THREADS", "WAITING"), help="take one time and print it alone")
    options = parser.parse_args()
    if options.once:
        print(words_per_second(options, int(options.once[0])))
        return
    every = num_cores()
    lines = [
        "    python benchmarks/threads.py --out benchmarks/results",
        "",
        "| threads | waiting | idle, words/s | busy, words/s | busy, lowest to highest | busy / idle |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    rows = [
        (num_threads, waiting, *measure(num_threads, waiting, options.rounds))
        for num_threads, waiting in ((1, "spin"), (every, "spin"), (every, "sleep"))
    ]
    for num_threads, waiting, idle, busy in rows:
        ratio = statistics.median(busy) / statistics.median(idle)
        lines.append(
            f"| {num_threads} | {waiting} | {statistics.median(idle):,.0f} | {statistics.median(busy):,.0f} "
            f"| {min(busy):,.0f} to {max(busy):,.0f} | {ratio:.2f} |"
        )
    lines += [
        "",
        f'The table shows training speed with 1 and {every} threads on {every} cores. "Idle": no other process uses '
        f'the cores. "Busy": {every} other processes compute on the same cores. "Spin": waiting threads keep a core '
        'busy, as in PyTorch. "Sleep": they sleep soon, as in the commands of bnce. Figures are medians of '
        f"{options.rounds} rounds of {options.seconds:g} s. The goal is a ratio of at least {GOAL} in the last row. "
        f"torch {torch.__version__}, bnce {__version__}; recipe {options.recipe}, loss {options.loss}, "
        f"V = {options.vocab_size:,}.",
    ]
    print("\n".join(lines))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "threads.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure(num_threads: int, waiting: str, num_rounds: int) -> tuple[list[float], list[float]]:
    """Time training without and with busy processes, in turns; returns words per second."""
    idle, busy = [], []
    for _ in range(num_rounds):
        idle.append(in_own_process(num_threads, waiting))
        with busy_cores():
            busy.append(in_own_process(num_threads, waiting))
    return idle, busy


def in_own_process(num_threads: int, waiting: str) -> float:
    """Take one time in a new process, with the options of this one."""
    command = [sys.executable, *sys.argv, "--once", str(num_threads), waiting]
    given = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    if waiting == "sleep":
        given["GOMP_SPINCOUNT"] = SPIN_COUNT
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=given).stdout)


def words_per_second(options: argparse.Namespace, num_threads: int) -> float:
    """Train for a while, the first second of which does not count."""
    torch.set_num_threads(num_threads)
    config = load_recipe(options.recipe, loss=options.loss)
    for seconds in (1.0, options.seconds):
        result = bench([(config, options.vocab_size)], CPU, num_rounds=1, round_seconds=seconds)
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
