"""Several GPUs in one process: Triton starts a kernel on the current one, so that must be the tensors' own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch

from bnce import kernels


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Pretend that there are GPUs and that the first is the current one; collects those that are made current."""
    seen: list[torch.device] = []

    @contextlib.contextmanager
    def device(wanted: torch.device) -> Iterator[None]:
        seen.append(wanted)
        yield

    module = ModuleType("bnce.kernels.rows")
    module.merge = lambda number: number + len(seen)  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(kernels, "available", lambda device: True)
    monkeypatch.setattr(kernels, "_MODULES", {"rows": module})
    return seen


@pytest.mark.parametrize("index", [0, 1])
def test_a_kernel_runs_where_its_tensors_are(index: int, entered: list[torch.device]) -> None:
    tensor = SimpleNamespace(device=torch.device("cuda", index), dtype=torch.float32, is_cuda=True)
    module = kernels.choose("rows", tensor)  # type: ignore[arg-type]
    assert module is not None
    assert module.merge(10) == 10 + index, "the GPU is current before the kernel starts"
    assert entered == [torch.device("cuda", 1)] * index
