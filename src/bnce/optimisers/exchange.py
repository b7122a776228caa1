"""Sparse gradients in several processes: rows are exchanged instead of tables.

`torch.nn.parallel.DistributedDataParallel` takes the gradient of every parameter for dense, except that of
`torch.nn.Embedding`, and copies every buffer in every step. Here the processes give each other the rows that they
touched, so the cost does not depend on the size of the tables.

Legend: N touched rows, P parameters.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bnce import rows
from bnce.errors import UserError
from bnce.losses.structure import Structure
from bnce.noise import Noise

_DENSE = -1  # in place of a number of rows


class RowExchange:
    """Averages the gradients of the modules with `sparse=True` over the processes.

    Make it before `DistributedDataParallel` gets the model, which then leaves these parameters alone. Call `average`
    after the last backward pass of a step and before clipping.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        """Find the tables of a model, and give every process of the group the values of its first."""
        if not dist.is_initialized():
            raise UserError("RowExchange needs several processes: call torch.distributed.init_process_group first.")
        if isinstance(model, DistributedDataParallel):
            raise UserError(
                "RowExchange was given a DistributedDataParallel, which already exchanges all gradients: make "
                "the RowExchange of the model first, then give the model to DistributedDataParallel."
            )
        tables: dict[str, nn.Parameter] = {}
        ignored: list[str] = []
        for module_name, module in model.named_modules():
            prefix = f"{module_name}." if module_name else ""
            if getattr(module, "sparse", False):
                named = module.named_parameters(recurse=False, remove_duplicate=False)
                tables.update({prefix + name: parameter for name, parameter in named if parameter.ndim})
            if isinstance(module, Noise | Structure):
                # The tables that every process makes from the same counts; what is counted on the way is DDP's.
                ignored += [prefix + name for name in module._non_persistent_buffers_set]
        if not tables:
            raise UserError("No module of the model has sparse=True, so DistributedDataParallel alone is enough.")
        # A table that is tied has a name in each of its modules.
        shared = {id(parameter) for parameter in tables.values()}
        every = model.named_parameters(remove_duplicate=False)
        ignored += [name for name, parameter in every if id(parameter) in shared]
        ignored += getattr(model, "_ddp_params_and_buffers_to_ignore", [])
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        self.group, self.num_processes = group, dist.get_world_size(group)
        self.parameters = list({id(parameter): parameter for parameter in tables.values()}.values())
        for parameter in self.parameters:
            dist.broadcast(parameter.detach(), group=group, group_src=0)

    @torch.no_grad()
    def average(self) -> None:
        """Replace every process's gradients by their mean over the processes."""
        given = [parameter.grad for parameter in self.parameters]
        merged = [grad.coalesce() if grad is not None and grad.is_sparse else grad for grad in given]
        size_P = [0 if grad is None else grad._nnz() if grad.is_sparse else _DENSE for grad in merged]
        # Processes touch different numbers of rows, and what is gathered must have one shape.
        sizes = [part.tolist() for part in self._gather(torch.tensor(size_P, device=self.parameters[0].device))]
        for parameter, grad, size_R in zip(self.parameters, merged, zip(*sizes, strict=True), strict=True):
            if _DENSE in size_R:
                dense = torch.zeros_like(parameter) if grad is None else grad.to_dense()
                dist.all_reduce(dense, group=self.group)
                parameter.grad = dense.div_(self.num_processes)
            elif any(size_R):
                parameter.grad = self._mean_of_rows(parameter, grad, size_R)

    def _mean_of_rows(self, parameter: Tensor, grad: Tensor | None, size_R: tuple[int, ...]) -> Tensor:
        words_N = torch.zeros(max(size_R), dtype=torch.int64, device=parameter.device)
        values_ND = torch.zeros(max(size_R), *parameter.shape[1:], dtype=parameter.dtype, device=parameter.device)
        if grad is not None:
            own_N, own_ND = rows.row_gradients(grad)
            words_N[: len(own_N)] = own_N
            values_ND[: len(own_N)] = own_ND
        words = [part[:size] for part, size in zip(self._gather(words_N), size_R, strict=True)]
        values = [part[:size] for part, size in zip(self._gather(values_ND), size_R, strict=True)]
        return rows.table_gradient(parameter.shape, torch.cat(words), torch.cat(values).div_(self.num_processes))

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.num_processes)]
        dist.all_gather(parts, tensor, group=self.group)
        return parts
