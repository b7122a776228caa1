"""What `bnce info --check` looks at: is every loss right on this device, and are files as they were written?"""

from __future__ import annotations

import copy
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnce.corpus.manifest import MANIFEST_FILE
from bnce.corpus.store import Corpus, is_corpus
from bnce.errors import UserError
from bnce.machine.devices import describe_device
from bnce.noise import Noise
from bnce.output_layer import OutputLayer
from bnce.registry import LOSSES, Loss
from bnce.runs.checkpoint import STATE_FORMAT, read_tensors, state_files
from bnce.runs.directory import MODEL_FILE, RUN_FILE, Run, read_summary
from bnce.runs.metrics import METRICS_FILE
from bnce.runs.model_file import load_model
from bnce.version import __version__

TOLERANCE = 1e-5  # float32 sums of a few hundred terms agree with float64 to a few units of the seventh digit
NUM_NOISE = 8


@dataclass(frozen=True)
class Check:
    """One thing that was checked: its name, whether it is right, and the figure or the fault."""

    name: str
    well: bool
    detail: str


class _SameWords(Noise):
    """Noise that draws the same words on every device and in every precision."""

    def sample(self, shape: Sequence[int]) -> Tensor:
        words = torch.randint(len(self), tuple(shape), generator=torch.Generator().manual_seed(1))
        return words.to(self.log_probs_V.device)


def check_installation(device: torch.device) -> list[Check]:
    """Name the versions and the device, and compare each loss on the device with float64 on the CPU."""
    python, numpy = f"Python {platform.python_version()}", f"numpy {np.__version__}"
    versions = f"{python}, bnce {__version__}, torch {torch.__version__}, {numpy}"
    machine = describe_device(device)
    if device.type == "cuda":
        machine += (
            f", {torch.cuda.get_device_properties(device).total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
        )
    drawing = {
        name: kind(num_noise=NUM_NOISE) for name, kind in LOSSES.items() if "num_noise" in kind.__struct_fields__
    }
    losses = {f"loss {name}": kind() for name, kind in LOSSES.items()}
    losses |= {f"loss {name}": loss for name, loss in drawing.items() if loss.batch_noise == "none"}
    losses |= {f"loss adaptive {name}": loss for name, loss in drawing.items() if loss.batch_noise != "none"}
    checks = [_check(name, _compare_with_float64, loss, device) for name, loss in losses.items()]
    return [Check("versions", True, versions), Check("device", True, machine), *checks]


def check_directory(path: Path) -> list[Check]:
    """Read every file of a corpus or a run that has a hash or a checksum, and compare it."""
    if is_corpus(path):
        checks = [_check(MANIFEST_FILE, _read, Corpus.open, path)]
        if checks[0].well:
            corpus = Corpus.open(path)
            checks += [_check(f"{name}.npy", _read, corpus.split, name) for name in corpus.statistics]
            checks += [_check("spelling model", _read, lambda: corpus.spelling_file)]
        return checks
    if not (path / "config.toml").is_file():
        raise UserError(
            f"'{path}' is neither a run nor a corpus: give a directory from 'bnce train' or 'bnce prepare'."
        )
    checks = [_check(RUN_FILE, _read, Run.open, path)]
    # Every run has a model after its first evaluation, unless an experiment removed it.
    expected = (path / METRICS_FILE).is_file() and not read_summary(path).get("model_removed")
    if expected or os.path.lexists(path / MODEL_FILE):
        checks.append(_check(MODEL_FILE, _read, lambda: load_model(Run.open(path))))
    return checks + [_check(state.name, _read, read_tensors, state, STATE_FORMAT) for state in state_files(path)]


def _check(name: str, check: Callable[..., str], *arguments: Any) -> Check:
    """Make a check of what a function says or raises, so that the others are made all the same."""
    try:
        return Check(name, True, check(*arguments))
    except UserError as error:
        return Check(name, False, str(error))
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


def _read(read: Callable[..., object], *arguments: Any) -> str:
    read(*arguments)
    return "as it was written"


def _compare_with_float64(loss: Loss, device: torch.device) -> str:
    """Compute the loss of one batch with repeated targets in float32 on the device, and in float64 on the CPU."""
    T, B, D, V = 2, 12, 16, 40
    torch.manual_seed(1)
    layer = OutputLayer(D, V, _SameWords(1.0 / np.arange(1, V + 1)), loss)
    nn.init.normal_(layer.weight, std=0.3)
    hidden_TBD, target_TB = torch.randn(T, B, D), torch.randint(V, (T, B))
    expected = copy.deepcopy(layer).double()(hidden_TBD.double(), target_TB).item()
    error = abs(layer.to(device)(hidden_TBD.to(device), target_TB.to(device)).item() - expected) / abs(expected)
    told = f"relative error compared with float64 {error:.1e}, allowed {TOLERANCE:.0e}"
    if not error < TOLERANCE:
        raise UserError(told)
    return told
