"""Tuning: it finds weights that are known to be there, keeps what is given, and is the same every time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bnce.rescoring.nbest import NBest, Utterance
from bnce.rescoring.rescore import Scores
from bnce.rescoring.tuning import free_weights, tune
from bnce.scoring.weights import FIRST_BEST, Weights

U, H = 200, 20


def made_up(truth: Weights, seed: int = 1, has_am: bool = True, has_old_lm: bool = True) -> tuple[Scores, np.ndarray]:
    """Draw scores, and let the hypothesis that is best by `truth` be the one without errors."""
    generator = np.random.default_rng(seed)
    am_N, old_lm_N, lm_N = (generator.normal(size=U * H) * scale for scale in (10.0, 5.0, 5.0))
    num_words_N = generator.integers(3, 12, U * H).astype(float)
    num_oov_N = generator.integers(0, 3, U * H).astype(float)
    names = tuple(name for name, has in (("am", has_am), ("old_lm", has_old_lm)) if has)
    nbest = NBest([Utterance(str(number), ["x"] * H) for number in range(U)], names)
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


def test_without_scores_and_rank_the_new_model_is_the_measure() -> None:
    scores, errors_N = made_up(Weights(0, 0, 1, 4.0, 0.0), has_am=False, has_old_lm=False)
    found = tune(scores, errors_N, Weights())
    assert (found.lm_weight, found.old_lm_weight) == (1.0, 0.0)
    assert found.word_penalty == pytest.approx(4.0, rel=0.1)


def test_where_nothing_helps_the_first_best_stays() -> None:
    scores, errors_N = made_up(Weights())
    start = Weights(1, 0.2, 3.0, 0.5, 0.25)
    assert tune(scores, np.zeros_like(errors_N), start) == FIRST_BEST
    # Weights that lose to the first best are refused, though all were given.
    worse_N = np.ones_like(errors_N)
    worse_N[scores.begins] = 0
    assert tune(scores, worse_N, start, fixed=tuple(vars(start))) == FIRST_BEST


def listed(num_better: int, num_worse: int) -> tuple[Scores, np.ndarray]:
    """Let the second of each list be the model's choice: right in some utterances, wrong in others, else the same."""
    pairs = NBest([Utterance(str(number), ["x", "y"]) for number in range(U)], ("am",))
    none = np.zeros(2 * U)
    errors_UH = np.ones((U, 2), dtype=np.int64)
    errors_UH[:num_better, 1] = 0
    errors_UH[num_better : num_better + num_worse, 1] = 2
    lm_N = np.tile([0.0, 1.0], U)
    return Scores(pairs, none, none, lm_N, none, none), errors_UH.reshape(-1)


@pytest.mark.parametrize(("num_better", "num_worse", "kept"), [(1, 0, True), (5, 4, True), (9, 6, True), (9, 0, False)])
def test_a_gain_within_chance_is_no_gain(num_better: int, num_worse: int, kept: bool) -> None:
    scores, errors_N = listed(num_better, num_worse)
    found = tune(scores, errors_N, Weights())
    assert (found == FIRST_BEST) is kept
    assert num_errors(scores, errors_N, found) <= int(errors_N[scores.begins].sum())


def test_one_utterance_does_not_bring_a_large_weight() -> None:
    scores, errors_N = listed(10, 0)
    lm_N, am_N, num_oov_N = (np.zeros((U, 2)) for _ in range(3))
    lm_N[:, 1] = -1.0
    lm_N[:10, 1] = 1.0
    # One more error goes away with a penalty of 64, if the recogniser is overruled with all its might.
    am_N[-1, 1], num_oov_N[-1, 0] = -60.0, 1.0
    errors_N[-1] = 0
    made = [column.reshape(-1) for column in (am_N, lm_N, num_oov_N)]
    found = tune(replace(scores, am_N=made[0], lm_N=made[1], num_oov_N=made[2]), errors_N, Weights())
    assert found.oov_penalty == 0
    assert 0 < found.lm_weight <= 1


def test_without_scores_the_rank_is_the_measure() -> None:
    truth = Weights(0, 0, 0.25, 0.5, 0.0, rank_weight=1.0)
    scores, errors_N = made_up(truth, has_am=False, has_old_lm=False)
    start = Weights(am_weight=0.0, rank_weight=1.0)
    found = tune(scores, errors_N, start)
    assert (found.rank_weight, found.am_weight) == (1.0, 0.0)
    assert found.lm_weight == pytest.approx(0.25, rel=0.2)
    assert found.word_penalty == pytest.approx(0.5, rel=0.2)
    assert free_weights(scores, start, ("word_penalty",)) == ["lm_weight", "oov_penalty"]


def test_named_scores_are_tuned_together() -> None:
    scores, _ = made_up(Weights())
    generator = np.random.default_rng(7)
    others = {
        "dec": generator.normal(size=U * H) * 10,
        "ctc": generator.normal(size=U * H) * 10,
        "none": np.zeros(U * H),
    }
    scores = replace(scores, others=others)
    truth = Weights(1, 0.3, 2.0, 0.0, 0.0, scores=(("ctc", 0.5), ("dec", -2.0)))
    rank_UH = np.argsort(np.argsort(-scores.total(truth).reshape(U, H), axis=1), axis=1)
    errors_N = rank_UH.reshape(-1)
    assert free_weights(scores, Weights())[2:4] == ["scores.dec", "scores.ctc"]
    found = tune(scores, errors_N, Weights())
    assert num_errors(scores, errors_N, found) < 0.05 * num_errors(scores, errors_N, Weights()) + 5
    assert found.value("scores.dec") == pytest.approx(-2.0, rel=0.2)
    held = tune(scores, errors_N, Weights(scores=(("dec", -2.0),)), fixed=("scores.dec",))
    assert held.value("scores.dec") == -2.0
