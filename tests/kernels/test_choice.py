"""Where a kernel takes the place of a plain function, and where it must not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bnce import kernels
from bnce.losses.chunk_nce import loss_and_gradient_

ALWAYS = {"adam", "batch_nce", "chunk_nce", "chunk_softmax", "clip", "merged_chunk_nce", "rows", "sampled_softmax"}
ALWAYS |= {"targets"}
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


def test_a_variable_makes_everything_plain() -> None:
    program = "from bnce import kernels; import torch; print(kernels.available(torch.device('cuda')))"
    for value, expected in (("0", "False"), ("1", "True")):
        done = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "BNCE_TRITON": value}, capture_output=True, text=True
        )
        assert done.stdout.strip() == expected, done.stderr


@pytest.fixture
def on_gpu(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give what looks like a tensor of a GPU on which nothing was started yet."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device.index)
    kernels._starts.cache_clear()
    yield SimpleNamespace(is_cuda=True, device=device, dtype=torch.float32)
    kernels._starts.cache_clear()


def test_a_gpu_takes_kernels_only_where_they_start(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bnce.kernels import clip

    failure: list[Exception] = []

    def fail(*arguments: object) -> None:
        raise failure[-1]

    assert kernels.choose("adam", on_gpu) is not None
    kernels._starts.cache_clear()
    monkeypatch.setattr(clip, "clip_factor", fail)
    failure.append(torch.OutOfMemoryError())
    with pytest.raises(torch.OutOfMemoryError):  # which is not taken for a missing compiler
        kernels.choose("adam", on_gpu)
    failure.append(RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nMore."))
    with pytest.warns(RuntimeWarning, match=r"kernels do not start on .* Failed to find C compiler\. .* variable\.$"):
        assert kernels.choose("adam", on_gpu) is None
    assert kernels.choose("rows", on_gpu) is None, "which is told once"


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
