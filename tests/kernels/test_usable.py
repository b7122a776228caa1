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


def test_kernels_compute_in_float32(device: torch.device) -> None:
    assert kernels.usable(torch.zeros(2, device=device))
    assert kernels.usable(torch.zeros(2, dtype=torch.bfloat16, device=device))
    assert not kernels.usable(torch.zeros(2, dtype=torch.float64, device=device))


def test_narrow_products_need_autocast(device: torch.device) -> None:
    tensor = torch.zeros(2, device=device)
    assert not kernels.usable(tensor, autocast=True)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert kernels.usable(tensor, autocast=True)
        assert not kernels.usable(tensor.double(), autocast=True)


def test_a_compiler_gets_plain_functions(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not kernels.usable(torch.zeros(2, device=device))


def test_without_triton_everything_is_plain(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_HAS_TRITON", False)
    assert not kernels.usable(torch.zeros(2, device=device))


@pytest.mark.parametrize(("value", "expected"), [("0", "False"), ("1", "True")])
def test_a_variable_makes_everything_plain(value: str, expected: str) -> None:
    program = "from bnce import kernels; import torch; print(kernels.usable(torch.zeros(2)))"
    environment = {**os.environ, "BNCE_TRITON": value, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == expected, done.stderr


@pytest.fixture
def on_gpu(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give what looks like a tensor of a GPU on which nothing was started yet."""
    monkeypatch.setattr(kernels, "_IS_INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    kernels._starts.cache_clear()
    yield SimpleNamespace(is_cuda=True, device=device, dtype=torch.float32)
    kernels._starts.cache_clear()


def test_a_gpu_takes_kernels_only_where_they_start(on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bnce.kernels import elementwise

    failure: list[Exception] = []

    def fail(*arguments: object) -> None:
        raise failure[-1]

    assert kernels.usable(on_gpu)
    kernels._starts.cache_clear()
    monkeypatch.setattr(elementwise, "clip_factor", fail)
    failure.append(torch.OutOfMemoryError())
    with pytest.raises(torch.OutOfMemoryError):  # which is not taken for a missing compiler
        kernels.usable(on_gpu)
    failure.append(RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nMore."))
    with pytest.warns(RuntimeWarning, match=r"kernels do not start on .* Failed to find C compiler\. .* variable\.$"):
        assert not kernels.usable(on_gpu)
    assert not kernels.usable(on_gpu), "which is told once"
