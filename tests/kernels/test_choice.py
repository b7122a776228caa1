"""Where a kernel takes the place of a plain function, and where it must not."""

from __future__ import annotations

import pytest
import torch

from bnce import kernels
from bnce.losses.chunk_nce import loss_and_gradient_

ALWAYS = {
    "adam",
    "batch_nce",
    "chunk_nce",
    "chunk_softmax",
    "clip",
    "drawn_columns",
    "merged_chunk_nce",
    "rows",
    "targets",
}
ALWAYS |= {"working_rows"}
NAMES = sorted(ALWAYS | {"dense", "log_normaliser", "recurrence", "softmax", "target_scores"})


def chosen(tensor: torch.Tensor, *, deterministic: bool = False) -> set[str]:
    return {name for name in NAMES if kernels.choose(name, tensor, deterministic=deterministic) is not None}


def test_every_kernel_has_its_condition(device: torch.device) -> None:
    tensor = torch.zeros(2, device=device)
    assert chosen(tensor) == ALWAYS
    assert chosen(tensor.to(torch.bfloat16)) == ALWAYS | {"softmax"}
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert chosen(tensor) == ALWAYS | {"dense", "recurrence"}
    with torch.no_grad():
        assert chosen(tensor) == ALWAYS | ({"log_normaliser", "target_scores"} if device.type == "cuda" else set())
    assert "rows" not in chosen(tensor, deterministic=True)


def test_without_triton_everything_is_plain(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_HAS_TRITON", False)
    tensor = torch.zeros(2, dtype=torch.bfloat16, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert chosen(tensor) == set()


def test_a_twin_stands_in_for_its_plain_function(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    product_RN, numbers_N = torch.randn(3, 3, device=device), torch.zeros(3, device=device)
    from bnce.kernels import chunk_nce

    monkeypatch.setattr(chunk_nce, "loss_and_gradient_", lambda *arguments: arguments)
    arguments = product_RN, numbers_N, numbers_N.int(), numbers_N, 0
    assert loss_and_gradient_(*arguments) == arguments
    monkeypatch.setattr(kernels, "available", lambda device: False)
    assert loss_and_gradient_(*arguments).shape == ()


def test_every_module_is_known(device: torch.device) -> None:
    kernels.choose("adam", torch.zeros(1, device=device))
    assert sorted(kernels._MODULES) == NAMES
