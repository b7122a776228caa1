"""The output layer whose rows are divided among the processes: every process scores its own rows for all positions.

What goes from process to process are the hidden rows, three numbers per position (the largest score, the sum of the
exponentials and the target's score), and the gradient of the hidden rows. The gradients of rows stay where the rows
are. All processes call these functions together.

Legend: R processes, N positions of one process, P = R·N, D hidden, v rows kept here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bnce.losses.first_order import first_order_only
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import product_dtype, product_in_float32
from bnce.machine.world import World
from bnce.processes.placement import Placement

MAX_LOGITS = {"cpu": 2**22, "cuda": 2**28}  # in one block


class ShardedOutput:
    """Normalises over rows that many processes keep."""

    def __init__(self, world: World, placement: Placement) -> None:
        self.world, self.placement = world, placement
        begin, end = placement.range_of(world.rank)
        self.num_rows = end - begin  # those after it are there for equal sizes alone

    def loss_sum(self, batch: OutputBatch) -> Tensor:
        """Sum −ln softmax of the targets of this process."""
        assert batch.valid_TB is None
        loss: Tensor = _ShardedSoftmax.apply(
            batch.hidden_TBD.flatten(0, 1),
            batch.weight_VD,
            batch.bias_V,
            batch.target_TB.flatten(),
            self,
            product_dtype(batch.weight_VD),
        )
        return loss

    def normalise(
        self, hidden_PD: Tensor, weight_vD: Tensor, bias_v: Tensor, target_P: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give ln Z and the target's score of all positions, and where here the target is, or −1."""
        owner_P, row_P = self.placement.find(target_P)
        row_P = torch.where(owner_P == self.world.rank, row_P, -1)
        parts = []
        for begin, end, logit in self.blocks(hidden_PD, weight_vD, bias_v):
            most, _ = logit.max(1)
            total = (logit - most.unsqueeze(1)).exp().sum(1)
            row = row_P[begin:end]
            own = logit.gather(1, row.clamp(min=0).unsqueeze(1)).squeeze(1)
            parts.append(torch.stack([most, total, torch.where(row >= 0, own, 0.0)]))
        most_RP, total_RP, own_RP = self.world.gather(torch.cat(parts, 1), "normalisers").unbind(1)
        return torch.logsumexp(most_RP + total_RP.log(), 0), own_RP.sum(0), row_P

    def blocks(self, hidden_PD: Tensor, weight_vD: Tensor, bias_v: Tensor) -> Any:
        """Give the scores of some positions at a time against all rows kept here."""
        weight_vD, bias_v = weight_vD[: self.num_rows], bias_v[: self.num_rows]
        size = max(1, MAX_LOGITS.get(hidden_PD.device.type, 2**22) // max(1, self.num_rows))
        for begin in range(0, len(hidden_PD), size):
            end = min(begin + size, len(hidden_PD))
            logit = product_in_float32(hidden_PD[begin:end], weight_vD.t())
            yield begin, end, logit + bias_v

    def score(self, hidden_ND: Tensor, weight_vD: Tensor, bias_v: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        """Give ln Z and the target's score of this process's positions, of which others may have more or fewer."""
        hidden = self.world.gather_uneven(hidden_ND, "hidden rows")
        target_P = torch.cat(self.world.gather_uneven(target_N, "targets"))
        sizes = [len(part) for part in hidden]
        if not sum(sizes):
            return hidden_ND.new_zeros(0), hidden_ND.new_zeros(0)
        normaliser_P, own_P, _ = self.normalise(torch.cat(hidden), weight_vD, bias_v, target_P)
        rank = self.world.rank
        return normaliser_P.split(sizes)[rank], own_P.split(sizes)[rank]


class _ShardedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_vD: Tensor,
        bias_v: Tensor,
        target_N: Tensor,
        output: ShardedOutput,
        dtype: torch.dtype,
    ) -> Tensor:
        N = len(hidden_ND)
        hidden_PD = output.world.gather(hidden_ND.to(dtype), "hidden rows").flatten(0, 1)
        target_P = output.world.gather(target_N, "targets").flatten()
        with torch.autocast(hidden_ND.device.type, enabled=False):
            normaliser_P, own_P, row_P = output.normalise(hidden_PD, weight_vD.to(dtype), bias_v, target_P)
        ctx.save_for_backward(hidden_PD, weight_vD, bias_v, normaliser_P, row_P)
        ctx.output, ctx.dtype, ctx.hidden_dtype = output, dtype, hidden_ND.dtype
        begin = output.world.rank * N
        return (normaliser_P - own_P)[begin : begin + N].sum()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_PD, weight_vD, bias_v, normaliser_P, row_P = ctx.saved_tensors
        output: ShardedOutput = ctx.output
        narrow_vD = weight_vD.to(ctx.dtype)
        weight_error = torch.zeros_like(weight_vD)
        bias_error = torch.zeros_like(bias_v)
        hidden_error_PD = torch.empty(hidden_PD.shape, dtype=bias_v.dtype, device=hidden_PD.device)
        used = slice(0, output.num_rows)
        with torch.autocast(hidden_PD.device.type, enabled=False):
            for begin, end, logit in output.blocks(hidden_PD, narrow_vD, bias_v):
                error = (logit - normaliser_P[begin:end].unsqueeze(1)).exp_()
                row = row_P[begin:end]
                error.scatter_add_(
                    1, row.clamp(min=0).unsqueeze(1), torch.where(row >= 0, -1.0, 0.0).unsqueeze(1).to(error)
                )
                error *= grads[0].to(error.dtype)
                bias_error[used] += error.sum(0)
                narrow = error.to(ctx.dtype)
                weight_error[used] += product_in_float32(narrow.t(), hidden_PD[begin:end])
                hidden_error_PD[begin:end] = product_in_float32(narrow, narrow_vD[used])
        R = output.world.size
        parts_RND = output.world.exchange(hidden_error_PD.reshape(R, -1, hidden_PD.shape[1]), "hidden gradients")
        return parts_RND.sum(0).to(ctx.hidden_dtype), weight_error, bias_error, None, None, None
