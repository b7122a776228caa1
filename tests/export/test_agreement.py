"""The allowed difference: rounding passes, anything more does not, and a NaN never does."""

from __future__ import annotations

import pytest
import torch
from small_corpus import small_model

from bnce import UserError
from bnce.export.agreement import Agreement, all_word_scores


def agreement(shift: float) -> Agreement:
    torch.manual_seed(1)
    exact = torch.randn(100, dtype=torch.float64)
    seen = Agreement(0.0)
    seen.note([exact.float() + shift], [exact.float()], [exact])
    return seen


def test_rounding_is_allowed_and_no_more() -> None:
    agreement(0.0).require("It", "go")
    agreement(2e-7).require("It", "go")
    with pytest.raises(UserError, match=r"It differs from PyTorch by 1.*e-05, and float32 allows .*e-06: noth"):
        agreement(1e-5).require("It", "go")


def test_what_is_no_number_is_refused() -> None:
    for odd in (float("nan"), float("inf")):
        with pytest.raises(UserError, match="differs from PyTorch by"):
            agreement(odd).require("It", "go")
    # Also when a later comparison is fine again.
    seen = agreement(float("nan"))
    seen.note([torch.ones(2)], [torch.ones(2)], [torch.ones(2)])
    with pytest.raises(UserError, match="by nan"):
        seen.require("It", "go")


def test_the_largest_of_all_comparisons_counts() -> None:
    seen = agreement(1e-5)
    seen.note([torch.ones(2)], [torch.ones(2)], [torch.ones(2)])
    assert seen.difference == pytest.approx(1e-5, rel=0.1)


def test_plain_scores_are_the_layer_s() -> None:
    layer, hidden = (model := small_model("lstm")).output, torch.randn(2, 3, 8)
    words = torch.randint(layer.vocab_size, (2, 3, 4))
    expected = layer.log_probs(hidden, words, normalised=False)
    scores, log_sum = all_word_scores(model, hidden, torch.float32)
    torch.testing.assert_close(scores.gather(2, words), expected)
    torch.testing.assert_close(scores.gather(2, words) - log_sum.unsqueeze(2), layer.log_probs(hidden, words))
