"""How gradients become steps: the paper's SGD, or row-wise Adagrad on the tables with Adam on the body.

Both clip by the norm over all parameters, in which the gradients of equal rows are added up first.

Legend: V rows of a table, N touched rows, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnce import rows
from bnce.config import OptimiserConfig
from bnce.language_model import LanguageModel


@dataclass(frozen=True)
class Gradients:
    """One step's gradients, equal rows merged, and their norm."""

    norm: Tensor
    touched: dict[str, tuple[Tensor, Tensor]]  # table → row numbers (N,), merged gradients (N, …)
    dense: dict[str, Tensor]  # table → gradient of every row
    body: list[Tensor]


class Optimiser:
    """Holds the optimiser's state and applies one step at a time."""

    def __init__(self, model: LanguageModel, config: OptimiserConfig) -> None:
        self.config = config
        self.tables = model.tables()
        self.body = model.body_parameters()
        self.accumulators: dict[str, Tensor] = {}
        self.body_optimiser: torch.optim.Optimizer
        body = list(self.body.values())
        if config.name == "sgd":
            self.body_optimiser = torch.optim.SGD(body, lr=config.learning_rate)
        else:
            self.accumulators = {name: table.new_zeros(len(table)) for name, table in self.tables.items()}
            self.body_optimiser = torch.optim.Adam(body, lr=config.body_learning_rate, betas=(0.9, 0.99))
        self._base_rate = self.body_optimiser.param_groups[0]["lr"]

    @torch.no_grad()
    def collect(self) -> Gradients:
        """Take the gradients off the parameters, merge equal rows, and measure the norm of the whole."""
        touched, dense = {}, {}
        for name, table in self.tables.items():
            if table.grad is None:
                continue
            if table.grad.is_sparse:
                touched[name] = rows.merge(*rows.row_gradients(table.grad))
            else:
                dense[name] = table.grad
            table.grad = None
        body = [parameter.grad for parameter in self.body.values() if parameter.grad is not None]
        parts = [grad for _, grad in touched.values()] + list(dense.values()) + body
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
        return Gradients(norm, touched, dense, body)

    @torch.no_grad()
    def apply(self, gradients: Gradients, factor: float) -> None:
        """Clip, then step tables and body at `factor` times the configured rates."""
        clip = (self.config.clip_norm / (gradients.norm + 1e-6)).clamp(max=1.0)
        rate = torch.as_tensor(self.config.learning_rate * factor, device=clip.device)
        for name, (words_N, grad_ND) in gradients.touched.items():
            grad_ND.mul_(clip)
            if self.config.name == "sgd":
                rows.sgd_(self.tables[name], words_N, grad_ND, rate)
            else:
                rows.adagrad_(self.tables[name], self.accumulators[name], words_N, grad_ND, rate)
        for name, grad_VD in gradients.dense.items():
            grad_VD.mul_(clip)
            if self.config.name == "sgd":
                self.tables[name].sub_(grad_VD.mul_(rate))
            else:
                rows.adagrad_dense_(self.tables[name], self.accumulators[name], grad_VD, rate)
        torch._foreach_mul_(gradients.body, clip)
        for group in self.body_optimiser.param_groups:
            group["lr"] = self._base_rate * factor
        self.body_optimiser.step()
        self.body_optimiser.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """Name every tensor that a later step depends on."""
        state = {f"accumulator.{name}": tensor for name, tensor in self.accumulators.items()}
        for name, parameter in self.body.items():
            for key, value in self.body_optimiser.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    state[f"body.{name}.{key}"] = value
        return state

    def load_state_tensors(self, state: dict[str, Tensor]) -> None:
        """Take back what `state_tensors` gave."""
        for name, accumulator_V in self.accumulators.items():
            accumulator_V.copy_(state[f"accumulator.{name}"])
        for name, parameter in self.body.items():
            prefix = f"body.{name}."
            values = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            for key, value in values.items():
                # Adam counts its steps on the host. A copy, so that steps do not change what was given.
                device = value.device if key == "step" else parameter.device
                self.body_optimiser.state[parameter][key] = value.to(device, copy=True)


class Schedule:
    """The factor on the learning rates: halved when validation stops improving, or falling linearly to nothing."""

    FLOOR = 0.003  # the last steps of a linear decay still move

    def __init__(self, config: OptimiserConfig, total_steps: int) -> None:
        self.config, self.total_steps = config, total_steps
        self.halvings = 0
        self.epochs_without_better = 0
        self.best = float("inf")

    def factor(self, step: int) -> float:
        """Compute the factor for the step with this number, counted from 0."""
        if self.config.schedule == "halve":
            return 0.5**self.halvings
        warm = min(1.0, (step + 1) / self.config.warmup_steps) if self.config.warmup_steps else 1.0
        return warm * max(self.FLOOR, 1.0 - step / self.total_steps)

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
