"""Questions of all kinds asked together get the answers that the library gives to each alone."""

from __future__ import annotations

import numpy as np
import pytest

from bnce.use.prefixes import score_prefixes
from bnce.use.score import SentenceScorer
from bnce.use.serve.questions import (
    EXACT_COST,
    Answerer,
    HypothesesQuestion,
    NextQuestion,
    Question,
    SentenceQuestion,
)

from ..plain import BODIES
from .conftest import make_model


@pytest.mark.parametrize("body", BODIES)
def test_together_as_alone(body: str) -> None:
    model = make_model(body)
    ids = [model.encode(text.split()) for text in ("w3 w4 w5", "", "w9", "w3 w4 zebra w7 w7 w8")]
    questions: list[Question] = []
    for normalised in (False, True):
        questions += [SentenceQuestion(sequence, normalised) for sequence in ids]
        questions += [HypothesesQuestion(ids[:2], normalised), HypothesesQuestion(ids[1:], normalised)]
        questions += [NextQuestion([], 3, normalised), NextQuestion(["w3", "nobody"], 5, normalised)]
    order = np.random.default_rng(1).permutation(len(questions))
    mixed = Answerer(model).answer([questions[place] for place in order])
    for place, answer in zip(order, mixed, strict=True):
        question = questions[place]
        mode = "normalised" if question.normalised else "unnormalised"
        if isinstance(question, SentenceQuestion):
            (alone,) = SentenceScorer(model.network, mode).score([question.ids])
            np.testing.assert_allclose(answer, alone, atol=1e-5)
        elif isinstance(question, HypothesesQuestion):
            apart = score_prefixes(model.scorer(), question.sequences, question.normalised)
            for one, other in zip(answer, apart, strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)
        else:
            words = model.next_words(" ".join(question.words), question.num_next, normalised=question.normalised)
            assert [word.word for word in answer] == [word.word for word in words]
            assert [word.prob for word in answer] == pytest.approx([word.prob for word in words], rel=1e-5)


def test_what_fails_leaves_the_rest_alone() -> None:
    model = make_model(loss="softmax")
    ids = model.encode(["w3"])
    good, bad = SentenceQuestion(ids, True), SentenceQuestion(ids, False)
    first, failed, last = Answerer(model).answer([good, bad, good])
    assert isinstance(failed, ValueError)
    np.testing.assert_array_equal(first, last)


def test_exact_answers_take_up_more_of_a_batch() -> None:
    ids = np.arange(5)
    assert SentenceQuestion(ids, True).cost > SentenceQuestion(ids, False).cost == 5
    assert HypothesesQuestion([ids, ids], False).cost == 10
    assert NextQuestion(["w3"], 5, True).cost > 1


def test_hypotheses_are_cut_into_pieces_that_fit_a_batch() -> None:
    sequences = [np.arange(length) for length in (3, 3, 3, 9, 1)]
    pieces = HypothesesQuestion(sequences, False).pieces(7)
    assert [[len(ids) for ids in piece.sequences] for piece in pieces] == [[3, 3], [3], [9], [1]]
    assert [len(piece.sequences) for piece in HypothesesQuestion(sequences, True).pieces(7 * EXACT_COST)] == [
        2,
        1,
        1,
        1,
    ]
    assert HypothesesQuestion([], False).pieces(7) == []
