"""One rule by row on the tables, with Adam on the body.

Legend: V rows of a table, N touched rows, D columns.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from bnce.language_model import LanguageModel
from bnce.optimisers.adam import Adam
from bnce.optimisers.base import KeptTables, Optimiser
from bnce.optimisers.clip import Gradients
from bnce.optimisers.row_optimizers import RowOptimizer, RowwiseAdagrad, RowwiseAdam
from bnce.registry import OptimiserConfig


class Rowwise(Optimiser):
    """Both, with one factor on their rates."""

    def __init__(
        self,
        model: LanguageModel,
        config: OptimiserConfig,
        *,
        deterministic: bool = False,
        tables: KeptTables | None = None,
    ) -> None:
        super().__init__(model, config, deterministic=deterministic, tables=tables)
        self.by_row = self._build_by_row()
        self.by_row.start()
        self.adam = Adam(self.body.flat)

    @abstractmethod
    def _build_by_row(self) -> RowOptimizer:
        """Build what steps the tables; its rate is `self.rate`, which a captured step reads where it is."""

    def _step(self, gradients: Gradients, clip: Tensor) -> None:
        self.by_row.step(clip=clip)
        self.adam.step(gradients.body, self.body_rate, clip)

    def state_tensors(self) -> dict[str, Tensor]:
        """Name every tensor that a later step depends on."""
        of_tables = {
            f"{key}.{name}": tensor
            for name, table in self.tables.items()
            for key, tensor in self.by_row.state[table].items()
        }
        return of_tables | {f"body.{name}": tensor for name, tensor in self.adam.state_tensors().items()}


INITIAL_ACCUMULATOR = 1e-10  # so that the first gradient of a row is never divided by 0


class AdagradByRow(Rowwise):
    """Row-wise Adagrad on the tables: one accumulator per row."""

    def _build_by_row(self) -> RowOptimizer:
        return RowwiseAdagrad(
            self.tables.values(),
            self.rate,
            initial_accumulator=INITIAL_ACCUMULATOR,
            deterministic=self.deterministic,
        )


class AdamByRow(Rowwise):
    """Row-wise Adam on the tables: one second moment per row, which decays with every step, touched or not."""

    def _build_by_row(self) -> RowOptimizer:
        return RowwiseAdam(
            self.tables.values(),
            self.rate,
            eps=self.config.eps,  # type: ignore[attr-defined]
            deterministic=self.deterministic,
        )
