"""A check-up: the losses on one batch against float64, the noise against its own probabilities, and the machine."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bnce.kinds.kind import load
from bnce.kinds.losses import LOSSES, Loss
from bnce.losses import OutputBatch
from bnce.machine.devices import describe_device
from bnce.noise import log_uniform

# Float32 sums of a few hundred terms agree with float64 to a few units of its seventh digit.
TOLERANCE = 1e-5
K = 8  # drawn noise words


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
        *_loss_checks(),
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


def _loss_checks() -> list[Callable[[torch.device], Finding]]:
    plain = [_loss_check(f"loss {kind.name}", kind, K if kind.draws == "must" else 0) for kind in LOSSES]
    return plain + [_loss_check(f"loss adaptive {kind.name}", kind, K) for kind in LOSSES if kind.draws == "may"]


def _loss_check(name: str, kind: Loss, num_noise: int) -> Callable[[torch.device], Finding]:
    def check(device: torch.device) -> Finding:
        error = loss_error(kind, num_noise, device)
        told = f"relative error against float64 {error:.1e}, allowed {TOLERANCE:.0e}"
        return Finding(name, error < TOLERANCE, told)

    check.__name__ = name
    return check


def loss_error(kind: Loss, num_noise: int, device: torch.device) -> float:
    """Compare one batch's loss, duplicates among its targets, with what it must be in float64."""
    T, B, D, V = 2, 12, 16, 40
    generator = torch.Generator().manual_seed(1)
    noise = log_uniform(V).to(device)
    hidden = torch.randn(T, B, D, generator=generator).to(device)
    weight = (torch.randn(V, D, generator=generator) * 0.3).to(device)
    target = torch.randint(0, 10, (T, B), generator=generator).to(device)
    log_z = torch.tensor(2.0, device=device)
    bias = noise.log_probs_V + log_z
    batch = OutputBatch(hidden, target, None, weight, bias, log_z, noise, num_noise, sparse=False)
    values = []
    for compute in (kind.load(), load(kind.checked_by)):
        torch.manual_seed(7)  # both must draw the same words
        values.append(float(compute(batch)))
    value, expected = values
    return abs(value - expected) / abs(expected)


def _sampling(device: torch.device) -> Finding:
    noise, num_samples = log_uniform(50).to(device), 200_000
    generator = torch.Generator(device).manual_seed(1)
    seen = torch.bincount(noise.sample((num_samples,), generator), minlength=50).double()
    expected = noise.log_probs_V.double().exp() * num_samples
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    # 49 degrees of freedom: 85 is passed by chance once in a thousand draws, and the draw is always the same.
    return Finding("noise sampling", chi_square < 85, f"chi-square {chi_square:.0f} of 50 words, allowed 85")
