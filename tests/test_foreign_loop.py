"""A loop that is not ours: a step costs what it touches, so nothing in it has as many rows as the vocabulary.

Legend: T time steps, B streams, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from making import layer_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bnce

T, B, D, V = 4, 6, 8, 5003  # no other size is V


class Watch(TorchDispatchMode):
    """Notes every operation that makes a tensor with V of anything that was not there before."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.storages = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.numel() < V:
                continue  # a sparse gradient says that its table has V rows, and holds those that were touched
            if tensor.untyped_storage().data_ptr() not in self.storages:
                self.made.append(f"{func} {tuple(tensor.shape)}")
        return out


class Loop:
    """An embedding, a body and the layer, each with the optimiser that a user would take."""

    def __init__(
        self,
        loss: str = "bnce",
        *,
        sparse: bool = True,
        clip: Callable[..., Tensor] | None = None,
        noise: bnce.Noise | None = None,
    ) -> None:
        torch.manual_seed(1)
        self.embedding = nn.Embedding(V, D, sparse=sparse)
        self.body = nn.Linear(D, D)
        num_noise = 3 if loss in ("nce", "snce", "adaptive") else 0
        name = "bnce" if loss == "adaptive" else loss
        self.layer = layer_of(D, V, noise or range(V, 0, -1), name, num_noise=num_noise, sparse=sparse)
        self.tables = [self.embedding.weight, self.layer.weight, self.layer.bias]
        self.by_row = bnce.RowwiseAdam(self.tables, lr=0.01)
        self.by_adam = torch.optim.Adam(self.body.parameters(), lr=0.01)
        self.clip = clip or bnce.clip_grad_norm_

    def step(self) -> None:
        words = torch.randint(V, (T + 1, B))
        loss = self.layer(self.body(self.embedding(words[:-1])), words[1:])
        loss.backward()
        self.clip([*self.tables, *self.body.parameters()], 1.0)
        for optimiser in (self.by_row, self.by_adam):
            optimiser.step()
            optimiser.zero_grad()

    def watched_step(self) -> list[str]:
        """Give what the third step makes of V rows; the first makes the optimiser's state."""
        self.step()
        self.step()
        state = [value for of_table in self.by_row.state.values() for value in of_table.values()]
        known = [*self.tables, *self.layer.buffers(), *(value for value in state if isinstance(value, Tensor))]
        with Watch(known) as watch:
            self.step()
        return watch.made


@pytest.mark.parametrize("loss", ["bnce", "adaptive", "chunk-bnce", "nce", "snce"])
def test_no_step_makes_a_tensor_of_v_rows(loss: str) -> None:
    assert Loop(loss).watched_step() == []


def test_nor_does_one_that_counts_its_noise() -> None:
    """Between two renewals of ln p_n, which take a pass over the vocabulary: after the second step and the fourth."""
    assert Loop(noise=bnce.noise.Running(V)).watched_step() == []


def test_the_watch_sees_dense_gradients_and_norms() -> None:
    """Or the test above could not fail."""
    assert any("5003, 8" in made for made in Loop(sparse=False).watched_step())

    def dense_norm(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return torch.stack([grad.to_dense().norm() for grad in grads]).norm()

    assert any("5003, 8" in made for made in Loop(clip=dense_norm).watched_step())
