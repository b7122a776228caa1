"""Tables in which a step touches only some rows: gather rows, merge equal ones, update them in place.

Nothing here costs time or memory in the size of the table. A gathered row's gradient travels as a sparse tensor of
(row number, gradient) pairs, one pair per occurrence; `merge` adds up the pairs of one row before anything that is not
linear (a norm, Adagrad's square) is done to them.

Legend: V rows of the table, N gathered rows, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def gather(table_VD: Tensor, words: Tensor, *, sparse: bool = True) -> Tensor:
    """Read rows of a table (V, …) by number; the gradient is sparse, or dense where an optimiser wants that."""
    # PyTorch's own dense gradient adds up in the table's format: in two bytes a frequent word's would stop growing.
    if (sparse or table_VD.dtype.itemsize < 4) and table_VD.requires_grad and torch.is_grad_enabled():
        rows: Tensor = _Gather.apply(table_VD, words, sparse)
        return rows
    return table_VD.index_select(0, words.reshape(-1)).reshape((*words.shape, *table_VD.shape[1:]))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_VD: Tensor, words: Tensor, sparse: bool) -> Tensor:
        ctx.save_for_backward(words)
        ctx.table_shape, ctx.sparse = table_VD.shape, sparse
        return table_VD.index_select(0, words.reshape(-1)).reshape((*words.shape, *table_VD.shape[1:]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (words,) = ctx.saved_tensors
        values = grads[0].reshape(-1, *ctx.table_shape[1:])
        return table_gradient(ctx.table_shape, words.reshape(-1), values, sparse=ctx.sparse), None, None


def table_gradient(shape: Sequence[int], words_N: Tensor, values_ND: Tensor, *, sparse: bool = True) -> Tensor:
    """Make the gradient of a table (V, …) of the gradients of rows that were read from it."""
    if not sparse:
        return add_up(values_ND, words_N, shape[0]).to(values_ND.dtype)
    # The words were read with, so they are in range; checking again would make a GPU's host wait.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        return torch.sparse_coo_tensor(words_N.unsqueeze(0), values_ND, tuple(shape))


def row_gradients(grad: Tensor) -> tuple[Tensor, Tensor]:
    """Split a sparse gradient into row numbers (N,) and gradients (N, …), one per occurrence."""
    return grad._indices()[0], grad._values()


def add_up(values_ND: Tensor, place_N: Tensor, size: int) -> Tensor:
    """Add up rows of values by their places, in float32 or wider: in two bytes a sum stops growing after 256 parts."""
    dtype = torch.promote_types(values_ND.dtype, torch.float32)
    total = values_ND.new_zeros((size, *values_ND.shape[1:]), dtype=dtype)
    return total.index_add_(0, place_N, values_ND.to(dtype))


def merge(words_N: Tensor, values_ND: Tensor, capacity: int | None = None) -> tuple[Tensor, Tensor]:
    """Add up the values of equal words, in their order: the different words (U,), and sums (U, …) in float32 or wider.

    In text about half of the words of a chunk are different ones, and all that is done with the result costs so much
    less. With a `capacity` K of at least U, the shape does not depend on the data, so no host has to wait for U: the
    other K − U places hold the last word with zeros, which add nothing wherever they are added.
    """
    word_K, place_N = number_words(words_N, capacity)
    return word_K, add_up(values_ND, place_N, len(word_K))


def number_words(words_N: Tensor, capacity: int | None = None) -> tuple[Tensor, Tensor]:
    """Number the different words by size: give each number's word (U,), and each word's number (N,)."""
    if capacity is None:
        word_U, place_N = torch.unique(words_N, return_inverse=True)
        return word_U, place_N
    sorted_N, order_N = torch.sort(words_N, stable=True)
    nth_N = torch.zeros_like(sorted_N)
    torch.cumsum(sorted_N[1:] != sorted_N[:-1], 0, out=nth_N[1:])
    # scatter writes equal values to equal places, so its order does not matter.
    word_K = sorted_N[-1:].expand(capacity).clone().scatter_(0, nth_N, sorted_N)
    return word_K, torch.empty_like(nth_N).scatter_(0, order_N, nth_N)


def sgd_(table_VD: Tensor, words_N: Tensor, grad_ND: Tensor, rate: Tensor, clip: Tensor) -> None:
    """Step the touched rows against their merged gradient, times `clip`."""
    table_VD.index_add_(0, words_N, grad_ND.mul(-rate * clip))


def adagrad_(
    table_VD: Tensor,
    accumulator_V: Tensor,
    words_N: Tensor | None,
    grad_ND: Tensor,
    rate: Tensor,
    clip: Tensor,
    epsilon: float = 1e-8,
) -> None:
    """Step the touched rows by row-wise Adagrad: one accumulator a row, of the mean squared merged gradient.

    Without `words_N`, every row is stepped, for losses that touch them all.
    """
    grad_ND = grad_ND.to(accumulator_V.dtype) * clip
    if words_N is None:
        accumulator_V.add_(mean_square(grad_ND))
        table_VD.add_(scale_rows(grad_ND, -rate / (accumulator_V.sqrt() + epsilon)))
        return
    accumulator_V.index_add_(0, words_N, mean_square(grad_ND))
    step_N = -rate / (accumulator_V.index_select(0, words_N).sqrt() + epsilon)
    table_VD.index_add_(0, words_N, scale_rows(grad_ND, step_N).to(table_VD.dtype))


def adam_(
    table_VD: Tensor,
    square_V: Tensor,
    last_V: Tensor,
    step: Tensor,
    words_N: Tensor | None,
    grad_ND: Tensor,
    rate: Tensor,
    clip: Tensor,
    decay: float,
    epsilon: float,
) -> None:
    """Step the touched rows by row-wise Adam: one second moment per row, which decays with every step, touched or not.

    `last_V` has the step of each row's last gradient: the decay of the steps since then is made up for when the row is
    touched again. A row whose gradient is zero is left alone, which comes to the same. Without `words_N`, every row is
    stepped.
    """
    grad_ND = grad_ND.to(square_V.dtype) * clip
    if words_N is None:
        square_V.mul_(decay ** (step - last_V).to(square_V.dtype)).add_(mean_square(grad_ND), alpha=1.0 - decay)
        last_V.copy_(step.expand_as(last_V))
        table_VD.add_(scale_rows(grad_ND, -rate / (square_V.sqrt() + epsilon)))
        return
    mean_square_N = mean_square(grad_ND)
    last_N, square_N = last_V.index_select(0, words_N), square_V.index_select(0, words_N)
    square_after_N = square_N * decay ** (step - last_N).to(square_N.dtype) + (1.0 - decay) * mean_square_N
    # Of the places of one word in a merged gradient, one holds the sum. The others hold zeros and change nothing.
    is_sum_N = mean_square_N > 0
    square_V.index_add_(0, words_N, torch.where(is_sum_N, square_after_N - square_N, 0.0))
    last_V.index_add_(0, words_N, torch.where(is_sum_N, step.to(last_V.dtype) - last_N, 0))
    change_ND = scale_rows(grad_ND, -rate / (square_after_N.sqrt() + epsilon))
    table_VD.index_add_(0, words_N, change_ND.to(table_VD.dtype))


def mean_square(grad_ND: Tensor) -> Tensor:
    """Average the squares of each row, which has any number of dimensions, or is a single number."""
    return grad_ND.square() if grad_ND.ndim == 1 else grad_ND.flatten(1).square().mean(1)


def scale_rows(grad_ND: Tensor, factor_N: Tensor) -> Tensor:
    """Multiply each row by its own factor."""
    return grad_ND * factor_N.view(-1, *[1] * (grad_ND.ndim - 1))
