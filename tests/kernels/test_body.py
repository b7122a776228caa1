"""Adam over a flat buffer, the norm of gradients, and the dense ReLu layer, against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bnce.kernels import elementwise as fast
from bnce.kernels.dense import dense_relu
from bnce.optimisers.gradients import clip_factor
from bnce.optimisers.optimiser import BETAS, adam_

Check = Callable[[Tensor, Tensor, Tensor], None]


def test_adam_equals_torch(device: torch.device, no_worse: Check) -> None:
    start = torch.randn(3000, device=device)
    found = start.clone()
    mean, square, count = torch.zeros_like(found), torch.zeros_like(found), torch.zeros((), device=device)
    rate, clip = torch.tensor(0.01, device=device), torch.tensor(0.5, device=device)
    theirs = [start.to(dtype, copy=True).requires_grad_() for dtype in (torch.float32, torch.float64)]
    optimisers = [torch.optim.Adam([parameter], lr=0.01, betas=BETAS) for parameter in theirs]
    for _ in range(5):
        grad = torch.randn(3000, device=device)
        count += 1
        adam_(found, grad, mean, square, count, rate, clip, BETAS)
        for parameter, optimiser in zip(theirs, optimisers, strict=True):
            parameter.grad = (0.5 * grad).to(parameter.dtype)
            optimiser.step()
    no_worse(found - start, theirs[0].detach() - start, theirs[1].detach() - start.double())


def test_the_norm_is_over_all_parts(device: torch.device, no_worse: Check) -> None:
    parts = [torch.randn(*shape, device=device) for shape in ((3 * fast.PIECE + 5,), (7, 3), (1,), (0, 4))]
    parts.append(torch.randn(6, 9, device=device)[:, :5])  # rows with others between them
    found = [fast.total_norm(some) for some in (parts, parts[:1], parts[3:4])]
    expected, exact = (
        [torch.cat([part.to(dtype).flatten() for part in some]).norm() for some in (parts, parts[:1], parts[3:4])]
        for dtype in (torch.float32, torch.float64)
    )
    for one in zip(found, expected, exact, strict=True):
        no_worse(*one)


def test_a_norm_that_is_no_number_is_not_clipped_to_one(device: torch.device) -> None:
    for norm in (0.0, 0.5, 4.0, float("inf"), float("nan")):
        given = torch.tensor(norm, device=device)
        plain = clip_factor(given.double(), 2.0)  # in float64 there is no kernel
        torch.testing.assert_close(fast.clip_factor(given, 2.0), plain.float(), equal_nan=True)


def test_dense_relu_ignores_padding(device: torch.device, no_worse: Check) -> None:
    layer = nn.Linear(6, 4).to(device)
    inputs = torch.randn(3, 5, 6, device=device)
    wide = torch.nn.functional.pad(inputs, (0, 2)).requires_grad_()
    grad = torch.randn(3, 5, 4, device=device)
    output = dense_relu(wide, layer.weight, layer.bias)
    fast = [output, *torch.autograd.grad(output, [wide, layer.weight, layer.bias], grad)]
    fast[1] = fast[1][..., :6]
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in (inputs, layer.weight, layer.bias)]
        expected = torch.relu(nn.functional.linear(*leaves))
        results.append([expected, *torch.autograd.grad(expected, leaves, grad.to(dtype))])
    for parts in zip(fast, *results, strict=True):
        no_worse(*parts)


def test_what_is_not_a_number_goes_through_a_dense_layer(device: torch.device) -> None:
    """On a GPU, too, where cuBLAS would make it zero: a body that blew up must show in the loss."""
    layer = nn.Linear(64, 32).to(device)
    inputs = torch.randn(128, 64, device=device)
    inputs[3, 5] = torch.nan
    with torch.autocast(device.type, dtype=torch.bfloat16):
        output = dense_relu(inputs, layer.weight, layer.bias)
    assert output[3].isnan().all()
    assert output[torch.arange(128, device=device) != 3].isfinite().all()
