"""Cross-validation: no utterance is judged by weights that saw it."""

from __future__ import annotations

import numpy as np
import pytest

from bnce import UserError
from bnce.rescoring.cross_validation import cross_validate
from bnce.rescoring.rescore import Scores
from bnce.rescoring.tuning import tune
from bnce.scoring.weights import Weights

from .test_tuning import H, U, made_up, num_errors


def test_every_utterance_is_judged_unseen() -> None:
    scores, errors_N = made_up(Weights())
    seen: list[set[str]] = []

    def find(found: Scores, own_N: np.ndarray) -> Weights:
        assert len(own_N) == len(found.lm_N) == H * len(found.nbest.utterances)
        seen.append({utterance.name for utterance in found.nbest.utterances})
        # A word penalty of its own for each fold, by which the choice shows whose weights it was.
        return Weights(0, 0, 0, word_penalty=100.0 if len(seen) == 1 else -100.0)

    chosen_U, weights = cross_validate(scores, errors_N, 4, find)
    assert [len(own) for own in seen] == [3 * U // 4] * 4
    assert set.intersection(*seen) == set()
    assert len(weights) == 4
    few = scores.best(weights[0])
    for number, place in enumerate(chosen_U.tolist()):
        was_first = str(number) not in seen[0]
        assert (place == few[number]) or not was_first


def test_weights_that_are_there_are_found_in_every_fold() -> None:
    scores, errors_N = made_up(Weights(1, 0.3, 7.0, 2.0, -3.0))
    chosen_U, _ = cross_validate(scores, errors_N, 3, lambda found, own_N: tune(found, own_N, Weights()))
    assert errors_N[chosen_U].sum() < 0.1 * num_errors(scores, errors_N, Weights()) + 10
    again_U, _ = cross_validate(scores, errors_N, 3, lambda found, own_N: tune(found, own_N, Weights()))
    np.testing.assert_array_equal(again_U, chosen_U)


@pytest.mark.parametrize("num_folds", [-1, 0, 1, U + 1])
def test_refused_folds(num_folds: int) -> None:
    scores, errors_N = made_up(Weights())
    with pytest.raises(UserError, match=f"folds is {num_folds}, and there are {U} utterances: give 2 or more"):
        cross_validate(scores, errors_N, num_folds, lambda found, own_N: Weights())
