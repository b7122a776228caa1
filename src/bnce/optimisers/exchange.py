"""Gradients of several processes: the rows that a step touched are exchanged instead of tables.

Every process has all tables. Each gives the others its merged rows, and all add up what they get in the same order, so
the copies of a table stay equal to the last bit. The cost does not depend on the size of the tables.

Legend: N touched rows, K different ones, M those of all processes, P parameters, R processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bnce import kernels, rows
from bnce.errors import UserError
from bnce.machine.processes import World
from bnce.noise import Noise
from bnce.optimisers.gradients import Rows, merged_gradient, merged_rows

_NONE, _ROWS, _DENSE = 0, 1, 2  # what a process has of a parameter's gradient


def gather_rows(parts: Sequence[Rows], world: World, num_rows: int, *, fixed: bool = False) -> Rows:
    """Add up the row gradients of all parts of all processes; every process gets the same bits.

    No part names a row twice, but with zeros. Process by process and part by part they are added to the total: within
    such a pass nothing is added to a row twice, so a GPU cannot do it in another order. `fixed` says that the parts
    have the same shape in all processes, as a captured step needs it, and gives a shape that is known beforehand.
    """
    gather = world.gather if fixed else world.gather_uneven
    of_parts = [(list(gather(words_K)), list(gather(values_KD))) for words_K, values_KD in parts]
    passes = [(words_RK[rank], values_RK[rank]) for rank in range(world.size) for words_RK, values_RK in of_parts]
    words_M, like = torch.cat([words_K for words_K, _ in passes]), passes[0][1]
    word_M, place_M = number(words_M, num_rows, min(len(words_M), num_rows) if fixed else None)
    total_MD = like.new_zeros(len(word_M), *like.shape[1:])
    for place_K, (_, values_KD) in zip(place_M.split([len(words) for words, _ in passes]), passes, strict=True):
        total_MD.index_add_(0, place_K, values_KD)
    return word_M, total_MD


def compact(words_N: Tensor, values_ND: Tensor, num_rows: int, capacity: int) -> Rows:
    """Add up the gradients of equal rows at a shape of `capacity` rows, which must be enough for the different ones."""
    word_K, place_N = number(words_N, num_rows, capacity)
    return word_K, rows.add_up(values_ND, place_N, capacity)


def number(words_N: Tensor, num_rows: int, capacity: int | None) -> tuple[Tensor, Tensor]:
    """Number the different words, in the same way in all processes; by a kernel, which does not sort, where it can."""
    if capacity is None or not kernels.usable(words_N):
        return rows.number_words(words_N, capacity)
    from bnce.kernels.distinct import distinct_words

    word_K, place_1N, _ = distinct_words(words_N.unsqueeze(0), capacity, num_rows)
    return word_K, place_1N.view(-1).long()


class RowExchange:
    """Averages the gradients of the modules with `sparse=True` over the processes.

    `torch.nn.parallel.DistributedDataParallel` takes the gradient of every parameter for dense, except that of
    `torch.nn.Embedding`, and copies every buffer in every step. Make the exchange before it gets the model, which then
    leaves these parameters alone. Call `average` after the last backward pass of a step and before clipping.
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
            if isinstance(module, Noise):
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
        self.parameters = list({id(parameter): parameter for parameter in tables.values()}.values())
        # NCCL sends from GPUs, gloo from CPUs.
        device = self.parameters[0].device if "nccl" in dist.get_backend_config(group) else torch.device("cpu")
        self.world = World(dist.get_rank(group), dist.get_world_size(group), device, group)
        for parameter in self.parameters:
            dist.broadcast(parameter.detach(), group=group, group_src=0)

    @torch.no_grad()
    def average(self) -> None:
        """Replace every process's gradients by their mean over the processes."""
        grads = [parameter.grad for parameter in self.parameters]
        kind_P = [_NONE if grad is None else _ROWS if grad.is_sparse else _DENSE for grad in grads]
        most_P = self.world.gather(torch.tensor(kind_P)).amax(0).tolist()
        for parameter, grad, kind in zip(self.parameters, grads, most_P, strict=True):
            if kind == _DENSE:
                dense = torch.zeros_like(parameter) if grad is None else grad.to_dense()
                parameter.grad = self.world.sum_(dense).div_(self.world.size)
            elif kind == _ROWS:
                own = self._no_rows(parameter) if grad is None else merged_rows(grad)
                words_M, total_MD = gather_rows([own], self.world, len(parameter))
                mean = words_M, total_MD.div_(self.world.size)
                parameter.grad = merged_gradient(parameter.shape, mean, parameter.dtype)

    def _no_rows(self, parameter: Tensor) -> Rows:
        none = torch.zeros(0, dtype=torch.int64, device=parameter.device)
        return none, rows.add_up(parameter[:0], none, 0)
