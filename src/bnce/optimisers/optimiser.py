"""The optimisers of a language model: gradients off, added up over groups and processes, clipped, stepped.

The body is small beside the tables: two million numbers in the paper's LTCB models. It lies in one flat buffer, which
makes its norm, its clipping and its step one operation each, whatever the number of layers.

Legend: V rows of a table, N touched rows, D columns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from bnce import kernels, rows
from bnce.language_model import LanguageModel
from bnce.machine.processes import World
from bnce.optimisers.exchange import compact, gather_rows
from bnce.optimisers.gradients import Gradients, Rows, clip_factor, merge_rows
from bnce.optimisers.rowwise import RowwiseAdagrad, RowwiseAdam
from bnce.registry import OptimiserConfig, RowwiseAdagradConfig, RowwiseAdamConfig, load

BETAS = (0.9, 0.99)
EPSILON = 1e-8
INITIAL_ACCUMULATOR = 1e-10  # of row-wise Adagrad, so that the first gradient of a row is never divided by 0
# What is left of the rate when so much of the run is left.
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "cosine": lambda left: 0.5 - 0.5 * math.cos(math.pi * left),
}


def build_optimiser(
    model: LanguageModel, config: OptimiserConfig, world: World | None = None, *, deterministic: bool = False
) -> Optimiser:
    """Build the configured optimiser for a model's parameters, which it takes over."""
    optimiser: Optimiser = load(config.code)(model, config, world or World(), deterministic=deterministic)
    return optimiser


class FlatParameters:
    """Parameters laid end to end in one buffer; the modules go on using them as before."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters.values()])
        begin = 0
        for parameter in self.parameters.values():
            end = begin + parameter.numel()
            parameter.data = self.flat[begin:end].view_as(parameter)
            begin = end

    def take_gradients(self) -> Tensor:
        """Lay the gradients end to end and take them off the parameters; what has none counts as zero."""
        grads = []
        for parameter in self.parameters.values():
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            grads.append(grad.reshape(-1))
            parameter.grad = None
        return torch.cat(grads)


class Optimiser(ABC):
    """Holds the optimiser's state and applies one step at a time, without making a GPU's host wait."""

    def __init__(
        self, model: LanguageModel, config: OptimiserConfig, world: World, *, deterministic: bool = False
    ) -> None:
        """Results do not depend on the number of processes to the last bit if they are to be `deterministic`."""
        self.config, self.world, self.deterministic = config, world, deterministic
        self.tables = model.tables()
        self.body = FlatParameters(model.body_parameters())
        self.device = model.embedding.device
        # How many words of the text a group's step has, and at most how many different ones, where that was counted.
        self.words_of_text: tuple[int, int] | None = None
        self.rate = torch.tensor(config.learning_rate, dtype=torch.float32, device=self.device)

    def set_factor(self, factor: float) -> None:
        """Scale the configured rate; a captured step reads it where it is."""
        self.rate.fill_(self.config.learning_rate * factor)

    @torch.no_grad()
    def take(self) -> Gradients:
        """Take the gradients of one group of streams off the parameters."""
        touched, dense = {}, {}
        for name, table in self.tables.items():
            if (grad := table.grad) is None:
                continue
            if grad.is_sparse:
                touched[name] = rows.row_gradients(grad)
            else:
                dense[name] = grad
            table.grad = None
        return Gradients(touched, dense, self.body.take_gradients())

    @torch.no_grad()
    def reduce(self, parts: Sequence[Gradients]) -> Gradients:
        """Add up the gradients of this process's groups and of all processes, equal rows too; all get the same."""
        sizes = {name: len(self.tables[name]) for name in parts[0].rows}
        touched = {name: self._add_rows([part.rows[name] for part in parts], size) for name, size in sizes.items()}
        dense = {name: self._add_up([part.dense[name] for part in parts]) for name in parts[0].dense}
        return Gradients(touched, dense, self._add_up([part.body for part in parts]))

    def _add_rows(self, parts: list[Rows], num_rows: int) -> Rows:
        num_groups = 1
        if len(parts) > 1 and not self.deterministic:
            num_groups = len(parts)
            words, values = zip(*parts, strict=True)
            parts = [(torch.cat(words), torch.cat(values))]
        exchanges = len(parts) > 1 or not self.world.is_alone
        fixed = exchanges and self.device.type == "cuda"
        if not fixed or self.deterministic:
            parts = [merge_rows(*part, num_rows, deterministic=self.deterministic) for part in parts]
        if fixed:
            parts = [compact(*part, num_rows, self._capacity(len(part[0]), num_rows, num_groups)) for part in parts]
        return gather_rows(parts, self.world, num_rows, fixed=fixed) if exchanges else parts[0]

    def _capacity(self, num_gathered: int, num_rows: int, num_groups: int) -> int:
        """Bound the different rows that a step gathers: of words of the text, and of others, such as drawn ones."""
        num_words, num_different = self.words_of_text or (0, 0)
        others = max(0, num_gathered - num_groups * num_words)
        return min(num_gathered, num_rows, num_groups * num_different + others)

    def _add_up(self, parts: list[Tensor]) -> Tensor:
        if len(parts) == 1 and self.world.is_alone:
            return parts[0]
        if self.deterministic:
            parts = list(self.world.gather(torch.stack(parts)).flatten(0, 1))
        total = parts[0]
        for other in parts[1:]:
            total += other
        return total if self.deterministic else self.world.sum_(total)

    @torch.no_grad()
    def apply(self, gradients: Gradients) -> None:
        """Clip, then step tables and body."""
        self._step(gradients, clip_factor(gradients.norm, self.config.clip_norm))

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


class Sgd(Optimiser):
    """The paper's stochastic gradient descent, one rate for tables and body; it keeps nothing from step to step."""

    def _step(self, gradients: Gradients, clip: Tensor) -> None:
        for name, (words_N, grad_ND) in gradients.rows.items():
            rows.sgd_(self.tables[name], words_N, grad_ND, self.rate, clip)
        for name, grad_VD in gradients.dense.items():
            self.tables[name].sub_(grad_VD.mul_(self.rate * clip))
        self.body.flat.sub_(gradients.body * (self.rate * clip))


class Rowwise(Optimiser):
    """Adagrad or Adam by row on the tables, and Adam on the body, with one factor on their rates."""

    config: RowwiseAdagradConfig | RowwiseAdamConfig

    def __init__(
        self, model: LanguageModel, config: OptimiserConfig, world: World, *, deterministic: bool = False
    ) -> None:
        super().__init__(model, config, world, deterministic=deterministic)
        self.body_rate = torch.tensor(self.config.body_learning_rate, dtype=torch.float32, device=self.device)
        tables, lr = self.tables.values(), self.rate  # which a captured step reads where it is
        self.by_row = (
            RowwiseAdam(tables, lr, eps=self.config.eps, deterministic=deterministic)
            if isinstance(self.config, RowwiseAdamConfig)
            else RowwiseAdagrad(tables, lr, initial_accumulator=INITIAL_ACCUMULATOR, deterministic=deterministic)
        )
        self.by_row.start()
        self.mean, self.square = torch.zeros_like(self.body.flat), torch.zeros_like(self.body.flat)
        self.count = torch.zeros((), dtype=torch.float32, device=self.device)

    def set_factor(self, factor: float) -> None:
        """Scale both configured rates."""
        super().set_factor(factor)
        self.body_rate.fill_(self.config.body_learning_rate * factor)

    def _step(self, gradients: Gradients, clip: Tensor) -> None:
        (group,) = self.by_row.param_groups
        for name, (words_N, grad_ND) in gradients.rows.items():
            self.by_row.step_table(self.tables[name], words_N, grad_ND, group, clip)
        for name, grad_VD in gradients.dense.items():
            self.by_row.step_table(self.tables[name], None, grad_VD, group, clip)
        self.count += 1
        body = self.body.flat, gradients.body, self.mean, self.square
        adam_(*body, self.count, self.body_rate, clip, BETAS)

    def state_tensors(self) -> dict[str, Tensor]:
        """Name every tensor that a later step depends on."""
        of_tables = {
            f"{key}.{name}": tensor
            for name, table in self.tables.items()
            for key, tensor in self.by_row.state[table].items()
        }
        return {**of_tables, "body.mean": self.mean, "body.square": self.square, "body.count": self.count}


def adam_(
    parameter: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    count: Tensor,
    rate: Tensor,
    clip: Tensor,
    betas: tuple[float, float],
) -> None:
    """Clip and step flat parameters by Adam; `count` is the number of this step, from 1."""
    if kernels.usable(parameter):
        from bnce.kernels.elementwise import adam_ as fast

        fast(parameter, grad, mean, square, count, rate, clip, betas)
        return
    grad = grad * clip
    mean.lerp_(grad, 1 - betas[0])
    square.mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])
    first_total, second_total = (1 - beta**count for beta in betas)
    parameter.sub_((mean * (rate / first_total)).div_((square / second_total).sqrt_().add_(EPSILON)))


class Schedule:
    """The factor on the learning rates: halved when validation stops improving, or falling to nothing by the end."""

    FLOOR = 0.003  # the last steps of a decay still move

    def __init__(self, config: OptimiserConfig, total_steps: int) -> None:
        self.config = config
        self.set_total_steps(total_steps)
        self.halvings, self.epochs_without_better, self.best = 0, 0, math.inf

    def set_total_steps(self, total_steps: int) -> None:
        """Fit the decay to the length of the run, which is an estimate where that depends on the speed."""
        self.total_steps = total_steps
        self.warmup_steps = min(self.config.warmup_steps, total_steps // 2)  # a short run warms up for its first half

    def factor(self, step: int) -> float:
        """Compute the factor for the step with this number, counted from 0."""
        if self.config.schedule == "halve":
            return 0.5**self.halvings
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        left = DECAYS[self.config.schedule](1.0 - step / self.total_steps)
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
        """Give what a resumed run needs."""
        return {"halvings": self.halvings, "epochs_without_better": self.epochs_without_better, "best": self.best}

    def load_state(self, state: dict[str, float]) -> None:
        """Restore what `state` returned."""
        self.halvings, self.epochs_without_better = int(state["halvings"]), int(state["epochs_without_better"])
        self.best = float(state["best"])
