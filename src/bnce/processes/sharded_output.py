"""The output layer whose rows are divided among the processes: every process scores its own rows for all positions.

What goes from process to process are the hidden rows, three numbers per position (the largest score, the sum of the
exponentials and the target's score), and the gradient of the hidden rows. The gradients of rows stay where the rows
are. All processes call these functions together.

Legend: R processes, N positions of one process, P = R·N, D hidden, v rows kept here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce import kernels
from bnce.losses.first_order import first_order_only
from bnce.losses.output_batch import OutputBatch
from bnce.losses.softmax import pad_rows
from bnce.machine.precision import product_dtype, product_in_float32, widen
from bnce.machine.world import World
from bnce.processes.placement import Placement

MAX_LOGITS = {"cpu": 2**22, "cuda": 2**30}  # in one block


class ShardedOutput:
    """Normalises over rows that many processes keep."""

    def __init__(self, world: World, placement: Placement, *, penalises: bool = False) -> None:
        """`penalises`: the loss adds penalty · (ln Z(context) − ln Z)² for each position."""
        self.world, self.placement, self.penalises = world, placement, penalises
        begin, end = placement.range_of(world.rank)
        self.num_rows = end - begin  # those after it are there for equal sizes alone

    def loss_sum(self, batch: OutputBatch) -> Tensor:
        """Sum −ln softmax of the targets of this process, with what the loss adds for ln Z(context)."""
        assert batch.valid_TB is None
        loss: Tensor = _ShardedSoftmax.apply(
            batch.hidden_TBD.flatten(0, 1),
            batch.weight_VD,
            batch.bias_V,
            batch.target_TB.flatten(),
            batch.log_z if self.penalises else None,
            batch.penalty,
            self,
            product_dtype(batch.weight_VD),
        )
        return loss

    def rows_of(self, target_P: Tensor) -> Tensor:
        """Give the rows of targets here, and −1 for those that other processes keep."""
        owner_P, row_P = self.placement.find(target_P)
        return torch.where(owner_P == self.world.rank, row_P, -1)

    def normalise(
        self, hidden_PD: Tensor, weight_vD: Tensor, bias_v: Tensor, target_P: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Give ln Z and the target's score of all positions."""
        row_P = self.rows_of(target_P)
        parts = []
        for begin, end, logit in self.blocks(hidden_PD, weight_vD, bias_v):
            most, _ = logit.max(1)
            total = (logit - most.unsqueeze(1)).exp().sum(1)
            row = row_P[begin:end]
            own = logit.gather(1, row.clamp(min=0).unsqueeze(1)).squeeze(1)
            parts.append(torch.stack([most, total, torch.where(row >= 0, own, 0.0)]))
        most_RP, total_RP, own_RP = self.world.gather(torch.cat(parts, 1), "normalisers").unbind(1)
        return torch.logsumexp(most_RP + total_RP.log(), 0), own_RP.sum(0)

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
        normaliser_P, own_P = self.normalise(torch.cat(hidden), weight_vD, bias_v, target_P)
        rank = self.world.rank
        return normaliser_P.split(sizes)[rank], own_P.split(sizes)[rank]


class _ShardedSoftmax(torch.autograd.Function):
    """Computes loss and gradients in one visit to a block's logits, as a softmax over all rows in one process does.

    With s the softmax over the rows kept here and z their log sum, the softmax over all rows is s · exp(z − ln Z). The
    factor is one number per position, so it goes to the hidden rows, and logits are written once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_vD: Tensor,
        bias_v: Tensor,
        target_N: Tensor,
        constant: Tensor | None,
        penalty: float,
        output: ShardedOutput,
        dtype: torch.dtype,
    ) -> Tensor:
        world, (N, D), num_rows = output.world, hidden_ND.shape, output.num_rows
        used_v = bias_v[:num_rows]
        with torch.autocast(hidden_ND.device.type, enabled=False):
            # One more column makes the bias's gradient part of the same product.
            hidden_PE = world.gather(widen(hidden_ND, 1.0, dtype), "hidden rows").flatten(0, 1)
            weight_vE = widen(pad_rows(weight_vD[:num_rows], dtype), 0.0, dtype)
            row_P = output.rows_of(world.gather(target_N, "targets").flatten())
            is_here_P1 = (row_P >= 0).unsqueeze(1)
            size = max(1, MAX_LOGITS.get(hidden_ND.device.type, 2**22) // max(1, num_rows))
            losses, excesses, hidden_grads = [], [], []
            weight_grad_vE: Tensor | None = None
            for begin in range(0, len(hidden_PE), size):
                block = slice(begin, begin + size)
                share, log_total, own = _shares(hidden_PE[block], weight_vE, used_v, row_P[block])
                log_total_R, own_R = world.gather(torch.stack([log_total, own]), "normalisers").unbind(1)
                log_z = torch.logsumexp(log_total_R, 0)
                excesses.append(torch.zeros_like(log_z) if constant is None else log_z - constant)
                losses.append(log_z - own_R.sum(0) + penalty * excesses[-1].square())
                factor_1 = ((log_total - log_z).exp() * (1.0 + 2.0 * penalty * excesses[-1])).unsqueeze(1)
                hidden_grads.append(product_in_float32(share, weight_vE) * factor_1)
                scaled = (hidden_PE[block] * factor_1).to(dtype)
                weight_grad = product_in_float32(share.t(), scaled)
                weight_grad_vE = weight_grad if weight_grad_vE is None else weight_grad_vE.add_(weight_grad)
            assert weight_grad_vE is not None
            place_P = row_P.clamp(min=0)
            weight_grad_vE.index_add_(0, place_P, torch.where(is_here_P1, -hidden_PE, 0.0).to(bias_v.dtype))
            own_weight_PE = weight_vE.index_select(0, place_P).to(bias_v.dtype)
            hidden_grad_PE = torch.cat(hidden_grads) - torch.where(is_here_P1, own_weight_PE, 0.0)
        parts_RND = world.exchange(hidden_grad_PE[:, :D].reshape(world.size, N, D), "hidden gradients")
        here = slice(world.rank * N, (world.rank + 1) * N)
        constant_grad = None if constant is None else -2 * penalty * torch.cat(excesses)[here].sum()
        ctx.save_for_backward(parts_RND.sum(0), weight_grad_vE, constant_grad)
        ctx.num_rows, ctx.dtypes = num_rows, (hidden_ND.dtype, weight_vD.shape, weight_vD.dtype)
        return torch.cat(losses)[here].sum()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad_ND, weight_grad_vE, constant_grad = ctx.saved_tensors
        hidden_dtype, (v, D), weight_dtype = ctx.dtypes
        unused = v - ctx.num_rows
        weight_vD = (weight_grad_vE[: ctx.num_rows, :D] * grads[0]).to(weight_dtype)
        bias_v = (weight_grad_vE[: ctx.num_rows, D] * grads[0]).to(weight_dtype)
        if unused:
            weight_vD, bias_v = F.pad(weight_vD, (0, 0, 0, unused)), F.pad(bias_v, (0, unused))
        constant_grad = None if constant_grad is None else constant_grad * grads[0]
        return (hidden_grad_ND * grads[0]).to(hidden_dtype), weight_vD, bias_v, None, constant_grad, None, None, None


def _shares(hidden_NE: Tensor, weight_vE: Tensor, bias_v: Tensor, row_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Give the softmax over the rows kept here (N, v), ln of its sum (N,), and the scores of targets among them."""
    fast = kernels.choose("softmax", hidden_NE)
    if fast is not None and len(bias_v):
        logit_Nv = torch.mm(hidden_NE, weight_vE.t())
        return logit_Nv, *fast.shares_(logit_Nv, bias_v, row_N)
    logit_Nv = product_in_float32(hidden_NE, weight_vE.t())
    logit_Nv[:, : len(bias_v)] += bias_v
    logit_Nv[:, len(bias_v) :] = -torch.inf  # the rows of padding
    log_total_N = torch.logsumexp(logit_Nv, 1)
    own_N = logit_Nv.gather(1, row_N.clamp(min=0).unsqueeze(1)).squeeze(1)
    own_N = torch.where(row_N >= 0, own_N, 0.0)
    return (logit_Nv - log_total_N.unsqueeze(1)).exp().to(hidden_NE.dtype), log_total_N, own_N
