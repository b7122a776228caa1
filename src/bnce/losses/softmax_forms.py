"""All available implementations of the softmax's cross entropy, and which of them is the fastest here.

A comparison is fair only with a fast softmax, so all implementations we know are here, each with the signature
of `cross_entropy`: our own (`fused`), PyTorch's plain and compiled ones and its `linear_cross_entropy`, and where they
are installed Cut Cross-Entropy and Liger.

Legend: N positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import functools
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.errors import UserError, unknown_name
from bnce.losses.output_batch import OutputBatch
from bnce.losses.softmax import chunked_cross_entropy, cross_entropies, cross_entropy
from bnce.machine.devices import synchronize
from bnce.machine.precision import product_dtype

Form = Callable[[Tensor, Tensor, Tensor, Tensor, "Tensor | None"], Tensor]

IGNORED = -100  # the target of a position that does not count, as PyTorch and others have it


def softmax(batch: OutputBatch) -> Tensor:
    """Sum −ln p(target) over the positions that count, in the batch's form."""
    hidden_ND, target_N, valid_N = batch.flat()
    form = get_form(batch.softmax, hidden_ND.device)
    return form(hidden_ND, batch.weight_VD, batch.bias_V, target_N, valid_N)


def softmax_each(batch: OutputBatch) -> Tensor:
    """Compute −ln p(target) of every position (T, B), with all logits at once."""
    hidden_ND, target_N, _ = batch.flat()
    hidden_ND = hidden_ND.to(batch.weight_VD.dtype)
    return batch.where_counted(cross_entropies(hidden_ND, batch.weight_VD, batch.bias_V, target_N))


def compiled(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor, valid_N: Tensor | None = None
) -> Tensor:
    """Let PyTorch compile the plain form."""
    return _compile_plain()(hidden_ND, weight_VD, bias_V, target_N, valid_N)


@functools.cache
def _compile_plain() -> Form:
    return torch.compile(cross_entropy)


def linear_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor, valid_N: Tensor | None = None
) -> Tensor:
    """Use PyTorch's function for a linear layer and its cross entropy."""
    dtype = product_dtype(weight_VD)
    return F.linear_cross_entropy(
        hidden_ND.to(dtype),
        weight_VD.to(dtype),
        _marked(target_N, valid_N),
        linear_bias=bias_V.to(dtype),
        reduction="sum",
        ignore_index=IGNORED,
        options=torch.nn.LinearCrossEntropyOptions(),
    ).float()


def cut_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor, valid_N: Tensor | None = None
) -> Tensor:
    """Use Cut Cross-Entropy (Wijmans et al., 2024), with the bias as one more column."""
    from cut_cross_entropy import linear_cross_entropy

    dtype = product_dtype(weight_VD)
    weight_VE = torch.cat([weight_VD, bias_V.unsqueeze(1)], 1)
    weight_VE = F.pad(weight_VE, (0, -weight_VE.shape[1] % 8)).to(dtype)
    loss: Tensor = linear_cross_entropy(
        _with_ones(hidden_ND, dtype), weight_VE, _marked(target_N, valid_N), ignore_index=IGNORED, reduction="sum"
    )
    return loss.float()


def liger(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor, valid_N: Tensor | None = None
) -> Tensor:
    """Use Liger's fused linear cross entropy."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    dtype = product_dtype(weight_VD)
    answer = LigerFusedLinearCrossEntropyFunction.apply(
        hidden_ND.to(dtype),
        weight_VD.to(dtype),
        _marked(target_N, valid_N),
        bias_V.to(dtype),
        None,
        IGNORED,
        0.0,
        0.0,
        "sum",
    )
    loss: Tensor = answer[0]
    return loss.float()


def _with_ones(hidden_ND: Tensor, dtype: torch.dtype) -> Tensor:
    ones_N1 = torch.ones_like(hidden_ND[:, :1])
    wide_NE = torch.cat([hidden_ND, ones_N1], 1)
    return F.pad(wide_NE, (0, -wide_NE.shape[1] % 8)).to(dtype)


def _marked(target_N: Tensor, valid_N: Tensor | None) -> Tensor:
    return target_N if valid_N is None else torch.where(valid_N, target_N, IGNORED)


FORMS: dict[str, Form] = {
    "fused": chunked_cross_entropy,
    "plain": cross_entropy,
    "compiled": compiled,
    "linear": linear_cross_entropy,
    "cce": cut_cross_entropy,
    "liger": liger,
}
_PACKAGES = {"cce": "cut_cross_entropy", "liger": "liger_kernel"}


def can_run(name: str, device: torch.device) -> bool:
    """Say whether a form is there: some need a newer PyTorch, a package of their own, or a GPU."""
    if name == "linear":
        return hasattr(F, "linear_cross_entropy")
    if name in _PACKAGES:
        return device.type == "cuda" and importlib.util.find_spec(_PACKAGES[name]) is not None
    return True


def get_form(name: str, device: torch.device) -> Form:
    """Find a form by its name, and see that it can run."""
    if name not in FORMS:
        raise unknown_name("softmax", name, FORMS)
    if not can_run(name, device):
        there = ", ".join(other for other in FORMS if can_run(other, device))
        raise UserError(f"The softmax '{name}' cannot run on {device} with the installed packages: use one of {there}.")
    return FORMS[name]


def measure(
    name: str,
    weight_VD: Tensor,
    bias_V: Tensor,
    num_positions: int,
    *,
    dtype: torch.dtype | None,
    num_rounds: int = 5,
) -> float:
    """Time a form's loss and gradients for random positions; returns the median seconds."""
    device = weight_VD.device
    form = get_form(name, device)
    # A generator of its own: a measurement must not change what a run draws later.
    generator = torch.Generator(device).manual_seed(1)
    hidden_ND = torch.randn(num_positions, weight_VD.shape[1], device=device, generator=generator)
    target_N = torch.randint(0, len(weight_VD), (num_positions,), device=device, generator=generator)
    leaves = [
        hidden_ND.requires_grad_(),
        weight_VD.detach().clone().requires_grad_(),
        bias_V.detach().clone().requires_grad_(),
    ]
    seconds = []
    for _ in range(num_rounds + 2):  # the first two compile and settle
        begin = _now(device)
        with torch.enable_grad(), torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss = form(leaves[0], leaves[1], leaves[2], target_N, None)
        torch.autograd.grad(loss, leaves)
        seconds.append(_now(device) - begin)
    return statistics.median(seconds[2:])


def fastest(
    weight_VD: Tensor,
    bias_V: Tensor,
    num_positions: int,
    *,
    dtype: torch.dtype | None,
    names: Sequence[str] = tuple(FORMS),
) -> tuple[str, dict[str, float]]:
    """Measure every form that can run on a layer of this size; returns the quickest's name and the seconds of all."""
    seconds: dict[str, float] = {}
    for name in names:
        if not can_run(name, weight_VD.device):
            continue
        try:
            seconds[name] = measure(name, weight_VD, bias_V, num_positions, dtype=dtype)
        except (RuntimeError, ValueError, TypeError, AssertionError):
            continue  # one that refuses these sizes, or runs out of memory, is no candidate
    if not seconds:
        raise UserError("No softmax implementation ran at this size: there may not be enough memory.")
    return min(seconds, key=seconds.__getitem__), seconds


def _now(device: torch.device) -> float:
    synchronize(device)
    return time.perf_counter()
