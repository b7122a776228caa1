"""Chunk B-NCE: the targets of all T time steps are noise to a position, except those of its own stream.

Our extension of the paper. In B-NCE the noise of a position is the B − 1 other targets of its own time step. The
targets of the other time steps follow the same unigram, so here they are noise, too: M = (B − 1)·T noise words from the
same T·B output rows. The position's own stream is left out, by position and never by word: within a few dozen words a
rare word repeats far more often than its unigram rate, and noise must not depend on the context.

    s_ij = h_i·w_j + c_j − ln Z − ln(M · p_n(w_j))
    J    = Σ_i [ softplus(−s_ii) + Σ_{j in other streams} softplus(s_ij) ]

Positions are visited in blocks, so no N × N matrix is ever in memory, and each visit computes loss and gradient. Where
shapes allow it, equal words are merged first (`merged_chunk_nce.py`). `all_pairs_nce` is the plain twin of both.

Legend: T time steps, B streams, N = T·B positions in the order t·B + b, R positions of a block, D hidden.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bnce import kernels
from bnce.errors import UserError
from bnce.losses.merged_chunk_nce import MAX_SCORES, can_merge, merged_chunk_nce
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import product_dtype, product_in_float32, widen


def chunk_nce(batch: OutputBatch) -> Tensor:
    """Sum the chunk B-NCE loss over the positions that count."""
    _check(batch)
    if batch.valid_TB is not None:
        return all_pairs_nce(batch)
    return merged_chunk_nce(batch) if can_merge(batch) else chunk_nce_by_position(batch)


def chunk_nce_by_position(batch: OutputBatch) -> Tensor:
    """Compute it with one column per position, so that no shape depends on the data."""
    T, B = batch.target_TB.shape
    hidden_ND, weight_ND, offset_N = _flatten(batch)
    offset_N = offset_N - math.log((B - 1) * T)
    loss: Tensor = _ChunkNce.apply(hidden_ND, weight_ND, offset_N, B, product_dtype(hidden_ND))
    return loss


def all_pairs_nce(batch: OutputBatch) -> Tensor:
    """Compute the same with every score at once."""
    B = batch.target_TB.shape[1]
    hidden_ND, weight_ND, offset_N = _flatten(batch)
    place_N = torch.arange(len(hidden_ND), device=hidden_ND.device)
    valid_N = torch.ones_like(place_N, dtype=torch.bool) if batch.valid_TB is None else batch.valid_TB.reshape(-1)
    noise_NN = (place_N.unsqueeze(1) % B != place_N % B) & valid_N
    num_noise_N1 = noise_NN.sum(1, keepdim=True)
    score_NN = torch.matmul(hidden_ND, weight_ND.t()).float() + offset_N - num_noise_N1.clamp(min=1).log()
    own_N = F.softplus(-score_NN.diagonal())
    noise_N = torch.where(noise_NN, F.softplus(score_NN), 0.0).sum(1)
    trained_N = trained_positions(valid_N.reshape(-1, B)).reshape(-1)
    return torch.where(trained_N, own_N + noise_N, 0.0).sum()


def trained_positions(valid_TB: Tensor) -> Tensor:
    """Say which positions are trained on: valid ones, if at least two streams have any; otherwise there is no noise."""
    return valid_TB & (valid_TB.any(0).sum() > 1)


def _check(batch: OutputBatch) -> None:
    B = batch.target_TB.shape[1]
    if B < 2:
        raise UserError(f"Chunk B-NCE takes its noise from other streams, but the batch has {B}: use 2 or more.")
    if batch.num_noise:
        raise UserError(f"Chunk B-NCE draws no noise, but num_noise is {batch.num_noise}: set it to 0.")


def _flatten(batch: OutputBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Put all positions in one dimension, with the output rows and offsets of their targets, without ln M."""
    target_N = batch.target_TB.reshape(-1)
    weight_ND, bias_N = batch.output_rows(target_N)
    hidden_ND = batch.hidden_TBD.reshape(len(target_N), -1)
    offset_N = bias_N.float() - batch.log_z - batch.noise.log_prob(target_N)
    return hidden_ND, weight_ND, offset_N


class _ChunkNce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_ND: Tensor, offset_N: Tensor, num_streams: int, dtype: torch.dtype
    ) -> Tensor:
        N, D = hidden_ND.shape
        num_blocks = -(-N * N // MAX_SCORES.get(hidden_ND.device.type, 2**25))
        num_rows = -(-N // num_blocks)
        ctx.dtypes = hidden_ND.dtype, weight_ND.dtype
        hidden_NE, weight_NE = widen(hidden_ND, 1.0, dtype), widen(weight_ND, 0.0, dtype)
        loss = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        hidden_grad_NE = torch.empty_like(hidden_NE)
        weight_grad_NE: Tensor | None = None
        with torch.autocast(hidden_ND.device.type, enabled=False):
            for begin in range(0, N, num_rows):
                block = slice(begin, min(begin + num_rows, N))
                gradient_RN = torch.mm(hidden_NE[block], weight_NE.t())
                loss += loss_and_gradient_(gradient_RN, offset_N, begin, num_streams)
                torch.mm(gradient_RN, weight_NE, out=hidden_grad_NE[block])
                part_NE = product_in_float32(gradient_RN.t(), hidden_NE[block])
                weight_grad_NE = part_NE if weight_grad_NE is None else weight_grad_NE.add_(part_NE)
        ctx.save_for_backward(hidden_grad_NE, weight_grad_NE)
        ctx.num_columns = D
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad_NE, weight_grad_NE = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        D = ctx.num_columns
        return (
            (hidden_grad_NE[:, :D] * grads[0]).to(hidden_dtype),
            (weight_grad_NE[:, :D] * grads[0]).to(weight_dtype),
            weight_grad_NE[:, D] * grads[0],
            None,
            None,
        )


@kernels.with_twin("chunk_nce")
def loss_and_gradient_(product_RN: Tensor, offset_N: Tensor, begin: int, num_streams: int) -> Tensor:
    """Compute the loss of the positions from `begin` on; in the products' place comes σ(s) − I, own stream left out."""
    score_RN = product_RN.float() + offset_N
    place_R = torch.arange(begin, begin + len(product_RN), device=product_RN.device)
    place_N = torch.arange(len(offset_N), device=product_RN.device)
    other_RN = place_R.unsqueeze(1) % num_streams != place_N % num_streams
    own_R = score_RN.diagonal(begin)
    loss = torch.where(other_RN, F.softplus(score_RN), 0.0).sum() + F.softplus(-own_R).sum()
    torch.mul(torch.sigmoid(score_RN), other_RN, out=product_RN)
    product_RN.diagonal(begin).copy_(torch.sigmoid(own_R) - 1.0)
    return loss
