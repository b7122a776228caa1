"""Tuning: it finds weights that are known to be there, keeps what is given, and is the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from bnce.rescoring.nbest import NBest, Utterance
from bnce.rescoring.rescore import Scores
from bnce.rescoring.tuning import tune
from bnce.scoring.weights import Weights

U, H = 200, 20


def made_up(truth: Weights, seed: int = 1, has_am: bool = True, has_old_lm: bool = True) -> tuple[Scores, np.ndarray]:
    """Draw scores, and let the hypothesis that is best by `truth` be the one without errors."""
    generator = np.random.default_rng(seed)
    am_N, old_lm_N, lm_N = (generator.normal(size=U * H) * scale for scale in (10.0, 5.0, 5.0))
    num_words_N = generator.integers(3, 12, U * H).astype(float)
    num_oov_N = generator.integers(0, 3, U * H).astype(float)
    nbest = NBest([Utterance(str(number), ["x"] * H) for number in range(U)], has_am, has_old_lm)
    none = np.zeros(U * H)
    scores = Scores(nbest, am_N if has_am else none, old_lm_N if has_old_lm else none, lm_N, num_words_N, num_oov_N)
    rank_UH = np.argsort(np.argsort(-scores.total(truth).reshape(U, H), axis=1), axis=1)
    return scores, rank_UH.reshape(-1)


def num_errors(scores: Scores, num_errors_N: np.ndarray, weights: Weights) -> int:
    return int(num_errors_N[scores.best(weights)].sum())


@pytest.mark.parametrize(
    "truth", [Weights(1, 0.3, 7.0, 2.0, -3.0), Weights(1, 0.0, 0.1, 0.0, 0.0), Weights(1, 2.0, 0.0, -5.0, 10.0)]
)
def test_known_weights_are_found(truth: Weights) -> None:
    scores, errors_N = made_up(truth)
    start = Weights()
    found = tune(scores, errors_N, start)
    assert num_errors(scores, errors_N, found) < 0.05 * max(1, num_errors(scores, errors_N, start)) + 5
    assert found.am_weight == 1
    # Scores that were never seen are ranked nearly as well.
    others, other_errors_N = made_up(truth, seed=2)
    assert num_errors(others, other_errors_N, found) < 0.1 * num_errors(others, other_errors_N, Weights(1, 1, 1)) + 10
    assert tune(scores, errors_N, start) == found


def test_what_is_given_stays() -> None:
    scores, errors_N = made_up(Weights(1, 0.3, 7.0, 2.0, -3.0))
    start = Weights(lm_weight=0.5, word_penalty=1.0)
    found = tune(scores, errors_N, start, fixed=("lm_weight", "word_penalty"))
    assert (found.lm_weight, found.word_penalty, found.am_weight) == (0.5, 1.0, 1.0)
    assert num_errors(scores, errors_N, found) <= num_errors(scores, errors_N, start)
    assert tune(scores, errors_N, start, fixed=tuple(vars(start))) == start


def test_without_other_scores_the_new_model_is_the_measure() -> None:
    scores, errors_N = made_up(Weights(0, 0, 1, 4.0, 0.0), has_am=False, has_old_lm=False)
    found = tune(scores, errors_N, Weights())
    assert (found.lm_weight, found.old_lm_weight) == (1.0, 0.0)
    assert found.word_penalty == pytest.approx(4.0, rel=0.1)


def test_where_nothing_helps_nothing_changes() -> None:
    scores, errors_N = made_up(Weights())
    start = Weights(1, 0.2, 3.0, 0.5, 0.25)
    assert tune(scores, np.zeros_like(errors_N), start) == start
