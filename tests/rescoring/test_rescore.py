"""Rescoring: scores as each hypothesis has them by itself, lists of any length, and who is the best."""

from __future__ import annotations

import numpy as np
import pytest
from small_corpus import SPECIALS, VOCAB_SIZE, small_model

from bnce import Normaliser
from bnce.corpus.vocabulary import Vocabulary
from bnce.rescoring import rescore as rescore_module
from bnce.rescoring.nbest import NBest, Utterance
from bnce.rescoring.rescore import FULL_COLUMNS, Judge, score_nbest
from bnce.scoring.run_model import RunModel
from bnce.scoring.weights import FIRST_BEST, Weights
from tests.scoring.plain import plain_log_probs

WORDS = [*SPECIALS, *(f"w{number}" for number in range(2, VOCAB_SIZE))]
LISTS = NBest(
    [
        Utterance(
            "a",
            ["w3 w4 w5", "w3 w4", "w3 zebra w5 yak", ""],
            {"am": [-1.0, -2.0, -3.0, -4.0], "old_lm": [-5.0, -6.0, -7.0, -8.0]},
        ),
        Utterance("b", ["w9"], {"am": [-1.0], "old_lm": [-1.0]}),
        Utterance("c", ["w3 w4 w6", "w3 w4 w6"], {"am": [0.0, 0.0], "old_lm": [0.0, 0.0]}),
    ],
    ("am", "old_lm"),
)


def make_model(body: str = "lstm") -> RunModel:
    return RunModel(small_model(body, order=4), Vocabulary(WORDS), Normaliser(True, "whitespace", "lines"))


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("body", ["ffnn", "lstm", "transformer"])
def test_every_hypothesis_has_its_own_score(body: str, normalised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(body)
    done: list[int] = []
    monkeypatch.setattr(rescore_module, "BLOCK_HYPOTHESES", 3)
    scores = score_nbest(model, LISTS, done.append, normalised=normalised)
    assert done == [4, 3]  # whole utterances, though one has more than a block
    texts = [text for utterance in LISTS.utterances for text in utterance.texts]
    for text, found in zip(texts, scores.lm_N, strict=True):
        expected = plain_log_probs(model.network, model.encode(text.split()).tolist(), normalised).sum()
        assert found == pytest.approx(expected, abs=1e-4)
    assert scores.num_words_N.tolist() == [3, 2, 4, 0, 1, 3, 3]
    assert scores.num_oov_N.tolist() == [0, 0, 2, 0, 0, 0, 0]
    assert scores.begins.tolist() == [0, 4, 5]
    assert LISTS.num_hypotheses == len(texts) == 7


def test_the_best_by_weights() -> None:
    scores = score_nbest(make_model(), LISTS)
    # By the acoustic score alone, the first of equals.
    assert scores.best(Weights(lm_weight=0)).tolist() == [0, 4, 5]
    assert scores.best(Weights(am_weight=-1, lm_weight=0)).tolist() == [3, 4, 5]
    assert scores.best(Weights(0, 0, 0, word_penalty=-100)).tolist() == [2, 4, 5]
    assert scores.best(Weights(0, 0, 0, word_penalty=100)).tolist() == [3, 4, 5]
    assert scores.best(Weights(0, 0, 0, -100, 1000)).tolist() == [0, 4, 5]
    assert scores.best(FIRST_BEST).tolist() == [0, 4, 5]
    assert scores.best(Weights(0, 0, 0, rank_weight=-1)).tolist() == [3, 4, 6]
    weights = Weights(0.5, 0.25, 2.0, 0.125, 3.0, 0.7)
    expected = 0.5 * -3 + 0.25 * -7 + 2.0 * scores.lm_N[2] - 0.125 * 4 - 3.0 * 2 - 0.7 * np.log(3)
    assert scores.total(weights)[2] == pytest.approx(expected)
    assert list(scores.best_texts(Weights(am_weight=-1, lm_weight=0))) == [("a", ""), ("b", "w9"), ("c", "w3 w4 w6")]


def test_rows_have_all_scores_the_best_first() -> None:
    scores = score_nbest(make_model(), LISTS)
    rows = list(scores.rows(Weights(am_weight=-1, lm_weight=0)))
    assert all(tuple(row) == FULL_COLUMNS for row in rows)
    assert [row["place"] for row in rows] == [4, 3, 2, 1, 1, 1, 2]
    assert rows[1] | {"ln_prob": 0} == {
        "utt": "a", "place": 3, "total": 3.0, "am": -3.0, "old_lm": -7.0, "ln_prob": 0, "num_words": 4, "num_oov": 2,
        "hypothesis": "w3 zebra w5 yak",
    }  # fmt: skip
    bare = score_nbest(make_model(), NBest([Utterance("a", ["w3"])]))
    (row,) = bare.rows(Weights())
    assert (row["am"], row["old_lm"]) == (None, None)
    assert row["total"] == row["ln_prob"]


def test_the_judge() -> None:
    pytest.importorskip("jiwer")
    judge = Judge(LISTS, ["w3 w4", "w9", "w3 w4"])
    assert judge.num_errors_N.tolist() == [1, 0, 3, 2, 0, 1, 1]
    assert judge.judge(judge.first_U).total == 2
    assert judge.judge(judge.oracle_U).total == 1
    assert judge.judge(np.array([2, 4, 6])).total == 4
    assert judge.judge(judge.first_U).num_words == 5
