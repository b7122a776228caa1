"""Optimisers for tables of which a step touches only some rows, as `torch.optim` has them.

`RowwiseAdagrad` keeps one number per row and `RowwiseAdam` two. A sparse gradient (`OutputLayer(..., sparse=True)`,
`nn.Embedding(..., sparse=True)`) updates the touched rows alone, whatever the size of the table; a dense one updates
every row. The gradients of equal rows are added up before anything is squared. Nothing here makes a GPU's host wait. A
step can be captured as a CUDA graph if `lr` is a tensor on the device.

Legend: V rows of a table, N touched rows, D columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bnce import kernels, rows
from bnce.errors import UserError, finite_number
from bnce.optimisers.gradients import merged_rows

State = dict[str, Tensor]
Group = dict[str, Any]
Factors = tuple[Tensor, Tensor]  # the learning rate, and what gradients are multiplied by before; on the device


class RowOptimizer(torch.optim.Optimizer):
    """What both have in common: groups, state, and the way through the parameters."""

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, as any optimiser of PyTorch."""
        _without_compiler(torch.optim.Optimizer.add_param_group)(self, param_group)
        group = self.param_groups[-1]
        if finite_number("lr", group["lr"]) < 0:
            raise UserError(f"lr is {float(group['lr'])}: it must be 0 or more.")
        if not finite_number("eps", group["eps"]) > 0:
            raise UserError(f"eps is {group['eps']}: it must be above 0.")
        self._check_group(group)
        if any(hasattr(parameter, "device_mesh") for parameter in group["params"]):  # as DTensor has it
            raise UserError(
                f"{type(self).__name__} was given parameters that FSDP (fully_shard) or another plan divides between "
                "processes: give these to an optimiser of torch.optim, with sparse=False, or use "
                "DistributedDataParallel with bnce.RowExchange."
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as in PyTorch."""
        _without_compiler(torch.optim.Optimizer.zero_grad)(self, set_to_none)

    def start(self) -> None:
        """Make the state of every parameter now, and not at its first gradient."""
        for group in self.param_groups:
            for table_VD in group["params"]:
                self._state_of(table_VD, group)

    def _state_of(self, table_VD: Tensor, group: Group) -> State:
        state: State = self.state[table_VD]
        if not state:
            state.update(self._new_state(_as_rows(table_VD), group))
        return state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for table_VD in group["params"]:
                if (grad := table_VD.grad) is not None:
                    sparse, deterministic = grad.is_sparse, group["deterministic"]
                    words_N, grad_ND = merged_rows(grad, deterministic=deterministic) if sparse else (None, grad)
                    self.step_table(table_VD, words_N, grad_ND, group)
        return loss

    def step_table(
        self, table_VD: Tensor, words_N: Tensor | None, grad_ND: Tensor, group: Group, clip: Tensor | None = None
    ) -> None:
        """Step the touched rows, of which equal ones are merged; without their numbers every row.

        `clip` is a factor on the gradient, a tensor on the device.
        """
        like: dict[str, Any] = {"dtype": _state_dtype(table_VD), "device": table_VD.device}
        rate = group["lr"] if isinstance(group["lr"], Tensor) else torch.full((), group["lr"], **like)
        factors = rate, torch.ones((), **like) if clip is None else clip
        self._step_rows(_as_rows(table_VD), words_N, _as_rows(grad_ND), self._state_of(table_VD, group), group, factors)

    def load_state_dict(self, state_dict: Group) -> None:
        """Load what `state_dict` returned, in its number formats."""
        super().load_state_dict(state_dict)
        # PyTorch gives a state the format of its parameter, in which step numbers and sums of squares are lost.
        tables = [table_VD for group in self.param_groups for table_VD in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, table_VD in zip(numbers, tables, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                self.state[table_VD][name] = value.to(table_VD.device, copy=True)

    @abstractmethod
    def _check_group(self, group: Group) -> None:
        """Refuse values that the kind of step cannot work with."""

    @abstractmethod
    def _new_state(self, table_VD: Tensor, group: Group) -> State:
        """Make what is kept of a table."""

    @abstractmethod
    def _step_rows(
        self, table_VD: Tensor, words_N: Tensor | None, grad_ND: Tensor, state: State, group: Group, factors: Factors
    ) -> None:
        """Step as `step_table`, at this rate and with this factor on the gradient."""


class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one accumulator per row, of the mean squared gradient: w ← w − lr · g / (√Σ mean(g²) + eps)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 0.1,
        *,
        initial_accumulator: float = 0.0,
        eps: float = 1e-8,
        deterministic: bool = False,
    ) -> None:
        """`initial_accumulator` above 0 makes the first steps smaller; `deterministic` adds rows in a fixed order."""
        defaults = {"lr": lr, "initial_accumulator": initial_accumulator, "eps": eps, "deterministic": deterministic}
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        if finite_number("initial_accumulator", group["initial_accumulator"]) < 0:
            raise UserError(f"initial_accumulator is {group['initial_accumulator']}: it must be 0 or more.")

    def _new_state(self, table_VD: Tensor, group: Group) -> State:
        start, dtype = group["initial_accumulator"], _state_dtype(table_VD)
        return {"accumulator": torch.full((len(table_VD),), start, dtype=dtype, device=table_VD.device)}

    def _step_rows(
        self, table_VD: Tensor, words_N: Tensor | None, grad_ND: Tensor, state: State, group: Group, factors: Factors
    ) -> None:
        step = _functions(table_VD, group).adagrad_
        step(table_VD, state["accumulator"], words_N, grad_ND, *factors, group["eps"])


class RowwiseAdam(RowOptimizer):
    """Adam with one second moment per row, which decays with every step, whether the row is touched or not.

    v ← β₂^(t − t_last) · v + (1 − β₂) · mean(g²), then w ← w − lr · g / (√v + eps), for touched rows alone. There is no
    momentum and no bias correction: a rare row's v has decayed to nothing, so its step is up to 1/√(1 − β₂) times that
    of a frequent one.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        *,
        beta2: float = 0.99,
        eps: float = 1e-8,
        deterministic: bool = False,
    ) -> None:
        """`deterministic` adds up the gradients of equal rows in a fixed order, also on a GPU."""
        super().__init__(params, {"lr": lr, "beta2": beta2, "eps": eps, "deterministic": deterministic})

    def _check_group(self, group: Group) -> None:
        if not 0 <= finite_number("beta2", group["beta2"]) < 1:
            raise UserError(f"beta2 is {group['beta2']}: it must be at least 0 and below 1.")

    def _new_state(self, table_VD: Tensor, group: Group) -> State:
        size, device = (len(table_VD),), table_VD.device
        return {
            "square": torch.zeros(size, dtype=_state_dtype(table_VD), device=device),
            "last": torch.zeros(size, dtype=torch.int32, device=device),
            "step": torch.zeros((), dtype=torch.int64, device=device),
        }

    def _step_rows(
        self, table_VD: Tensor, words_N: Tensor | None, grad_ND: Tensor, state: State, group: Group, factors: Factors
    ) -> None:
        state["step"] += 1
        step = _functions(table_VD, group).adam_
        moments = state["square"], state["last"], state["step"]
        step(table_VD, *moments, words_N, grad_ND, *factors, group["beta2"], group["eps"])


def _functions(table_VD: Tensor, group: Group) -> ModuleType:
    if group["deterministic"] or not kernels.usable(table_VD):
        return rows
    from bnce.kernels import rows as fast

    return fast


def _state_dtype(table_VD: Tensor) -> torch.dtype:
    return torch.promote_types(table_VD.dtype, torch.float32)


def _as_rows(table: Tensor) -> Tensor:
    """Take a single number, such as a learned ln Z, for a table of one row."""
    return table if table.ndim else table.view(1)


def _without_compiler(method: Callable[..., Any]) -> Callable[..., Any]:
    """Unwrap what only compiled code needs wrapped: the wrapper imports the compiler, which takes a second or two."""
    plain: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return plain
