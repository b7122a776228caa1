"""Row-wise Adagrad on the tables, one accumulator per row, with Adam on the body.

Legend: V rows of a table, N touched rows, D columns.
"""

from __future__ import annotations

from torch import Tensor

from bnce import kernels, rows
from bnce.config import OptimiserConfig
from bnce.language_model import LanguageModel
from bnce.optimisers.adam import Adam
from bnce.optimisers.base import Optimiser
from bnce.optimisers.clip import Gradients


class Rowwise(Optimiser):
    """Holds the accumulators of every table and Adam's means."""

    def __init__(self, model: LanguageModel, config: OptimiserConfig, *, deterministic: bool = False) -> None:
        super().__init__(model, config, deterministic=deterministic)
        self.accumulators = {
            name: table.detach().new_full((len(table),), config.initial_accumulator)
            for name, table in self.tables.items()
        }
        self.adam = Adam(self.body.flat)
        updates = kernels.choose("rows", self.body.flat, deterministic=deterministic) or rows
        self._adagrad_, self._adagrad_dense_ = updates.adagrad_, updates.adagrad_dense_

    def _step(self, gradients: Gradients, clip: Tensor) -> None:
        for name, (words_N, grad_ND) in gradients.touched.items():
            self._adagrad_(self.tables[name], self.accumulators[name], words_N, grad_ND, self.rate, clip)
        for name, grad_VD in gradients.dense.items():
            self._adagrad_dense_(self.tables[name], self.accumulators[name], grad_VD, self.rate, clip)
        self.adam.step(gradients.body, self.body_rate, clip)

    def state_tensors(self) -> dict[str, Tensor]:
        """Name every tensor that a later step depends on."""
        state = {f"accumulator.{name}": tensor for name, tensor in self.accumulators.items()}
        return state | {f"body.{name}": tensor for name, tensor in self.adam.state_tensors().items()}
