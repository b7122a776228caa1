"""What many processes cost where there is only one: the step with NCCL inside, against the plain step.

python benchmarks/distributed.py --out benchmarks/results/h200

A process that has the GPU to itself joins a world of one by NCCL. Everything that many processes do is done: the rows
of a step are made fewer, their gradients are sent and added up, inside the captured step. Both steps take turns, as in
bench.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bench import ROWWISE, VOCAB_SIZES, Runner, conditions
from provenance import origin

from bnce.machine.devices import release_memory
from bnce.machine.processes import World
from bnce.recipes import load_recipe
from bnce.settings import RunConfig

ROWS = (
    ("ltcb", "bnce"),
    ("ltcb", "chunk-bnce"),
    ("ltcb", "snce"),
    ("ltcb", "softmax"),
    ("obwb", "bnce"),
    ("obwb", "chunk-bnce"),
)


def measure(config: RunConfig, vocab_size: int, device: torch.device, rounds: int, seconds: float) -> dict[str, Any]:
    """Time the plain step, and the step through a world of one."""
    world = World(0, 1, device)
    runners = {
        "plain": Runner(config, vocab_size, device),
        "exchanged": Runner(config, vocab_size, device, world),
    }
    timed: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            timed[name].append(runner.run(seconds))
    found: dict[str, Any] = {"captured": all(runner.step._graph is not None for runner in runners.values())}
    for name, times in timed.items():
        median = statistics.median(times)
        found[name] = 1000 * median, (max(times) - min(times)) / 2 / median
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="directory for distributed.md")
    parser.add_argument("--model", default="relu-lstm")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    lines = [
        "| table | loss | plain, ms | ± | exchanged, ms | ± | words/s, × plain |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as directory:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            init_method=f"file://{directory}/meeting",
            rank=0,
            world_size=1,
            device_id=device if backend == "nccl" else None,
        )
        for table, loss in ROWS:
            config = load_recipe(table, model=options.model, loss=loss, settings=ROWWISE)
            found = measure(config, VOCAB_SIZES[table], device, options.rounds, options.seconds)
            release_memory(device)
            (plain, spread), (many, spread_many) = found["plain"], found["exchanged"]
            lines.append(
                f"| {table} | {loss} | {plain:.3f} | {spread:.1%} | {many:.3f} | {spread_many:.1%} "
                f"| {plain / many:.3f} |"
            )
            print(lines[-1], "" if found["captured"] else "(not captured)", flush=True)
        dist.destroy_process_group()
    told = conditions(device, options.rounds, options.seconds)
    lines += [
        "",
        f"{told['device']}, torch {told['torch']}, bnce {told['bnce']}; {options.model} at the paper's sizes with "
        "row-wise Adagrad and Adam, words drawn from Zipf's law; one process that sends to itself through "
        f"{backend.upper()}; steps are captured as CUDA graphs; median of {options.rounds} rounds of {options.seconds} "
        "s in turns, ± half their range.",
        "",
        origin("1, the recipe's"),
    ]
    text = "    python benchmarks/distributed.py --out benchmarks/results/h200\n\n" + "\n".join(lines) + "\n"
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "distributed.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    main()
