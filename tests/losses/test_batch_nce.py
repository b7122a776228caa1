"""B-NCE and adaptive B-NCE against the paper's equations in float64, and the mistakes that must not pass for it.

The tolerance: a score is a float32 sum of h·w, c, ln Z, ln M and ln p_n, so it is wrong by about one unit of rounding
of the sum of their magnitudes. softplus and its derivative pass such an error on without making it larger. So a loss
may be wrong by EPS times the magnitudes of all its scores, a gradient by the same times what the score multiplies.

Legend: T time steps, B streams, K drawn words, M columns (B + K), D hidden, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bnce import Noise, OutputBatch, UserError
from bnce.losses.batch_nce import (
    batch_nce,
    classification_loss,
    column_offset,
    errors,
    loss_and_gradient,
    position_losses,
)
from tests.losses import reference

EPS = torch.finfo(torch.float32).eps
PARAMETERS = ("hidden_TBD", "weight_VD", "bias_V", "log_z")
SHAPES = [(1, 2, 0), (3, 7, 0), (2, 17, 0), (1, 1, 3), (1, 2, 1), (2, 5, 4), (4, 3, 9)]


def draw(batch: OutputBatch) -> Tensor:
    """Draw the words that the next call of the loss will draw."""
    torch.manual_seed(7)
    drawn_TK = batch.noise.sample((len(batch.target_TB), batch.num_noise))
    torch.manual_seed(7)
    return drawn_TK


def double(batch: OutputBatch) -> OutputBatch:
    """Copy the parameters to float64, as leaves that collect gradients of their own."""
    copies = {name: getattr(batch, name).detach().double().requires_grad_() for name in PARAMETERS}
    return dataclasses.replace(batch, **copies)


def reference_loss(batch: OutputBatch, drawn_TK: Tensor) -> Tensor:
    """Sum the reference over time steps, each cut down to the positions that count."""
    probs_V = batch.noise.log_probs_V.double().exp()
    loss = torch.zeros((), dtype=torch.float64)
    for t, target_B in enumerate(batch.target_TB):
        valid_B = torch.ones_like(target_B, dtype=torch.bool) if batch.valid_TB is None else batch.valid_TB[t]
        if int(valid_B.sum()) + batch.num_noise < 2 or not valid_B.any():
            continue
        loss = loss + reference.batch_nce_loss(
            batch.hidden_TBD[t][valid_B],
            batch.weight_VD,
            batch.bias_V,
            target_B[valid_B],
            drawn_TK[t],
            probs_V,
            batch.log_z,
        )
    return loss


@torch.no_grad()
def score_magnitudes(batch: OutputBatch, drawn_TK: Tensor) -> Tensor:
    """Sum the magnitudes of what each score (T, B, M) is summed from."""
    column_TM = torch.cat([batch.target_TB, drawn_TK], dim=1)
    product_TBM = batch.hidden_TBD.abs() @ batch.weight_VD.abs()[column_TM].transpose(1, 2)
    constants_TM = batch.bias_V.abs()[column_TM] + batch.log_z.abs() + batch.noise.log_prob(column_TM).abs()
    return product_TBM + constants_TM.unsqueeze(1) + math.log(column_TM.shape[1])


def loss_tolerance(batch: OutputBatch, drawn_TK: Tensor) -> float:
    return EPS * float(score_magnitudes(batch, drawn_TK).sum())


def assert_equal_to_reference(batch: OutputBatch) -> None:
    """Compare the loss and all four gradients with those of the reference."""
    drawn_TK = draw(batch)
    loss = batch_nce(batch)
    loss.backward()
    exact = double(batch)
    expected = reference_loss(exact, drawn_TK)
    expected.backward()
    assert abs(loss.item() - expected.item()) <= loss_tolerance(batch, drawn_TK)

    magnitude_TBM = score_magnitudes(batch, drawn_TK)
    weight_TMD = batch.weight_VD.detach().abs()[torch.cat([batch.target_TB, drawn_TK], dim=1)]
    largest_hidden = float(batch.hidden_TBD.detach().abs().max())
    total = float(magnitude_TBM.sum())
    allowed = {
        "hidden_TBD": EPS * float((magnitude_TBM @ weight_TMD).max()),
        "weight_VD": EPS * total * largest_hidden,
        "bias_V": EPS * total,
        "log_z": EPS * total,
    }
    for name, most in allowed.items():
        found = getattr(batch, name).grad
        found = found.to_dense() if found.is_sparse else found
        error = (found.double() - getattr(exact, name).grad).abs().max()
        assert float(error) <= most, name


@pytest.mark.parametrize(("T", "B", "K"), SHAPES)
@pytest.mark.parametrize("sparse", [False, True])
def test_equals_reference(make_batch: Callable[..., OutputBatch], T: int, B: int, K: int, sparse: bool) -> None:
    assert_equal_to_reference(make_batch(T, B, K, sparse=sparse))


def test_words_do_repeat_in_these_batches(make_batch: Callable[..., OutputBatch]) -> None:
    batch = make_batch(2, 5, 4)
    for target_B, drawn_K in zip(batch.target_TB.tolist(), draw(batch).tolist(), strict=True):
        assert len(set(target_B)) < len(target_B), "a target stands twice"
        assert set(target_B) & set(drawn_K), "a drawn word is a target"


@pytest.mark.parametrize("K", [0, 3])
def test_ragged_batch_equals_the_compacted_one(make_batch: Callable[..., OutputBatch], K: int) -> None:
    """Steps of 5, 2, 1, no and all valid positions, with holes between them."""
    rows = ("1110110", "0100100", "0001000", "0000000", "1111111")
    valid_TB = torch.tensor([[letter == "1" for letter in row] for row in rows])
    assert valid_TB.sum(1).tolist() == [5, 2, 1, 0, 7]
    assert_equal_to_reference(make_batch(5, 7, K, valid_TB=valid_TB))


def test_all_valid_equals_no_mask(make_batch: Callable[..., OutputBatch]) -> None:
    plain, masked = make_batch(3, 6), make_batch(3, 6, valid_TB=torch.ones(3, 6, dtype=torch.bool))
    assert batch_nce(masked).item() == pytest.approx(batch_nce(plain).item(), abs=loss_tolerance(plain, draw(plain)))


@pytest.mark.parametrize("K", [0, 2])
def test_masked_positions_have_no_part(make_batch: Callable[..., OutputBatch], K: int) -> None:
    """Neither their hidden row nor their target changes anything, and nothing flows back to them."""
    valid_TB = torch.tensor([[True, True, False, True]])
    batch = make_batch(1, 4, K, valid_TB=valid_TB)
    draw(batch)
    loss = batch_nce(batch)
    loss.backward()
    assert not batch.hidden_TBD.grad[~valid_TB].any()
    other = dataclasses.replace(
        batch,
        hidden_TBD=torch.where(valid_TB.unsqueeze(2), batch.hidden_TBD, 100.0),
        target_TB=torch.where(valid_TB, batch.target_TB, 10),
    )
    draw(other)
    assert batch_nce(other).item() == loss.item()


def test_one_position_and_nothing_drawn_is_refused(make_batch: Callable[..., OutputBatch]) -> None:
    with pytest.raises(UserError) as caught:
        batch_nce(make_batch(3, 1))
    assert str(caught.value) == (
        "B-NCE needs noise words, but the batch has 1 target and num_noise is 0: "
        "use a batch of at least 2 or set num_noise above 0."
    )


def test_huge_scores_stay_finite(make_batch: Callable[..., OutputBatch]) -> None:
    """exp(·)/Z would overflow here."""
    batch = make_batch(1, 4)
    loud = dataclasses.replace(batch, hidden_TBD=(batch.hidden_TBD.detach() * 1e4).requires_grad_())
    loss = batch_nce(loud)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(loud.hidden_TBD.grad).all()


def test_offset_is_float32_where_the_bias_is_not() -> None:
    offset_TM = column_offset(
        torch.ones(1, 2, dtype=torch.bfloat16), log_noise_TM=torch.full((1, 2), 0.001), log_num_noise=0.0, log_z=0.0
    )
    assert offset_TM.dtype == torch.float32
    assert float(offset_TM[0, 0]) == pytest.approx(0.999, abs=1e-6)


# The paper's explicit gradient, in float64.


@pytest.mark.parametrize(("T", "B", "K"), SHAPES)
def test_explicit_gradient_is_autograd_and_the_paper(
    make_batch: Callable[..., OutputBatch], T: int, B: int, K: int
) -> None:
    batch = make_batch(T, B, K)
    exact, drawn_TK = double(batch), draw(batch)
    column_TM = torch.cat([batch.target_TB, drawn_TK], dim=1)
    weight_TMD = exact.weight_VD.detach()[column_TM].requires_grad_()
    bias_TM = exact.bias_V.detach()[column_TM].requires_grad_()
    probs_V = batch.noise.log_probs_V.double().exp()
    log_odds_offset_TM = bias_TM - exact.log_z.detach() - math.log(B + K - 1) - probs_V[column_TM].log()
    score_TBM = exact.hidden_TBD @ weight_TMD.transpose(1, 2) + log_odds_offset_TM.unsqueeze(1)
    score_TBM.retain_grad()
    classification_loss(score_TBM).backward()

    no_offset_TM = torch.zeros_like(log_odds_offset_TM)
    _, gradient_TBM = loss_and_gradient(score_TBM.detach(), no_offset_TM, None, torch.float64)
    explicit = (gradient_TBM, *errors(gradient_TBM, exact.hidden_TBD.detach(), weight_TMD.detach()))
    for found, expected in zip(
        explicit, (score_TBM.grad, weight_TMD.grad, bias_TM.grad, exact.hidden_TBD.grad), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)

    for t in range(T):
        G, weight_error_DM, bias_error_M, hidden_error_BD = reference.batch_nce_gradient(
            exact.hidden_TBD.detach()[t],
            exact.weight_VD.detach(),
            exact.bias_V.detach(),
            batch.target_TB[t],
            drawn_TK[t],
            probs_V,
            exact.log_z.item(),
        )
        for found, expected in zip(explicit, (G, weight_error_DM.t(), bias_error_M, hidden_error_BD), strict=True):
            torch.testing.assert_close(found[t], expected, rtol=1e-11, atol=1e-13)


def test_losses_pass_gradcheck() -> None:
    generator = torch.Generator().manual_seed(3)
    score_TBM = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64).requires_grad_()
    valid_TB = torch.tensor([[True, False, True], [False, True, False]])
    assert torch.autograd.gradcheck(classification_loss, (score_TBM,))
    assert torch.autograd.gradcheck(lambda score: position_losses(score, valid_TB), (score_TBM,))


# The three classic mistakes, on one step with duplicates. The comparison above must be able to see each of them.


def scores_of_step(
    batch: OutputBatch, drawn_TK: Tensor, *, log_num_noise: float | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the scores (B, M) and the columns (M,) of a batch with one time step."""
    column_TM = torch.cat([batch.target_TB, drawn_TK], dim=1)
    offset_TM = column_offset(
        batch.bias_V[column_TM],
        log_noise_TM=batch.noise.log_prob(column_TM),
        log_num_noise=math.log(column_TM.shape[1] - 1) if log_num_noise is None else log_num_noise,
        log_z=batch.log_z,
    )
    product_TBM = batch.hidden_TBD @ batch.weight_VD[column_TM].transpose(1, 2)
    return (product_TBM + offset_TM.unsqueeze(1))[0], column_TM[0]


def mask_accidental_hits(batch: OutputBatch, drawn_TK: Tensor) -> Tensor:
    """Leave out the noise words that equal the row's own target, as sampled softmax does."""
    score_BM, column_M = scores_of_step(batch, drawn_TK)
    hit_BM = batch.target_TB[0].unsqueeze(1) == column_M
    return torch.where(hit_BM, 0.0, F.softplus(score_BM)).sum() + F.softplus(-score_BM.diagonal()).sum()


def drop_log_num_noise(batch: OutputBatch, drawn_TK: Tensor) -> Tensor:
    """Forget M."""
    score_BM, _ = scores_of_step(batch, drawn_TK, log_num_noise=0.0)
    return classification_loss(score_BM.unsqueeze(0))


def deduplicate(batch: OutputBatch, drawn_TK: Tensor) -> Tensor:
    """Score every different word once, and forget how many they were."""
    score_BM, column_M = scores_of_step(batch, drawn_TK)
    unique_U, place_M = torch.unique(column_M, return_inverse=True)
    first_U = torch.tensor([column_M.tolist().index(word) for word in unique_U.tolist()])
    score_BU, own_B = score_BM[:, first_U], place_M[: len(score_BM)].unsqueeze(1)
    # A position's own occurrence is data: its term changes from softplus(s) to softplus(−s).
    return F.softplus(score_BU).sum() - score_BU.gather(1, own_B).sum()


@pytest.mark.parametrize("K", [0, 4])
@pytest.mark.parametrize("mistake", [mask_accidental_hits, drop_log_num_noise, deduplicate])
def test_mistakes_are_seen(
    make_batch: Callable[..., OutputBatch], mistake: Callable[[OutputBatch, Tensor], Tensor], K: int
) -> None:
    batch = make_batch(1, 8, K)
    drawn_TK = draw(batch)
    expected = reference_loss(double(batch), drawn_TK)
    wrong = mistake(batch, drawn_TK)
    assert abs(wrong.item() - expected.item()) > 1000 * loss_tolerance(batch, drawn_TK)


# What the loss learns. Two contexts, three words, and a batch in exactly the proportions of the distribution.

COUNTS = torch.tensor([[100, 60, 40], [20, 20, 160]])  # context × word
WORD_PROBS = COUNTS.sum(0) / COUNTS.sum()


def batch_at_the_truth() -> OutputBatch:
    """Give a layer that answers p(w | c) exactly and is normalised by Z, before a batch drawn from p(w | c)."""
    log_z = 9.0
    pairs = [(context, word) for context in (0, 1) for word in (0, 1, 2) for _ in range(int(COUNTS[context, word]))]
    context_B, target_B = torch.tensor(pairs).unbind(1)
    truth_VD = (COUNTS / COUNTS.sum(1, keepdim=True)).t().log() + log_z
    return OutputBatch(
        hidden_TBD=F.one_hot(context_B, 2).float().unsqueeze(0),
        target_TB=target_B.unsqueeze(0),
        valid_TB=None,
        weight_VD=truth_VD.requires_grad_(),
        bias_V=torch.zeros(3),
        log_z=torch.tensor(log_z),
        noise=Noise(WORD_PROBS),
        num_noise=0,
        sparse=False,
    )


def pull(batch: OutputBatch, loss: Tensor) -> float:
    """Measure how far the loss wants to move any score, in units of how firmly it holds it there."""
    loss.backward()
    scores_per_context = COUNTS.sum(1)
    noise_VD = torch.outer(COUNTS.sum(0), scores_per_context).float()  # noise terms a word has in a context
    data = torch.sigmoid(batch.weight_VD.detach() - batch.log_z - math.log(399) - WORD_PROBS.log().unsqueeze(1))
    return float((batch.weight_VD.grad / (noise_VD * data)).abs().max())


def test_the_true_distribution_is_where_the_gradient_vanishes() -> None:
    batch = batch_at_the_truth()
    # A position is not its own noise: of the 60 to 200 occurrences of a word one is missing, in its own row alone.
    assert pull(batch, batch_nce(batch)) < 0.01


@pytest.mark.parametrize("mistake", [mask_accidental_hits, drop_log_num_noise, deduplicate])
def test_mistakes_learn_something_else(mistake: Callable[[OutputBatch, Tensor], Tensor]) -> None:
    batch = batch_at_the_truth()
    assert pull(batch, mistake(batch, torch.zeros(1, 0, dtype=torch.long))) > 0.2
