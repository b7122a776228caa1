"""A check-up: the losses on one batch against float64, the noise against its own probabilities, and the machine."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bnce.losses import LOSSES, OutputBatch, reference
from bnce.machine.devices import describe_device
from bnce.noise import log_uniform

# Float32 sums of a few hundred terms agree with float64 to a few units of its seventh digit.
TOLERANCE = 1e-5
ADAPTIVE = "adaptive bnce"  # bnce with drawn words


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what, whether it is well, and the figure."""

    name: str
    well: bool
    detail: str


def examine(device: torch.device) -> list[Finding]:
    """Look at everything."""
    checks: list[Callable[[torch.device], Finding]] = [
        _versions,
        _machine,
        _disk,
        *map(_loss_check, (*LOSSES, ADAPTIVE)),
        _sampling,
    ]
    findings = []
    for check in checks:
        try:
            findings.append(check(device))
        except Exception as error:
            # A check-up reports what is broken and goes on.
            findings.append(Finding(getattr(check, "__name__", "check"), False, f"{type(error).__name__}: {error}"))
    return findings


def _versions(device: torch.device) -> Finding:
    packages = ("bnce", "torch", "numpy", "pyarrow", "safetensors")
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} from source")
    return Finding("versions", True, f"Python {platform.python_version()}, {', '.join(versions)}")


def _machine(device: torch.device) -> Finding:
    detail = describe_device(device)
    if device.type == "cuda":
        detail += (
            f", {torch.cuda.get_device_properties(device).total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
        )
    return Finding("device", True, detail)


def _disk(device: torch.device) -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    return Finding("disk", free > 1.0, f"{free:.1f} GiB free here; a run of the paper's LTCB models writes about 1 GiB")


def _loss_check(name: str) -> Callable[[torch.device], Finding]:
    def check(device: torch.device) -> Finding:
        error = loss_error(name, device)
        return Finding(
            f"loss {name}",
            error < TOLERANCE,
            f"relative error against float64 {error:.1e}, allowed {TOLERANCE:.0e}",
        )

    check.__name__ = f"loss {name}"
    return check


def loss_error(name: str, device: torch.device) -> float:
    """Compare one batch's loss, duplicates among its targets, with the paper's equations in float64."""
    T, B, D, V, K = 2, 12, 16, 40, 8
    generator = torch.Generator().manual_seed(1)
    noise = log_uniform(V).to(device)
    hidden = torch.randn(T, B, D, generator=generator)
    weight = torch.randn(V, D, generator=generator) * 0.3
    target = torch.randint(0, 10, (T, B), generator=generator)
    log_z = 2.0
    bias = noise.log_probs_V.cpu() + log_z
    num_noise = K if name in ("nce", "snce", ADAPTIVE) else 0
    batch = OutputBatch(
        hidden.to(device),
        target.to(device),
        None,
        weight.to(device),
        bias.to(device),
        torch.tensor(log_z, device=device),
        noise,
        num_noise,
        sparse=False,
    )
    # The reference must see the words that the loss will draw.
    torch.manual_seed(7)
    shape = (T, B, K) if name == "nce" else (T, K)
    drawn = noise.sample(shape).cpu() if num_noise else torch.zeros(T, 0, dtype=torch.long)
    torch.manual_seed(7)
    value = float(LOSSES["bnce" if name == ADAPTIVE else name](batch))
    probs = noise.log_probs_V.cpu().double().exp()
    expected = 0.0
    if name == "chunk-bnce":
        expected = float(reference.chunk_nce_loss(hidden, weight, bias, target, probs, log_z))
    for t in range(T if name != "chunk-bnce" else 0):
        if name == "softmax":
            expected += float(reference.softmax_loss(hidden[t], weight, bias, target[t]))
        elif name in ("bnce", ADAPTIVE):
            expected += float(reference.batch_nce_loss(hidden[t], weight, bias, target[t], drawn[t], probs, log_z))
        else:
            own = drawn[t] if name == "nce" else drawn[t].expand(B, K)
            expected += float(reference.sampled_nce_loss(hidden[t], weight, bias, target[t], own, probs, log_z))
    return abs(value - expected) / abs(expected)


def _sampling(device: torch.device) -> Finding:
    noise, num_samples = log_uniform(50).to(device), 200_000
    generator = torch.Generator(device).manual_seed(1)
    seen = torch.bincount(noise.sample((num_samples,), generator), minlength=50).double()
    expected = noise.log_probs_V.double().exp() * num_samples
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    # 49 degrees of freedom: 85 is passed by chance once in a thousand draws, and the draw is always the same.
    return Finding("noise sampling", chi_square < 85, f"chi-square {chi_square:.0f} of 50 words, allowed 85")
