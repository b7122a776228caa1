"""The one autograd Function of all losses: positions are scored against columns, and a rule makes losses of the scores.

    s = h·w + c − ln Z + shift           a score: an output row w and its bias c, and a shift that has no gradient
    rule: scores → losses, G = ∂loss/∂s  the paper's G; ΔW, ΔC and E(L) are products with it, Eqs. (9) to (11)

A loss says which words are the columns and gives a rule. Blocks, weights of positions, masks, gradients by row, and
types of numbers are here. All scores at once would not fit into memory, so a block of positions is visited at a time,
and its products become their gradients in place.

The forward pass forms the gradients of the sum, too. If all positions have the same weight, as in a sum or a mean, the
backward pass only scales them by it; else it visits the blocks again, which costs one product more.

A rule is called with a `Block` and the loss's own tensors, and does all between the two products:

    rule(block, *shared) -> loss_PR

It reads `product_PRM`, adds `offset_PM` and `shift_PR`, writes the gradient of the scores into `gradient_PRM` (which is
the memory of the products unless their types differ), turns `own_PR` into the gradient of its scores, and gives the loss
of every row in float32 or wider. Shapes do not depend on the data. An offset is −∞ where a column does not count: the
rule must find nothing there. `counts_PR` is 1 where a row counts; where it does not, its gradient is 0 and its loss is
`counts_PR` itself, 0 or NaN. `rows` and `shared` have fixed lengths, so a kernel can take a block in one launch: it has
the signature of its plain rule.

Legend: P problems with columns of their own (the T time steps, or 1), R rows of each (its positions), M columns of
each, D hidden, E = D padded, V rows of the tables, N positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bnce import rows
from bnce.errors import UserError
from bnce.machine.precision import at_least_float32, product_dtype, product_in_float32, sum_dtype, widen

# Numbers in one block of scores: near the processor on a CPU, enough to fill the chip on a GPU.
MAX_SCORES = {"cpu": 2**20, "cuda": 2**25}
# The same where every word is a column, of which a block has few positions.
MAX_LOGITS = {"cpu": 2**22, "cuda": 2**31}


class Block(NamedTuple):
    """What a rule is called with."""

    product_PRM: Tensor  # h·w, in the type of products or in float32
    gradient_PRM: Tensor  # where the gradient goes
    offset_PM: Tensor  # c − ln Z + shift, in float32 or wider
    shift_PR: Tensor | None  # what else is added to all scores of a row
    counts_PR: Tensor | None  # 1 where a row counts, else its loss; None: all count
    own_PR: Tensor | None  # the score of a row's own target, where that is no column
    rows: tuple[Tensor, ...]  # (P, R) what else there is for each row


Rule = Callable[..., Tensor]


class Plan(NamedTuple):
    """What the Function is told beside tensors."""

    rule: Rule
    dtype: torch.dtype  # of products
    is_exact: bool  # whether products of a narrow type are to be float32
    sparse: bool  # gradients of tables by row
    max_scores: int
    wants_gradients: bool
    num_rows: int  # how many of the tensors are `rows`
    num_positions: int | None  # N, where losses are put in places


def scored(
    hidden_PRD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    rule: Rule,
    *,
    log_z: Tensor | None = None,
    word_PM: Tensor | None = None,
    shift_PM: Tensor | None = None,
    shift_PR: Tensor | None = None,
    counts_PR: Tensor | None = None,
    own_word_PR: Tensor | None = None,
    own_shift_PR: Tensor | None = None,
    rows: Sequence[Tensor] = (),
    shared: Sequence[Tensor] = (),
    place_R: Tensor | None = None,
    num_positions: int | None = None,
    sparse: bool = False,
    is_exact: bool = False,
) -> Tensor:
    """Compute the loss of every row (P, R); with `place_R` of every position (N,), where each row's loss is added.

    `word_PM` are the columns, None: every row of the tables in its order. `own_word_PR` are the rows' own targets where
    these are scored apart, because they are no columns; they have no ln Z.
    """
    limits = MAX_LOGITS if word_PM is None else MAX_SCORES
    plan = Plan(
        rule,
        product_dtype(weight_VD),
        is_exact,
        sparse and word_PM is not None,
        limits.get(hidden_PRD.device.type, limits["cuda"]),
        # Asked here, because inside a Function gradients always look switched off. A compiler cannot know the weights
        # of positions, so its backward pass always forms the gradients.
        torch.is_grad_enabled() and not torch.compiler.is_compiling(),
        len(rows),
        num_positions,
    )
    given = (word_PM, shift_PM, shift_PR, counts_PR, own_word_PR, own_shift_PR, place_R)
    loss: Tensor = _Scored.apply(hidden_PRD, weight_VD, bias_V, log_z, plan, *given, *rows, *shared)
    return loss


class _Scored(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_PRD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor,
        log_z: Tensor | None,
        plan: Plan,
        *tensors: Tensor | None,
    ) -> Tensor:
        wants_gradients = plan.wants_gradients and any(ctx.needs_input_grad)
        loss_PR, *sums = _visit(hidden_PRD, weight_VD, bias_V, log_z, plan, tensors, None, wants_gradients)
        ctx.plan, ctx.num_sums = plan, len(sums)
        ctx.save_for_backward(*sums, hidden_PRD, weight_VD, bias_V, log_z, *tensors)
        place_R = tensors[6]
        if place_R is None:
            return loss_PR
        assert plan.num_positions is not None
        return loss_PR.new_zeros(plan.num_positions).index_add_(0, place_R, loss_PR[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # A backward pass records itself only with create_graph: refused at once, because PyTorch would only complain
        # later, of a tensor without a gradient. A compiler records everything, and refuses by itself.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise UserError(
                "The loss has no second derivatives, so create_graph=True cannot be used with it: leave it out, or use "
                "the loss nce or snce."
            )
        found: tuple[Tensor | None, ...] = _backward(ctx, *grads)
        return found


@once_differentiable
def _backward(ctx: Any, weight_of: Tensor) -> tuple[Tensor | None, ...]:
    plan: Plan = ctx.plan
    saved = ctx.saved_tensors
    sums, (hidden_PRD, weight_VD, bias_V, log_z, *tensors) = saved[: ctx.num_sums], saved[ctx.num_sums :]
    word_PM, own_word_PR, place_R = tensors[0], tensors[4], tensors[6]
    weight_PR = weight_of if place_R is None else weight_of.index_select(0, place_R).unsqueeze(0)
    if sums and (_is_expanded(weight_of) or _is_even(weight_PR)):
        factor = weight_PR[:1, :1].sum()  # 0 where there are no positions
        hidden_PRD_, weight_MD, bias_M = (part * factor.to(part.dtype) for part in sums)
    else:
        gradients = _visit(hidden_PRD, weight_VD, bias_V, log_z, plan, tensors, weight_PR, True)
        _, hidden_PRD_, weight_MD, bias_M = gradients
    weight_MD = weight_MD.to(weight_VD.dtype)
    log_z_grad = None
    if log_z is not None and ctx.needs_input_grad[3]:
        log_z_grad = -bias_M.sum().to(log_z.dtype).reshape(log_z.shape)
    bias_M = bias_M.to(bias_V.dtype)
    if word_PM is not None:
        word_M = _all_words(word_PM, own_word_PR)
        weight_MD = rows.table_gradient(weight_VD.shape, word_M, weight_MD, sparse=plan.sparse)
        bias_M = rows.table_gradient(bias_V.shape, word_M, bias_M, sparse=plan.sparse)
    return hidden_PRD_.to(hidden_PRD.dtype), weight_MD, bias_M, log_z_grad, None, *(None for _ in tensors)


def _is_expanded(weight_of: Tensor) -> bool:
    """Say whether the weights of positions are one number in memory, as those of a sum are."""
    return all(stride == 0 or size == 1 for stride, size in zip(weight_of.stride(), weight_of.shape, strict=True))


def _is_even(weight_PR: Tensor) -> bool:
    """Say whether they are equal numbers; a GPU's host would have to wait to know it."""
    return weight_PR.device.type == "cpu" and bool((weight_PR == weight_PR[:1, :1]).all())


def _visit(
    hidden_PRD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    log_z: Tensor | None,
    plan: Plan,
    tensors: Sequence[Tensor | None],
    weight_PR: Tensor | None,
    wants_gradients: bool,
) -> tuple[Tensor, ...]:
    """Give the losses (P, R), and if they are wanted the gradients of hidden rows, output rows, and biases.

    Rows of the tables come in the order of `_all_words`. `weight_PR` are the weights of positions; None: 1.
    """
    word_PM, shift_PM, shift_PR, counts_PR, own_word_PR, own_shift_PR, _, *others = tensors
    of_rows, shared = others[: plan.num_rows], others[plan.num_rows :]
    (P, R, D), dtype = hidden_PRD.shape, plan.dtype
    with torch.autocast(hidden_PRD.device.type, enabled=False):
        word_M = None if word_PM is None else _all_words(word_PM, own_word_PR)
        weight_MD = weight_VD if word_M is None else weight_VD.index_select(0, word_M)
        bias_M = at_least_float32(bias_V if word_M is None else bias_V.index_select(0, word_M))
        num_own = 0 if own_word_PR is None else own_word_PR.shape[1]
        offset_PM = bias_M[num_own:].view(P, -1) if log_z is None else bias_M[num_own:].view(P, -1) - log_z
        if shift_PM is not None:
            offset_PM = offset_PM + shift_PM
        own_PR = None
        if own_shift_PR is not None:
            own_R = torch.linalg.vecdot(at_least_float32(hidden_PRD[0]), at_least_float32(weight_MD[:num_own]))
            own_PR = own_R + bias_M[:num_own] + own_shift_PR
        # Ones beside the hidden rows make the gradient of a bias one more column of that of its output row, for nothing
        # on a GPU, and without adding up in a narrow type: a sum in bf16 has lost half of it.
        has_ones = hidden_PRD.device.type != "cpu" or dtype.itemsize < 4
        hidden_PRE, row_ME = hidden_PRD.to(dtype), weight_MD.to(dtype)
        if has_ones:
            hidden_PRE = widen(hidden_PRD.flatten(0, 1), 1.0, dtype).view(P, R, -1)
            row_ME = widen(weight_MD, 0.0, dtype)
        E, num_columns = row_ME.shape[1], offset_PM.shape[1]
        row_PME = row_ME[num_own:].view(P, num_columns, E)
        if dtype.itemsize < 4 and num_columns % 8:  # tensor cores read 16 bytes at a time
            row_PME = F.pad(row_PME, (0, 0, 0, -num_columns % 8))
            offset_PM = F.pad(offset_PM, (0, -num_columns % 8), value=-torch.inf)
        M = row_PME.shape[1]
        weighted_PRE = hidden_PRE if weight_PR is None else hidden_PRE * weight_PR.to(dtype).unsqueeze(2)
        make = torch.zeros if P * R == 0 else torch.empty
        of_sums = {"dtype": sum_dtype(dtype), "device": hidden_PRD.device}
        loss_PR = make(P, R, **of_sums)
        if wants_gradients:
            hidden_grad_PRE = torch.empty_like(hidden_PRE)
            row_grad_ME, bias_grad_M = make(num_own + P * M, E, **of_sums), make(num_own + P * M, **of_sums)
            row_grad_PME, bias_grad_PM = row_grad_ME[num_own:].view(P, M, E), bias_grad_M[num_own:].view(P, M)
        memory: Tensor | None = None
        for problems, positions in _blocks(P, R, M, plan.max_scores):
            here, (p, r, _) = (problems, positions), hidden_PRE[problems, positions].shape
            if memory is None:
                memory = torch.empty(p * r * M, dtype=dtype, device=hidden_PRD.device)
            gradient_PRM = memory[: p * r * M].view(p, r, M)
            if plan.is_exact and dtype.itemsize < 4:
                product_PRM = product_in_float32(hidden_PRE[here], row_PME[problems].mT)
            else:
                product_PRM = _multiply(hidden_PRE[here], row_PME[problems].mT, gradient_PRM)  # Eq. (7)
            shift, counts, own = (None if part is None else part[here] for part in (shift_PR, counts_PR, own_PR))
            rows_here = tuple(part[here] for part in of_rows if part is not None)
            block = Block(product_PRM, gradient_PRM, offset_PM[problems], shift, counts, own, rows_here)
            loss_PR[here] = plan.rule(block, *shared)
            if not wants_gradients:
                continue
            is_first = positions.start == 0
            _multiply(gradient_PRM, row_PME[problems], hidden_grad_PRE[here])  # Eq. (11)
            _multiply(gradient_PRM.mT, weighted_PRE[here], row_grad_PME[problems], adds=not is_first)  # Eq. (9)
            if not has_ones:  # Eq. (10)
                total_PM = gradient_PRM.sum(1) if weight_PR is None else _sum_rows(gradient_PRM, weight_PR[here])
                bias_grad_PM[problems] = total_PM if is_first else bias_grad_PM[problems] + total_PM
        if not wants_gradients:
            return (loss_PR,)
        if has_ones:
            bias_grad_PM.copy_(row_grad_PME[..., D])
        if own_PR is not None:
            own_R1 = (own_PR if weight_PR is None else own_PR * weight_PR)[0].unsqueeze(1)
            torch.mul(own_R1, hidden_PRE[0], out=row_grad_ME[:num_own])
            bias_grad_M[:num_own] = own_R1.squeeze(1)
            hidden_grad_PRE[0].addcmul_(own_PR[0].unsqueeze(1).to(dtype), row_ME[:num_own])
        if weight_PR is not None:
            hidden_grad_PRE.mul_(weight_PR.to(dtype).unsqueeze(2))
        if P > 1 and M > num_columns:
            row_grad_ME = row_grad_PME[:, :num_columns].reshape(-1, E)
            bias_grad_M = bias_grad_PM[:, :num_columns].reshape(-1)
        num_rows = num_own + P * num_columns
        return loss_PR, hidden_grad_PRE[..., :D], row_grad_ME[:num_rows, :D], bias_grad_M[:num_rows]


def _all_words(word_PM: Tensor, own_word_PR: Tensor | None) -> Tensor:
    """Put own targets and columns in one dimension: one gather from a table has one gradient."""
    word_M = word_PM.reshape(-1)
    return word_M if own_word_PR is None else torch.cat([own_word_PR[0], word_M])


def _blocks(num_problems: int, num_rows: int, num_columns: int, max_scores: int) -> Iterator[tuple[slice, slice]]:
    """Cut problems, and large ones by their rows, into blocks of equal size, so that the last is not a small one."""
    if num_problems * num_rows == 0:
        return
    of_problem = num_rows * num_columns
    num_parts = -(-of_problem // max_scores)
    size = -(-num_rows // num_parts) if num_parts > 1 else num_rows
    num_blocks = -(-num_problems // max(1, max_scores // max(1, of_problem)))
    together = -(-num_problems // num_blocks)
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


def _sum_rows(gradient_PRM: Tensor, weight_PR: Tensor) -> Tensor:
    return torch.matmul(weight_PR.to(gradient_PRM.dtype).unsqueeze(1), gradient_PRM).squeeze(1)


# What rules are made of.


def scores(block: Block) -> Tensor:
    """Compute the scores of a block (P, R, M), in the place of its products where these are wide."""
    score_PRM = at_least_float32(block.product_PRM).add_(block.offset_PM.unsqueeze(1))
    return score_PRM if block.shift_PR is None else score_PRM.add_(block.shift_PR.unsqueeze(2))


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
