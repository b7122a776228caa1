"""Chunk B-NCE against its float64 reference, and that a position's own stream is no noise to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bnce import OutputBatch, UserError
from bnce.losses.blocked import MAX_SCORES
from bnce.losses.chunk_nce import NCE, all_pairs_nce, chunk_loss_by_position, chunk_nce
from bnce.losses.merged_chunk_nce import merged_chunk_loss
from tests.losses import reference

EPS = torch.finfo(torch.float32).eps
SHAPES = [(1, 2), (3, 7), (4, 5), (2, 17)]


def expected_loss(batch: OutputBatch) -> torch.Tensor:
    probs_V = batch.noise.log_probs_V.double().exp()
    return reference.chunk_nce_loss(
        batch.hidden_TBD, batch.weight_VD, batch.bias_V, batch.target_TB, probs_V, batch.log_z
    )


@pytest.mark.parametrize(("T", "B"), SHAPES)
@pytest.mark.parametrize("max_scores", [2**20, 40])
def test_equals_the_reference_with_its_gradients(
    make_batch: Callable[..., OutputBatch], T: int, B: int, max_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAX_SCORES, "cpu", max_scores)
    batch = make_batch(T, B, 0)
    leaves = [batch.hidden_TBD, batch.weight_VD, batch.bias_V, batch.log_z]
    expected = expected_loss(batch)
    expected_grads = torch.autograd.grad(expected, leaves)
    for loss in (merged_chunk_loss(batch, NCE.merged), chunk_loss_by_position(batch, NCE), all_pairs_nce(batch)):
        # A sum of some T²B² terms of the size of one, each with the rounding of a dot product.
        assert abs(float(loss.detach()) - float(expected.detach())) <= 64 * EPS * float(expected.detach())
        for found, wanted in zip(torch.autograd.grad(loss, leaves), expected_grads, strict=True):
            torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-4, atol=64 * EPS * float(wanted.norm()))


def test_one_step_of_a_chunk_is_plain_batch_nce(make_batch: Callable[..., OutputBatch]) -> None:
    from bnce.losses.batch_nce import batch_nce

    batch = make_batch(1, 7, 0)
    torch.testing.assert_close(chunk_nce(batch), batch_nce(batch))


def test_own_stream_is_left_out_by_position_not_by_word(make_batch: Callable[..., OutputBatch]) -> None:
    batch = make_batch(3, 4, 0)
    same = torch.full_like(batch.target_TB, 2)
    everywhere = OutputBatch(**{**vars(batch), "target_TB": same})
    # All targets are one word, and still every position has (B − 1)·T noise words.
    torch.testing.assert_close(chunk_nce(everywhere).double(), expected_loss(everywhere), rtol=1e-5, atol=0)


def test_masked_positions_are_neither_noise_nor_data(make_batch: Callable[..., OutputBatch]) -> None:
    batch = make_batch(2, 4, 0)
    valid_TB = torch.tensor([[True, True, True, False], [True, True, True, False]])
    masked = OutputBatch(**{**vars(batch), "valid_TB": valid_TB})
    kept = OutputBatch(
        **{**vars(batch), "hidden_TBD": batch.hidden_TBD[:, :3], "target_TB": batch.target_TB[:, :3].contiguous()}
    )
    torch.testing.assert_close(chunk_nce(masked), chunk_nce(kept), rtol=1e-5, atol=0)
    alone = OutputBatch(**{**vars(batch), "valid_TB": torch.tensor([[True, False, False, False]] * 2)})
    assert float(chunk_nce(alone).detach()) == 0.0


def test_refuses_one_stream_and_drawn_noise(make_batch: Callable[..., OutputBatch]) -> None:
    with pytest.raises(UserError, match="the batch has 1: use 2 or more"):
        chunk_nce(make_batch(3, 1, 2))
    with pytest.raises(UserError, match="num_noise is 2: set it to 0"):
        chunk_nce(make_batch(3, 4, 2))
