"""How weights do on utterances that they were not tuned on, though there is only one set of lists.

Utterances are dealt into folds at random. Those of a fold are judged with weights that were tuned on all others.

Legend: U utterances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError, argument
from bnce.rescoring.rescore import Scores
from bnce.scoring.weights import Weights

SEED = 1  # the same lists give the same folds

Tune = Callable[[Scores, NDArray[np.int64]], Weights]


def cross_validate(
    scores: Scores, num_errors_N: NDArray[np.int64], num_folds: int, tune: Tune
) -> tuple[NDArray[np.int64], list[Weights]]:
    """Choose every utterance's hypothesis by weights that never saw it (U,); also give the weights of each fold."""
    num = len(scores.begins)
    check_folds(num_folds, num)
    fold_U = np.random.default_rng(SEED).permutation(num) % num_folds
    chosen_U = np.zeros(num, dtype=np.int64)
    found = []
    for fold in range(num_folds):
        seen, unseen = fold_U != fold, fold_U == fold
        weights = tune(_take(scores, seen), num_errors_N[_places(scores, seen)])
        chosen_U[unseen] = scores.best(weights)[unseen]
        found.append(weights)
    return chosen_U, found


def check_folds(num_folds: int, num_utterances: int) -> None:
    """Refuse folds that would be empty, or all."""
    if not 2 <= num_folds <= num_utterances:
        raise UserError(
            f"{argument('folds')} is {num_folds}, and there are {num_utterances} utterances: give 2 or more folds, and "
            "not more than utterances."
        )


def _take(scores: Scores, taken_U: NDArray[np.bool_]) -> Scores:
    """Take some utterances with all their scores."""
    taken_N = _places(scores, taken_U)
    utterances = [scores.nbest.utterances[place] for place in np.nonzero(taken_U)[0].tolist()]
    columns = {
        name: getattr(scores, name)[taken_N] for name in ("am_N", "old_lm_N", "lm_N", "num_words_N", "num_oov_N")
    }
    others = {name: own_N[taken_N] for name, own_N in scores.others.items()}
    return Scores(replace(scores.nbest, utterances=utterances), **columns, others=others)


def _places(scores: Scores, taken_U: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.repeat(taken_U, np.diff(scores.begins, append=len(scores.lm_N)))
