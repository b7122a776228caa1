"""Time every implementation of the softmax that can run here, loss and gradients, at the sizes of the paper's corpora.

python benchmarks/softmax.py --out benchmarks/results/h200
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from provenance import ROOT, origin

import bnce
from bnce.machine.devices import choose_device, describe_device, synchronize

SIZES = {"LTCB": (80_000, 400, 400 * 20), "OBWB": (793_471, 600, 500 * 20)}
NUM_ROUNDS = 5


def measure(loss: str, vocab_size: int, size: int, num_words: int, device: torch.device) -> float | None:
    """Give the median seconds of the loss and the gradients of random positions; None where it refuses these sizes."""
    dtype = torch.bfloat16 if device.type == "cuda" else None
    layer = bnce.OutputLayer(size, vocab_size, torch.ones(vocab_size), loss, reduction="sum").to(device)
    hidden_ND = torch.randn(num_words, size, device=device, requires_grad=True)
    target_N = torch.randint(0, vocab_size, (num_words,), device=device)
    seconds = []
    for _ in range(NUM_ROUNDS + 2):  # the first two compile and settle
        synchronize(device)
        begin = time.perf_counter()
        try:
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                total = layer(hidden_ND, target_N)
            torch.autograd.grad(total, [hidden_ND, layer.weight, layer.bias])
        except (RuntimeError, ValueError, TypeError, AssertionError):  # also of memory that is used up
            return None
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[2:])


def table_of(tables: Sequence[str], device: torch.device) -> list[str]:
    """Measure, and give the lines of the table."""
    from benchmarks import softmaxes

    there = ["softmax", *softmaxes.register()]
    columns = {"fused": "softmax", **{loss.shown.partition(", ")[2]: loss.name for loss, _ in softmaxes.SOFTMAXES}}
    lines = ["| | V | D | words | " + " | ".join(columns) + " |", "|---|---:|---:|---:|" + "---:|" * len(columns)]
    for table in tables:
        vocab_size, size, num_words = SIZES[table]
        seconds = {loss: measure(loss, vocab_size, size, num_words, device) for loss in there}
        best = min(value for value in seconds.values() if value is not None)
        found = [seconds.get(loss) for loss in columns.values()]
        cells = ["—" if value is None else f"{1000 * value:.2f} ms" for value in found]
        cells = [f"**{cell}**" if value == best else cell for cell, value in zip(cells, found, strict=True)]
        lines.append(f"| {table} | {vocab_size:,} | {size} | {num_words:,} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a directory for softmax.md")
    parser.add_argument("--tables", default="LTCB,OBWB", help="which of the two sizes")
    given = parser.parse_args(arguments)
    device = choose_device("auto")
    lines = ["    python benchmarks/softmax.py --out benchmarks/results/h200", ""]
    lines += table_of(given.tables.split(","), device)
    lines += [
        "",
        f"{describe_device(device)}, torch {torch.__version__}, bnce {bnce.__version__}; median of {NUM_ROUNDS}; "
        f"{'products in bf16, parameters in float32' if device.type == 'cuda' else 'float32'}; forward and backward "
        "for hidden rows, weights and biases. fused: our softmax; plain and compiled: PyTorch's cross entropy without "
        "and with `torch.compile`; linear: PyTorch's `linear_cross_entropy`; cce: Cut Cross-Entropy; liger: "
        "Liger-Kernel. A dash means that the implementation was not installed or refused this size.",
        "",
        origin("none set; the rows are random"),
    ]
    print("\n".join(lines))
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "softmax.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path.append(str(ROOT))  # for benchmarks.softmaxes
    main()
