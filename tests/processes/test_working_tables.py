"""The rows of a step: what groups leave for the optimiser."""

from __future__ import annotations

import pytest
from torch import Tensor

from benchmarks import losses
from bnce.machine.processes import World
from bnce.optimisers.adam import FlatParameters
from bnce.processes.working_tables import WorkingTables

from .equal_steps import G, train


@pytest.mark.usefixtures("losses_of_its_own")
def test_sparse_gradients_of_groups_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would merge those of several groups by sorting, which a captured step cannot do."""
    seen: list[list[bool]] = []
    collect = WorkingTables.collect

    def look(self: WorkingTables, body: FlatParameters) -> Tensor:
        seen.append([grad is not None and grad.is_sparse for grads in self._whole for grad in grads])
        return collect(self, body)

    monkeypatch.setattr(WorkingTables, "collect", look)
    losses.register()
    train(World(), loss="hierarchical-softmax", optimiser="rowwise", in_order=False, num_steps=1)
    assert seen == [[True] * (2 * G)], "weight and bias of every group"
