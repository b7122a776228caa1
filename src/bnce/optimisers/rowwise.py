"""Row-wise Adagrad on the tables, one accumulator per row, with Adam on the body.

Legend: V rows of a table, N touched rows, D columns.
"""

from __future__ import annotations

from torch import Tensor

from bnce.config import OptimiserConfig
from bnce.language_model import LanguageModel
from bnce.optimisers.adam import Adam
from bnce.optimisers.base import Optimiser
from bnce.optimisers.clip import Gradients
from bnce.optimisers.row_optimizers import RowwiseAdagrad


class Rowwise(Optimiser):
    """Both, with one factor on their rates."""

    def __init__(self, model: LanguageModel, config: OptimiserConfig, *, deterministic: bool = False) -> None:
        super().__init__(model, config, deterministic=deterministic)
        start = config.initial_accumulator
        self.adagrad = RowwiseAdagrad(
            self.tables.values(), self.rate, initial_accumulator=start, deterministic=deterministic
        )
        self.adagrad.start()
        self.adam = Adam(self.body.flat)

    def _step(self, gradients: Gradients, clip: Tensor) -> None:
        self.adagrad.step(clip=clip)
        self.adam.step(gradients.body, self.body_rate, clip)

    def state_tensors(self) -> dict[str, Tensor]:
        """Name every tensor that a later step depends on."""
        state = {f"accumulator.{name}": self.adagrad.state[table]["accumulator"] for name, table in self.tables.items()}
        return state | {f"body.{name}": tensor for name, tensor in self.adam.state_tensors().items()}
