"""Several GPUs in one process: Triton starts a kernel on the current one, so that must be the tensors' own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import bnce
from bnce import kernels


@pytest.mark.parametrize("index", [0, 1])
def test_a_kernel_runs_where_its_tensors_are(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there are GPUs and that the first is the current one."""
    entered: list[torch.device] = []

    @contextlib.contextmanager
    def device(wanted: torch.device) -> Iterator[None]:
        entered.append(wanted)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    @kernels.on_its_device
    def add(tensors: torch.Tensor | list[torch.Tensor], number: int) -> int:
        return number + len(entered)

    with FakeTensorMode():  # type: ignore[no-untyped-call]
        there = torch.empty(2, device=f"cuda:{index}")
    for first in (there, [there]):
        entered.clear()
        assert add(first, 10) == 10 + index, "the GPU is current before the kernel starts"
        assert entered == [torch.device("cuda", 1)] * index


def test_parameters_of_several_gpus_are_clipped_and_stepped_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without values refuse, as real ones do, to be computed with those of another GPU."""
    monkeypatch.setattr(kernels, "_HAS_TRITON", False)
    with FakeTensorMode():  # type: ignore[no-untyped-call]
        tables = [torch.nn.Parameter(torch.empty(5, 3, device=f"cuda:{index}")) for index in (0, 1)]
        for table in tables:
            table.grad = torch.empty_like(table)
        bnce.clip_grad_norm_(tables, max_norm=1.0)
        optimiser = bnce.RowwiseAdagrad(tables, lr=0.1)
        optimiser.step()
        for table in tables:
            assert all(value.device == table.device for value in optimiser.state[table].values())
