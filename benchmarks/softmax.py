"""Time every form of the softmax that can run here, loss and gradients, at the sizes of the paper's two corpora.

python benchmarks/softmax.py --out benchmarks/results/h200
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from provenance import origin

from bnce.losses.softmax_forms import FORMS, can_run, fastest
from bnce.machine.devices import choose_device, describe_device
from bnce.version import __version__

SIZES = {"LTCB": (80_000, 400, 400 * 20), "OBWB": (793_471, 600, 500 * 20)}


def main() -> None:
    """Measure, print, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a directory for softmax.md")
    parser.add_argument("--tables", default="LTCB,OBWB", help="which of the two sizes")
    out, tables = (lambda given: (given.out, given.tables.split(",")))(parser.parse_args())
    device = choose_device("auto")
    dtype = torch.bfloat16 if device.type == "cuda" else None
    lines = ["    python benchmarks/softmax.py --out benchmarks/results/h200", ""]
    lines += ["| | V | D | words | " + " | ".join(FORMS) + " |", "|---|---:|---:|---:|" + "---:|" * len(FORMS)]
    for table in tables:
        vocab_size, size, num_words = SIZES[table]
        weight, bias = torch.randn(vocab_size, size, device=device) * 0.05, torch.randn(vocab_size, device=device)
        best, seconds = fastest(weight, bias, num_words, dtype=dtype)
        cells = [f"{1000 * seconds[form]:.2f} ms" if form in seconds else "—" for form in FORMS]
        cells = [f"**{cell}**" if form == best else cell for form, cell in zip(FORMS, cells, strict=True)]
        lines.append(f"| {table} | {vocab_size:,} | {size} | {num_words:,} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    missing = [form for form in FORMS if not can_run(form, device)]
    lines += [
        "",
        f"{describe_device(device)}, torch {torch.__version__}, bnce {__version__}; median of 5; "
        f"{'products in bf16, parameters in float32' if dtype else 'float32'}; forward and backward for hidden rows, "
        "weights and biases. fused: our softmax; plain and compiled: PyTorch's cross entropy without and with "
        "`torch.compile`; linear: PyTorch's `linear_cross_entropy`; cce: Cut Cross-Entropy; liger: Liger-Kernel. A "
        f"dash means that the implementation was not installed (here: {', '.join(missing) or 'none'}) or refused this "
        "size.",
        "",
        origin("none set; the rows are random"),
    ]
    print("\n".join(lines))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "softmax.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
