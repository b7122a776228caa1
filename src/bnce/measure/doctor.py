"""A check-up: every loss against float64, every body and optimiser on a tiny text, the noise, and the machine."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from bnce.config import LossConfig, ModelConfig, OptimiserConfig
from bnce.kinds.bodies import BODIES, Body
from bnce.kinds.kind import load
from bnce.kinds.losses import LOSSES, Loss
from bnce.kinds.optimisers import OPTIMISERS, Optimiser
from bnce.language_model import LanguageModel
from bnce.losses import OutputBatch
from bnce.losses.structure import build_structure
from bnce.machine.devices import describe_device
from bnce.machine.memory import total_memory_bytes
from bnce.machine.precision import float32_products
from bnce.measure.finding import Finding
from bnce.models import build_body
from bnce.noise import log_uniform, unigram
from bnce.optimisers import build_optimiser

# Float32 sums of a few hundred terms agree with float64 to a few units of its seventh digit.
TOLERANCE = 1e-5
K = 8  # drawn noise words
TINY = ModelConfig(embedding_size=8, hidden_size=8, bottleneck_size=8, num_heads=2, context=4)


def examine(device: torch.device) -> list[Finding]:
    """Look at everything."""
    checks: dict[str, Callable[[torch.device], Finding]] = {
        "versions": _versions,
        "device": _machine,
        "disk": _disk,
        **{f"loss {kind.name}": partial(_loss, kind, K if kind.draws == "must" else 0) for kind in LOSSES},
        **{f"loss adaptive {kind.name}": partial(_loss, kind, K) for kind in LOSSES if kind.draws == "may"},
        **{f"model {kind.name}": partial(_body, kind) for kind in BODIES},
        **{f"optimiser {kind.name}": partial(_optimiser, kind) for kind in OPTIMISERS},
        "noise sampling": _sampling,
    }
    findings = []
    for name, check in checks.items():
        try:
            findings.append(dataclasses.replace(check(device), name=name))
        except Exception as error:
            # A check-up reports what is broken and goes on.
            findings.append(Finding(name, False, f"{type(error).__name__}: {error}"))
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
        detail += f", {total_memory_bytes(device) / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    return Finding("device", True, detail)


def _disk(device: torch.device) -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    return Finding("disk", free > 1.0, f"{free:.1f} GiB free here; a run of the paper's LTCB models writes about 1 GiB")


def _loss(kind: Loss, num_noise: int, device: torch.device) -> Finding:
    error = loss_error(kind, num_noise, device)
    told = f"relative error compared with float64 {error:.1e}, allowed {TOLERANCE:.0e}"
    return Finding("loss", error < TOLERANCE, told)


def loss_error(kind: Loss, num_noise: int, device: torch.device) -> float:
    """Compare one batch's loss, duplicates among its targets, with what it must be in float64."""
    T, B, D, V = 2, 12, 16, 40
    generator = torch.Generator().manual_seed(1)
    noise = log_uniform(V).to(device)
    hidden = torch.randn(T, B, D, generator=generator).to(device)
    weight = (torch.randn(V, D, generator=generator) * 0.3).to(device)
    target = torch.randint(0, 30 if kind.structure else 10, (T, B), generator=generator).to(device)
    log_z = torch.tensor(2.0, device=device)
    bias = noise.log_probs_V + log_z
    structure = build_structure(kind, D, noise, {})
    if structure is not None:
        structure = structure.to(device)
        weight = (torch.randn(structure.num_rows, D, generator=generator) * 0.3).to(device)
        bias = torch.zeros(structure.num_rows, device=device)
        with torch.no_grad():
            structure.start_(bias)
    batch = OutputBatch(
        hidden, target, None, weight, bias, log_z, noise, num_noise, sparse=False, penalty=0.1, structure=structure
    )
    values = []
    for compute in (kind.load(), load(kind.checked_by)):
        torch.manual_seed(7)  # both must draw the same words
        with torch.no_grad():
            values.append(float(compute(batch)))
    value, expected = values
    return abs(value - expected) / abs(expected)


def _body(kind: Body, device: torch.device) -> Finding:
    """Read a text at once and in two parts: the state, or the words before a part, must carry what came before."""
    torch.manual_seed(1)
    num_layers = 2 if "num_layers" in kind.sizes else 0
    body = build_body(dataclasses.replace(TINY, name=kind.name, num_layers=num_layers)).to(device).eval()
    before, embedded = body.num_context, torch.randn(body.num_context + 6, 2, TINY.embedding_size, device=device)
    with torch.no_grad(), float32_products(tf32=False):
        whole, _ = body(embedded, body.initial_state(2))
        first, state = body(embedded[: before + 3], body.initial_state(2))
        second, _ = body(embedded[3:], state)
    error = float((torch.cat([first, second]) - whole).abs().max() / whole.abs().max())
    told = f"relative difference between a text read at once and in parts {error:.1e}, allowed {TOLERANCE:.0e}"
    return Finding("model", error < TOLERANCE, told)


def _optimiser(kind: Optimiser, device: torch.device) -> Finding:
    """Train a tiny model on one batch over and over."""
    torch.manual_seed(1)
    model = LanguageModel(TINY, LossConfig(), unigram([1] * 40)).to(device)
    optimiser = build_optimiser(model, OptimiserConfig(kind.name))
    words = torch.randint(0, 40, (7, 8), device=device)
    losses = []
    for _ in range(20):
        loss, _ = model.loss_sum(words[:-1], words[1:], model.initial_state(8))
        (loss / words.shape[1]).backward()
        optimiser.apply(optimiser.collect())
        losses.append(float(loss.detach()) / words[1:].numel())
    told = f"the loss of one batch goes from {losses[0]:.3f} to {losses[-1]:.3f} in 20 steps"
    return Finding("optimiser", losses[-1] < losses[0], told)


def _sampling(device: torch.device) -> Finding:
    noise, num_samples = log_uniform(50).to(device), 200_000
    generator = torch.Generator(device).manual_seed(1)
    seen = torch.bincount(noise.sample((num_samples,), generator), minlength=50).double()
    expected = noise.log_probs_V.double().exp() * num_samples
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    # 49 degrees of freedom: 85 is passed by chance once in a thousand draws, and the draw is always the same.
    return Finding("noise sampling", chi_square < 85, f"chi-square {chi_square:.0f} of 50 words, allowed 85")
