"""The one autograd Function of all losses: positions are scored against columns, and a rule makes losses of the scores.

    s = h·w + c − ln Z + shift           a score: an output row w and its bias c, and a shift that has no gradient
    rule: scores → losses, G = ∂loss/∂s  the paper's G; ΔW, ΔC and E(L) are products with it, Eqs. (9) to (11)

A loss says which words are the columns and gives a rule. Blocks, weights of positions, masks, gradients by row, and
types of numbers are here. All scores at once would not fit into memory, so a block of positions is visited at a time,
and its products become their gradients in place.

The forward pass forms the gradients of the sum, too. If all positions have the same weight, as in a sum or a mean, the
backward pass only scales them by it; else it visits the blocks again, which costs one product more.

A rule is called with a `Block` and does all between the two products:

    rule(block) -> loss_PR

It reads `product_PRM`, adds `offset_PM`, writes the gradient of the scores into `gradient_PRM` (which is the memory of
the products unless their types differ), turns `own_PR` into the gradient of its scores, and gives the loss of every row
in float32 or wider. No shape depends on the data. An offset is −∞ where a column does not count: the rule must find
nothing there. `counts_PR` is 1 where a row counts; where it does not, its gradient is 0 and its loss is `counts_PR`
itself, 0 or NaN. So a kernel of this signature can do the whole of a block in one launch, in the place of its plain
rule.

Legend: P problems with columns of their own (the T time steps, or 1), R rows of each (its positions), M columns of
each, D hidden, E = D or with padding, V rows of the tables, N positions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bnce.errors import UserError
from bnce.kernels import usable
from bnce.losses.loss import OutputBatch, Words
from bnce.machine.precision import at_least_float32, product_dtype, product_in_float32, sum_dtype
from bnce.rows import gather as read_rows
from bnce.rows import table_gradient

# Numbers in one block of scores: few enough that a CPU takes memory of this size again and again without asking the
# system for it (of twice as many, a chunk loss takes a fifth longer), enough to fill the chip on a GPU.
MAX_SCORES = {"cpu": 2**20, "cuda": 2**25}
MAX_EXACT = {"cpu": 2**21, "cuda": 2**25}  # of the many small products of B-NCE, which are a tenth faster with it
MAX_LOGITS = {"cpu": 2**22, "cuda": 2**31}  # where every row of the tables is a column: few positions in a block


class Block(NamedTuple):
    """What a rule is called with."""

    product_PRM: Tensor  # h·w, in the type of products or in float32
    gradient_PRM: Tensor  # where the gradient goes
    offset_PM: Tensor  # c − ln Z + shift, in float32 or wider
    counts_PR: Tensor | None  # 1 where a row counts, else its loss; None: all count
    own_PR: Tensor | None  # the score of a row's own target, where that is no column
    rows: tuple[Tensor, ...]  # (P, R) what else there is for each row


Rule = Callable[[Block], Tensor]


@dataclass
class _Scoring:
    """What rows are scored against, and how losses come of the scores."""

    rule: Rule
    word_PM: Tensor | None
    shift_PM: Tensor | None
    counts_PR: Tensor | None
    rows: Sequence[Tensor]
    place_R: Tensor | None  # where among N positions each row's loss is added; None: rows are the positions
    num_positions: int
    sparse: bool
    is_exact: bool
    dtype: torch.dtype  # of products
    wants_gradients: bool  # already in the forward pass


def scored(
    batch: OutputBatch,
    words: Words,
    rule: Rule,
    *,
    hidden_TBD: Tensor | None = None,
    tables: tuple[Tensor, Tensor] | None = None,
    word_PM: Tensor | None = None,
    shift_PM: Tensor | None = None,
    log_z: Tensor | None = None,
    own_TB: Tensor | None = None,
    rows: Sequence[Tensor] = (),
    capacity: int | None = None,
    is_exact: bool = False,
) -> Tensor:
    """Compute the loss of every position (T, B) against columns of its time step, or columns that all share.

    `hidden_TBD` and `tables` are others than the batch's. `word_PM` are the columns, (T, M) or (1, M); None: every row
    of the tables in its order. `own_TB` are scores of own targets, which have a gradient. `rows` are (T, B) here.
    Where columns are shared, a `capacity` says how many positions count at most, for a fixed shape; without it only
    those that count become rows on a CPU. Products of a narrow type are float32 if `is_exact`.
    """
    is_eager, counts_TB, place_R = not torch.compiler.is_compiling(), words.counts_TB, None
    is_shared = word_PM is None or word_PM.shape[0] == 1
    if is_shared and counts_TB is not None:
        if capacity is not None:
            place_R = (counts_TB.flatten() == 1).float().sort(descending=True, stable=True).indices[:capacity]
        elif counts_TB.device.type == "cpu" and is_eager:
            (place_R,) = torch.nonzero(counts_TB.flatten() == 1, as_tuple=True)
            counts_TB = None

    def as_rows(values_TB: Tensor | None) -> Any:
        if values_TB is None or not is_shared:
            return values_TB
        values_N = values_TB.flatten(0, 1)
        return (values_N if place_R is None else values_N.index_select(0, place_R)).unsqueeze(0)

    hidden_TBD = batch.hidden_TBD if hidden_TBD is None else hidden_TBD
    weight_MD, bias_M = (batch.weight_VD, batch.bias_V) if tables is None else tables
    scoring = _Scoring(
        rule,
        word_PM,
        shift_PM,
        as_rows(counts_TB),
        tuple(as_rows(values_TB) for values_TB in rows),
        place_R,
        words.target_TB.numel(),
        batch.sparse,
        is_exact,
        product_dtype(weight_MD),
        # Asked here, because inside a Function gradients always look switched off. A compiler does not know the weights
        # of positions, so compiled code forms the gradients in its backward pass.
        torch.is_grad_enabled() and is_eager,
    )
    loss: Tensor = _Scored.apply(as_rows(hidden_TBD), weight_MD, bias_M, log_z, as_rows(own_TB), scoring)
    return loss.view(words.target_TB.shape)


class _Scored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tables, scoring = arguments
        loss_PR: Tensor
        loss_PR, *sums = _visit(tables, scoring, None, scoring.wants_gradients and any(ctx.needs_input_grad))
        ctx.scoring, ctx.num_sums = scoring, len(sums)
        ctx.save_for_backward(*sums, *tables)
        if scoring.place_R is None:
            return loss_PR
        return loss_PR.new_zeros(scoring.num_positions).index_add_(0, scoring.place_R, loss_PR[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # A backward pass records itself only with create_graph. It is refused here, because PyTorch would only complain
        # later, of a tensor without a gradient. A compiler records everything, and refuses by itself.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise UserError(
                "The loss has no second derivatives, so create_graph=True cannot be used with it: leave it out, or use "
                "the loss nce or snce."
            )
        scoring: _Scoring = ctx.scoring
        saved, (weight_of,) = ctx.saved_tensors, grads  # to be asked for once: checkpointing computes them again
        sums, tables = saved[: ctx.num_sums], saved[ctx.num_sums :]
        hidden_PRD, weight_VD, bias_V, log_z, _ = tables
        place_R = scoring.place_R
        weight_PR = weight_of if place_R is None else weight_of.index_select(0, place_R).unsqueeze(0)
        factor = weight_PR[:1, :1].sum()  # 0 where there are no positions
        if not sums or not _is_even(weight_of, weight_PR):
            if weight_PR.numel():  # of the size of 1, so that a narrow type holds their products with gradients
                factor = weight_PR.abs().amax().clamp(min=1e-30)
            _, *sums = _visit(tables, scoring, weight_PR / factor, True)
        hidden_grad, row_grad_PMD, bias_grad_PM = (part * factor for part in sums[:3])
        own_grad = None if sums[3] is None else sums[3] * factor
        log_z_grad = None if log_z is None else -bias_grad_PM.sum().to(log_z.dtype)
        table_grads: list[Tensor | None] = []
        for number, (table, grad) in enumerate(((weight_VD, row_grad_PMD), (bias_V, bias_grad_PM)), start=1):
            of_table = grad.flatten(0, 1).to(table.dtype)
            if scoring.word_PM is not None and ctx.needs_input_grad[number]:
                of_table = table_gradient(table.shape, scoring.word_PM.reshape(-1), of_table, sparse=scoring.sparse)
            table_grads.append(of_table if ctx.needs_input_grad[number] else None)
        return hidden_grad.to(hidden_PRD.dtype), *table_grads, log_z_grad, own_grad, None


def _is_even(weight_of: Tensor, weight_PR: Tensor) -> bool:
    """Say whether all rows have one weight. A GPU's host would have to wait for numbers, but that of a sum is one."""
    if all(stride == 0 or size == 1 for stride, size in zip(weight_of.stride(), weight_of.shape, strict=True)):
        return True
    return weight_of.device.type == "cpu" and bool((weight_PR == weight_PR[:1, :1]).all())


def _visit(
    tables: Sequence[Any], scoring: _Scoring, weight_PR: Tensor | None, wants_gradients: bool
) -> tuple[Any, ...]:
    """Give the losses (P, R), and if they are wanted the gradients of hidden rows, columns, biases and own scores.

    `weight_PR` are the weights of positions; None: 1.
    """
    hidden_PRD, weight_VD, bias_V, log_z, own_PR = tables
    (P, R, D), device, dtype = hidden_PRD.shape, hidden_PRD.device, scoring.dtype
    with torch.autocast(device.type, enabled=False):
        hidden_PRE, row_PME, offset_PM = _read(hidden_PRD, weight_VD, bias_V, log_z, scoring)
        _, M, E = row_PME.shape
        make = functools.partial(torch.zeros if P * R == 0 else torch.empty, dtype=sum_dtype(dtype), device=device)
        loss_PR, own_PR = make(P, R), None if own_PR is None else own_PR.clone()  # its gradients take their place
        if wants_gradients:
            hidden_grad_PRE, row_grad_PME = torch.empty_like(hidden_PRE), make(P, M, E)
            bias_grad_PM = torch.zeros(P, M, dtype=sum_dtype(dtype), device=device)
        memory: Tensor | None = None
        limits = MAX_LOGITS if scoring.word_PM is None else MAX_EXACT if scoring.is_exact else MAX_SCORES
        for here in _blocks(P, R, M, limits.get(device.type, limits["cuda"])):
            hidden_pre, row_pME = hidden_PRE[here], row_PME[here[0]]
            shape = *hidden_pre.shape[:2], M
            memory = torch.empty(math.prod(shape), dtype=dtype, device=device) if memory is None else memory
            gradient_PRM = memory[: math.prod(shape)].view(shape)
            if scoring.is_exact and dtype.itemsize < 4:
                product_PRM = product_in_float32(hidden_pre, row_pME.mT)
            else:
                product_PRM = _multiply(hidden_pre, row_pME.mT, gradient_PRM)  # Eq. (7)
            counts_pr, own_pr = (None if part is None else part[here] for part in (scoring.counts_PR, own_PR))
            rows = tuple(part[here] for part in scoring.rows)
            block = Block(product_PRM, gradient_PRM, offset_PM[here[0]], counts_pr, own_pr, rows)
            loss_PR[here] = scoring.rule(block)
            if not wants_gradients:
                continue
            if weight_PR is not None:
                gradient_PRM.mul_(weight_PR[here].unsqueeze(2))
            _multiply(gradient_PRM, row_pME, hidden_grad_PRE[here])  # Eq. (11)
            _multiply(gradient_PRM.mT, hidden_pre, row_grad_PME[here[0]], adds=here[1].start > 0)  # Eq. (9)
            if E == D:  # Eq. (10)
                bias_grad_PM[here[0]] += gradient_PRM.sum(1, dtype=bias_grad_PM.dtype)
        if not wants_gradients:
            return (loss_PR,)
        if own_PR is not None and weight_PR is not None:
            own_PR.mul_(weight_PR)
        if E > D:
            bias_grad_PM = row_grad_PME[..., D]
        num_columns = len(weight_VD) if scoring.word_PM is None else scoring.word_PM.shape[1]
        row_grad_PMD, bias_grad_PM = row_grad_PME[:, :num_columns, :D], bias_grad_PM[:, :num_columns]
        return loss_PR, hidden_grad_PRE[..., :D], row_grad_PMD, bias_grad_PM, own_PR


def _read(
    hidden_PRD: Tensor, weight_VD: Tensor, bias_V: Tensor, log_z: Tensor | None, scoring: _Scoring
) -> tuple[Tensor, Tensor, Tensor]:
    """Give hidden rows (P, R, E) and columns (P, M, E) in the type of products, and offsets (P, M)."""
    (P, R, D), word_PM, dtype = hidden_PRD.shape, scoring.word_PM, scoring.dtype
    if P * R and usable(weight_VD):
        from bnce.kernels.columns import gather, widen

        # Ones beside the hidden rows make the gradient of a bias one more column of that of its output row, for
        # nothing. Tensor cores read 16 bytes at a time, which the rest of the padding is for.
        word_PM = torch.arange(len(weight_VD), device=weight_VD.device).view(1, -1) if word_PM is None else word_PM
        E, M = (-(-size // 8) * 8 for size in (D + 1, word_PM.shape[1]))
        hidden_PRE = widen(hidden_PRD.flatten(0, 1), E, dtype).view(P, R, E)
        offset_PM, row_PME = gather(word_PM, scoring.shift_PM, weight_VD, bias_V, log_z, dtype, width=E, num_columns=M)
        return hidden_PRE, row_PME, offset_PM
    row_PMD, bias_PM = weight_VD.unsqueeze(0), bias_V.unsqueeze(0)
    if word_PM is not None:
        row_PMD, bias_PM = read_rows(weight_VD, word_PM), read_rows(bias_V, word_PM)
    offset_PM = at_least_float32(bias_PM)
    if log_z is not None:
        offset_PM = offset_PM - log_z
    if scoring.shift_PM is not None:
        offset_PM = offset_PM + scoring.shift_PM
    return hidden_PRD.to(dtype), row_PMD.to(dtype), offset_PM


def _blocks(num_problems: int, num_rows: int, num_columns: int, max_scores: int) -> Iterator[tuple[slice, slice]]:
    """Cut problems, and large ones by their rows, into blocks of equal size, so that the last is not a small one."""
    if torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling():  # an export, whose sizes stay open
        yield slice(0, num_problems), slice(0, num_rows)
        return

    def part(size: int, most: int) -> int:
        return -(-size // -(-size // max(1, most)))

    if num_problems * num_rows == 0:
        return
    size = part(num_rows, max_scores // max(1, num_columns))
    together = part(num_problems, max_scores // max(1, size * num_columns))
    for first in range(0, num_problems, together):
        for begin in range(0, num_rows, size):
            yield slice(first, min(first + together, num_problems)), slice(begin, min(begin + size, num_rows))


def _multiply(left: Tensor, right: Tensor, out: Tensor, adds: bool = False) -> Tensor:
    """Multiply matrices (P, …, …) into memory that is there, or add their product to it."""
    if left.dtype != out.dtype:
        product = product_in_float32(left, right)
        return out.add_(product) if adds else out.copy_(product)
    if len(left) == 1:
        out[0].addmm_(left[0], right[0], beta=float(adds))
    else:
        out.baddbmm_(left, right, beta=float(adds))
    return out


# What rules are made of.


def scores(block: Block) -> Tensor:
    """Compute the scores of a block (P, R, M), in the place of its products where these are wide."""
    return at_least_float32(block.product_PRM).add_(block.offset_PM.unsqueeze(1))


def finish(block: Block, gradient_PRM: Tensor, loss_PR: Tensor) -> Tensor:
    """Write the gradient of the scores to its place, and give the losses: what does not count has none."""
    block.gradient_PRM.copy_(gradient_PRM)  # nothing to do where they are one
    if block.counts_PR is None:
        return loss_PR
    counts_PR = block.counts_PR == 1
    block.gradient_PRM.masked_fill_(~counts_PR.unsqueeze(2), 0.0)
    if block.own_PR is not None:
        block.own_PR.masked_fill_(~counts_PR, 0.0)
    return torch.where(counts_PR, loss_PR, block.counts_PR)


def shares_(score_PRM: Tensor) -> Tensor:
    """Turn scores into their shares of Σ exp s, and give its logarithm (P, R, 1); of nothing −∞, and shares of NaN."""
    highest_PR1 = score_PRM.amax(2, keepdim=True)
    if score_PRM.device.type == "cpu" and not torch.compiler.is_compiling():
        torch.softmax(score_PRM, 2, out=score_PRM)  # row by row, so it needs no other memory
    else:
        score_PRM.copy_(torch.softmax(score_PRM, 2))
    # The largest share is exp(highest) / Σ exp s.
    return torch.where(highest_PR1 == -torch.inf, highest_PR1, highest_PR1 - score_PRM.amax(2, keepdim=True).log())
