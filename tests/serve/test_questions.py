"""Questions of all kinds asked together get the answers that the library gives to each alone."""

from __future__ import annotations

import numpy as np
import pytest

from bnce.scoring.batches import SentenceScorer
from bnce.scoring.prefixes import score_prefixes
from bnce.scoring.run_model import RunModel
from bnce.serve.questions import (
    EXACT_COST,
    Answerer,
    HypothesesQuestion,
    NextQuestion,
    Question,
    SentenceQuestion,
)
from bnce.spelling.model import SpellingModel
from tests.scoring.plain import BODIES

from .conftest import make_model


@pytest.mark.parametrize("body", BODIES)
def test_together_as_alone(body: str) -> None:
    model = make_model(body)
    texts = [text.split() for text in ("w3 w4 w5", "", "w9", "w3 w4 zebra w7 w7 w8")]
    questions: list[Question] = []
    for normalised in (False, True):
        questions += [SentenceQuestion(words, normalised) for words in texts]
        questions += [HypothesesQuestion(texts[:2], normalised), HypothesesQuestion(texts[1:], normalised)]
        questions += [
            NextQuestion([], 3, normalised),
            NextQuestion(["w3", "nobody"], 5, normalised),
        ]
    order = np.random.default_rng(1).permutation(len(questions))
    mixed = Answerer(model).answer([questions[place] for place in order])
    for place, answer in zip(order, mixed, strict=True):
        question = questions[place]
        if isinstance(question, SentenceQuestion):
            scorer = SentenceScorer(model.network, normalised=question.normalised)
            (alone,) = scorer.score([model.encode(question.words)])
            np.testing.assert_allclose(answer.log_probs, alone, atol=1e-5)
            assert answer.oov.tolist() == [*(word == "zebra" for word in question.words), False]
        elif isinstance(question, HypothesesQuestion):
            ids = [model.encode(words) for words in question.hypotheses]
            apart = score_prefixes(model.scorer(), ids, question.normalised)
            for one, other in zip(answer, apart, strict=True):
                np.testing.assert_allclose(one.log_probs, other, atol=1e-5)
        else:
            words = model.next_words(" ".join(question.words), question.num_next, normalised=question.normalised)
            assert [word.word for word in answer] == [word.word for word in words]
            assert [word.prob for word in answer] == pytest.approx([word.prob for word in words], rel=1e-5)


def test_spelt_beside_others() -> None:
    plain = make_model()
    spelling = SpellingModel.train(["zebras"]).leaving_out(plain.vocabulary.words)
    model = RunModel(plain.network, plain.vocabulary, plain.normaliser, spelling=spelling)
    questions = [SentenceQuestion(["w3", "zebra"], True, spell=spell) for spell in (False, True, False)]
    first, spelt, last = Answerer(model).answer(questions)
    np.testing.assert_array_equal(first.log_probs, last.log_probs)
    np.testing.assert_allclose(spelt.log_probs - first.log_probs, [0, *spelling.log_probs(["zebra"]), 0], atol=1e-6)


def test_what_fails_leaves_the_rest_alone() -> None:
    model = make_model(loss="softmax")
    good, bad = (SentenceQuestion(["w3"], normalised) for normalised in (True, False))
    first, failed, last = Answerer(model).answer([good, bad, good])
    assert isinstance(failed, ValueError)
    np.testing.assert_array_equal(first.log_probs, last.log_probs)


def test_exact_answers_take_up_more_of_a_batch() -> None:
    words = ["w3"] * 4
    exact, plain = (SentenceQuestion(words, normalised) for normalised in (True, False))
    assert exact.cost > plain.cost == 5  # with </s>
    assert HypothesesQuestion([words, words], False).cost == 10
    assert NextQuestion(["w3"], 5, True).cost > 1


def test_hypotheses_are_cut_into_pieces_that_fit_a_batch() -> None:
    hypotheses = [["w3"] * length for length in (2, 2, 2, 8, 0)]
    pieces = HypothesesQuestion(hypotheses, False).pieces(7)
    assert [[len(words) for words in piece.hypotheses] for piece in pieces] == [[2, 2], [2], [8], [0]]
    assert [len(piece.hypotheses) for piece in HypothesesQuestion(hypotheses, True).pieces(7 * EXACT_COST)] == [
        2,
        1,
        1,
        1,
    ]
    assert HypothesesQuestion([], False).pieces(7) == []
