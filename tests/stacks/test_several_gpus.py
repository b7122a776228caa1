"""Several GPUs in one process: Triton starts a kernel on the current one, so that must be the tensors' own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import bnce
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
    module.plain = lambda tensor: (tensor.device, list(seen))  # type: ignore[attr-defined]
    module.merge = lambda number: number + len(seen)  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(kernels, "available", lambda device: True)
    monkeypatch.setattr(kernels, "_starts", lambda device: True)
    monkeypatch.setattr(kernels, "_MODULES", {"rows": module})
    return seen


@pytest.mark.parametrize("index", [0, 1])
def test_a_kernel_runs_where_its_tensors_are(index: int, entered: list[torch.device]) -> None:
    tensor = SimpleNamespace(device=torch.device("cuda", index), dtype=torch.float32, is_cuda=True)
    module = kernels.choose("rows", tensor)  # type: ignore[arg-type]
    assert module is not None
    assert module.merge(10) == 10 + index, "the GPU is current before the kernel starts"
    assert entered == [torch.device("cuda", 1)] * index


@pytest.mark.parametrize("index", [0, 1])
def test_a_twin_runs_where_its_first_argument_is(index: int, entered: list[torch.device]) -> None:
    @kernels.with_twin("rows")
    def plain(tensor: torch.Tensor) -> object:
        raise AssertionError("there is a kernel")

    with FakeTensorMode():  # type: ignore[no-untyped-call]
        there = torch.empty(2, device=f"cuda:{index}")
    assert plain(there) == (there.device, [torch.device("cuda", 1)] * index)


def test_parameters_of_several_gpus_are_clipped_and_stepped_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without values refuse, as real ones do, to be computed with those of another GPU."""
    monkeypatch.setattr(kernels, "available", lambda device: False)
    with FakeTensorMode():  # type: ignore[no-untyped-call]
        tables = [torch.nn.Parameter(torch.empty(5, 3, device=f"cuda:{index}")) for index in (0, 1)]
        for table in tables:
            table.grad = torch.empty_like(table)
        bnce.clip_grad_norm_(tables, max_norm=1.0)
        optimiser = bnce.RowwiseAdagrad(tables, lr=0.1)
        optimiser.step()
        for table in tables:
            assert all(value.device == table.device for value in optimiser.state[table].values())
