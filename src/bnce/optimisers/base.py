"""What every optimiser of a language model has in common: gradients off, equal rows merged, clipped, stepped.

All clip by the norm over all parameters, in which the gradients of equal rows are added up first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from bnce import rows
from bnce.language_model import LanguageModel
from bnce.optimisers.adam import FlatParameters
from bnce.optimisers.clip import Gradients, clip_factor, measure
from bnce.optimisers.merging import merge_gradient
from bnce.registry import OptimiserConfig


class KeptTables(Protocol):
    """Tables that other processes share, or whose gradients come from several groups of streams."""

    kept: dict[str, nn.Parameter]

    def collect(self, body: FlatParameters) -> Tensor:
        """Put the gradients of all groups on the tables, and give the body's."""

    def norm(self, touched: dict[str, tuple[Tensor, Tensor]], dense: dict[str, Tensor], body: Tensor) -> Tensor:
        """Compute the norm over the rows of all processes and the body."""


class Optimiser(ABC):
    """Holds the optimiser's state and applies one step at a time, without making a GPU's host wait."""

    def __init__(
        self,
        model: LanguageModel,
        config: OptimiserConfig,
        *,
        deterministic: bool = False,
        tables: KeptTables | None = None,
    ) -> None:
        """`tables` stand in the place of the model's own, where those are not all there is."""
        self.config, self.deterministic, self._kept = config, deterministic, tables
        self.tables = model.tables() if tables is None else tables.kept
        self.body = FlatParameters(model.body_parameters())
        self.device = model.embedding.device
        self.rate = torch.tensor(config.learning_rate, dtype=torch.float32, device=self.device)
        self.body_learning_rate = getattr(config, "body_learning_rate", config.learning_rate)
        self.body_rate = torch.tensor(self.body_learning_rate, dtype=torch.float32, device=self.device)

    def set_factor(self, factor: float) -> None:
        """Scale the configured rates; a captured step reads them where they are."""
        self.rate.fill_(self.config.learning_rate * factor)
        self.body_rate.fill_(self.body_learning_rate * factor)

    @torch.no_grad()
    def collect(self) -> Gradients:
        """Merge the gradients of equal rows, lay the body's end to end, and measure the norm of the whole."""
        body = self.body.take_gradients() if self._kept is None else self._kept.collect(self.body)
        touched, dense = {}, {}
        for name, table in self.tables.items():
            if table.grad is None:
                continue
            if table.grad.is_sparse:
                table.grad = merge_gradient(table.grad, deterministic=self.deterministic, to_fewer=self._kept is None)
                touched[name] = rows.row_gradients(table.grad)
            else:
                dense[name] = table.grad
        if self._kept is None:
            return measure(touched, dense, body)
        return Gradients(self._kept.norm(touched, dense, body), touched, dense, body)

    @torch.no_grad()
    def apply(self, gradients: Gradients) -> None:
        """Clip, step tables and body, and take the gradients off the tables."""
        self._step(gradients, clip_factor(gradients.norm, self.config.clip_norm))
        for table in self.tables.values():
            table.grad = None

    @abstractmethod
    def _step(self, gradients: Gradients, clip: Tensor) -> None:
        """Step tables and body against their gradients times `clip`."""

    def state_tensors(self) -> dict[str, Tensor]:
        """Name every tensor that a later step depends on."""
        return {}

    def load_state_tensors(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_tensors` returned."""
        for name, tensor in self.state_tensors().items():
            tensor.copy_(state[name])
