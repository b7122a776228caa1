"""How gradients become steps: the paper's SGD, or row-wise Adagrad on the tables with Adam on the body.

Both clip by the norm over all parameters, in which the gradients of equal rows are added up first.

Legend: V rows of a table, N touched rows, D columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bnce import kernels, rows
from bnce.config import OptimiserConfig
from bnce.language_model import LanguageModel
from bnce.optimisers.adam import Adam, FlatParameters


@dataclass(frozen=True)
class Gradients:
    """One step's gradients, equal rows merged, and their norm."""

    norm: Tensor
    touched: dict[str, tuple[Tensor, Tensor]]  # table → row numbers (N,), merged gradients (N, …)
    dense: dict[str, Tensor]  # table → gradient of every row
    body: Tensor  # laid end to end


class Optimiser:
    """Holds the optimiser's state and applies one step at a time, without making a GPU's host wait."""

    def __init__(self, model: LanguageModel, config: OptimiserConfig, *, deterministic: bool = False) -> None:
        self.config = config
        self.tables = model.tables()
        self.body = FlatParameters(model.body_parameters())
        self.device = model.embedding.device
        self.rate = torch.tensor(config.learning_rate, device=self.device)
        self.body_rate = torch.tensor(config.body_learning_rate, device=self.device)
        self._updates = _RowUpdates(self.tables, deterministic=deterministic)
        self.accumulators: dict[str, Tensor] = {}
        self.adam: Adam | None = None
        if config.name == "rowwise":
            self.accumulators = {
                name: table.detach().new_full((len(table),), config.initial_accumulator)
                for name, table in self.tables.items()
            }
            self.adam = Adam(self.body.flat)

    def set_factor(self, factor: float) -> None:
        """Scale the configured rates; a captured step reads them where they are."""
        self.rate.fill_(self.config.learning_rate * factor)
        self.body_rate.fill_(self.config.body_learning_rate * factor)

    @torch.no_grad()
    def collect(self) -> Gradients:
        """Take the gradients off the parameters, merge equal rows, and measure the norm of the whole."""
        touched, dense = {}, {}
        for name, table in self.tables.items():
            if table.grad is None:
                continue
            if table.grad.is_sparse:
                touched[name] = self._updates.merge(*rows.row_gradients(table.grad))
            else:
                dense[name] = table.grad
            table.grad = None
        body = self.body.take_gradients()
        parts = [body, *(grad for _, grad in touched.values()), *dense.values()]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
        return Gradients(norm, touched, dense, body)

    @torch.no_grad()
    def apply(self, gradients: Gradients) -> None:
        """Clip, then step tables and body."""
        clip = (self.config.clip_norm / (gradients.norm + 1e-6)).clamp(max=1.0)
        if self.adam is None:
            self._apply_sgd(gradients, clip)
        else:
            self._apply_rowwise(gradients, clip)
            self.adam.step(gradients.body, self.body_rate, clip)

    def _apply_sgd(self, gradients: Gradients, clip: Tensor) -> None:
        for name, (words_N, grad_ND) in gradients.touched.items():
            rows.sgd_(self.tables[name], words_N, grad_ND, self.rate, clip)
        for name, grad_VD in gradients.dense.items():
            self.tables[name].sub_(grad_VD.mul_(self.rate * clip))
        self.body.flat.sub_(gradients.body * (self.rate * clip))

    def _apply_rowwise(self, gradients: Gradients, clip: Tensor) -> None:
        for name, (words_N, grad_ND) in gradients.touched.items():
            self._updates.adagrad_(self.tables[name], self.accumulators[name], words_N, grad_ND, self.rate, clip)
        for name, grad_VD in gradients.dense.items():
            self._updates.adagrad_dense_(self.tables[name], self.accumulators[name], grad_VD, self.rate, clip)

    def state_tensors(self) -> dict[str, Tensor]:
        """Name every tensor that a later step depends on."""
        state = {f"accumulator.{name}": tensor for name, tensor in self.accumulators.items()}
        if self.adam is not None:
            state |= {f"body.{name}": tensor for name, tensor in self.adam.state_tensors().items()}
        return state

    def load_state_tensors(self, state: dict[str, Tensor]) -> None:
        """Take back what `state_tensors` gave."""
        for name, tensor in self.state_tensors().items():
            tensor.copy_(state[name])


class _RowUpdates:
    """The plain row functions, or their Triton twins with the scratch memory these need.

    On a GPU both add up equal rows in no fixed order, unless asked to be deterministic: then PyTorch sorts first.
    """

    def __init__(self, tables: Mapping[str, Tensor], *, deterministic: bool) -> None:
        device = next(iter(tables.values())).device
        self.in_order = deterministic and device.type == "cuda"
        self.fast = kernels.available(device) and not deterministic
        if self.fast:
            from bnce.kernels import rows as twin

            self.twin = twin
            # One scratch serves all tables: a merge is over before the next begins.
            size = max(len(table) for table in tables.values())
            self.scratch_V = torch.zeros(size, dtype=torch.int32, device=device)

    def merge(self, words_N: Tensor, values_ND: Tensor) -> tuple[Tensor, Tensor]:
        if self.fast:
            return self.twin.merge(words_N, values_ND, self.scratch_V)
        if not self.in_order:
            return rows.merge(words_N, values_ND)
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            return rows.merge(words_N, values_ND)
        finally:
            torch.use_deterministic_algorithms(before)

    def adagrad_(
        self, table_VD: Tensor, accumulator_V: Tensor, words_N: Tensor, grad_ND: Tensor, rate: Tensor, clip: Tensor
    ) -> None:
        step = self.twin.adagrad_ if self.fast else rows.adagrad_
        step(table_VD, accumulator_V, words_N, grad_ND, rate, clip)

    def adagrad_dense_(
        self, table_VD: Tensor, accumulator_V: Tensor, grad_VD: Tensor, rate: Tensor, clip: Tensor
    ) -> None:
        step = self.twin.adagrad_dense_ if self.fast else rows.adagrad_dense_
        step(table_VD, accumulator_V, grad_VD, rate, clip)


class Schedule:
    """The factor on the learning rates: halved when validation stops improving, or falling to nothing by the end."""

    FLOOR = 0.003  # the last steps of a decay still move

    def __init__(self, config: OptimiserConfig, total_steps: int) -> None:
        self.config, self.total_steps = config, total_steps
        self.warmup_steps = min(config.warmup_steps, total_steps // 2)  # a short run warms up for its first half
        self.halvings = 0
        self.epochs_without_better = 0
        self.best = float("inf")

    def factor(self, step: int) -> float:
        """Compute the factor for the step with this number, counted from 0."""
        if self.config.schedule == "halve":
            return 0.5**self.halvings
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        left = 1.0 - step / self.total_steps
        if self.config.schedule == "cosine":
            left = 0.5 - 0.5 * math.cos(math.pi * left)
        return warm * max(self.FLOOR, left)

    def end_epoch(self, perplexity: float) -> None:
        """Note an epoch's validation perplexity; `patience` epochs without a better one halve the rate."""
        if perplexity < self.best:
            self.best, self.epochs_without_better = perplexity, 0
            return
        self.epochs_without_better += 1
        if self.epochs_without_better >= self.config.patience:
            self.halvings, self.epochs_without_better = self.halvings + 1, 0

    def state(self) -> dict[str, float]:
        """Give what a resumed run must know."""
        return {
            "halvings": self.halvings,
            "epochs_without_better": self.epochs_without_better,
            "best": self.best,
        }

    def load_state(self, state: dict[str, float]) -> None:
        """Take back what `state` gave."""
        self.halvings = int(state["halvings"])
        self.epochs_without_better = int(state["epochs_without_better"])
        self.best = float(state["best"])
