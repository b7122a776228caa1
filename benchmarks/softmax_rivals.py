"""Time exact softmaxes that a user can install today, side by side, on an NVIDIA GPU of the Hopper kind.

    git worktree add build/old c547e02
    PYTHONPATH=build/old/src python benchmarks/softmax_rivals.py

Ours, PyTorch's compiled and its plain one are timed as version 0.2.0 timed them before a run. Liger's two functions
(liger-kernel 0.8.5 or newer; the CuTe one needs nvidia-cutlass-dsl) get bf16 weights without a bias, as they want them.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from bnce.losses.softmax_forms import fastest  # type: ignore[import-not-found]  # of commit c547e02
from torch import Tensor

SHAPES = ((80_128, 400, 8_064), (80_128, 2_048, 8_064), (793_600, 600, 10_112))  # V, D, positions
ROUNDS, PASSES = 7, 3


def measure_ms(run: Callable[[], object]) -> float:
    """Time one pass: the median of several rounds, after some that warm up."""
    for _ in range(PASSES):
        run()
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(PASSES):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / PASSES)
    return statistics.median(times)


def liger_functions() -> dict[str, Callable[..., Any]]:
    """Find Liger's fused softmax, by Triton and by CuTe."""
    from liger_kernel.ops.cutedsl.ops.fused_linear_cross_entropy_sm90 import liger_fused_linear_cross_entropy_sm90
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    by_triton = LigerFusedLinearCrossEntropyFunction.apply
    return {"Liger, CuTe": liger_fused_linear_cross_entropy_sm90, "Liger, Triton": lambda *given: by_triton(*given)[0]}


def one_pass(function: Callable[..., Any], hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> None:
    """Compute a loss and its gradients."""
    hidden_ND.grad = weight_VD.grad = None
    function(hidden_ND, weight_VD, target_N).backward()


def main() -> None:
    """Print a line per shape."""
    for V, D, N in SHAPES:
        torch.manual_seed(0)
        weight_VD, bias_V = 0.05 * torch.randn(V, D, device="cuda"), torch.zeros(V, device="cuda")
        hidden_ND = torch.randn(N, D, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        target_N = torch.randint(V, (N,), device="cuda")
        _, seconds = fastest(weight_VD, bias_V, N, dtype=torch.bfloat16)
        times = {name: 1000 * time for name, time in seconds.items()}
        narrow_VD = weight_VD.to(torch.bfloat16).requires_grad_()
        for name, function in liger_functions().items():
            times[name] = measure_ms(functools.partial(one_pass, function, hidden_ND, narrow_VD, target_N))
        print(f"{V:,} x {D:,} x {N:,}: " + ", ".join(f"{name} {time:.2f} ms" for name, time in times.items()))


if __name__ == "__main__":
    main()
