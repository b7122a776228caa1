"""Lists in the order of speaking: every score is that after the chosen hypotheses before, document by document."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from small_corpus import END, SPECIALS, VOCAB_SIZE, small_model

from bnce import Normaliser, UserError
from bnce.corpus.vocabulary import Vocabulary
from bnce.rescoring import rescore as rescore_module
from bnce.rescoring.in_order import MAX_ROUNDS, find_documents, score_in_order, tune_in_order
from bnce.rescoring.nbest import NBest, Utterance
from bnce.rescoring.rescore import Scores, score_nbest
from bnce.scoring import prefixes as prefixes_module
from bnce.scoring.mixture import MixtureModel
from bnce.scoring.run_model import RunModel
from bnce.scoring.weights import FIRST_BEST, Weights
from tests.scoring.plain import plain_log_probs
from tests.scoring.unigram import Unigram

WORDS = [*SPECIALS, *(f"w{number}" for number in range(2, VOCAB_SIZE))]
NAMES = ["s-1-01", "s-1-02", "t-9-01", "s-1-03", "t-9-02"]
TEXTS = [
    ["w3 w4 w5", "w3 w4", ""],
    ["w6 w7", "zebra w7"],
    ["w3 w4 w5"],
    ["w8", "w9 w3", "w8 w8 w4"],
    ["w3", "w4"],
]
AM = [[0.0, 1.0, -1.0], [0.0, 0.5], [0.0], [0.0, 0.0, 0.0], [1.0, 2.0]]
LISTS = NBest(
    [
        Utterance(name, texts, {"am": am}, after_blank=name == "t-9-01")
        for name, texts, am in zip(NAMES, TEXTS, AM, strict=True)
    ],
    ("am",),
)
WEIGHTS = Weights(lm_weight=0.3)


def make_model(body: str = "lstm") -> RunModel:
    return RunModel(small_model(body, order=4), Vocabulary(WORDS), Normaliser(True, "whitespace", "lines"))


def plainly(
    model: RunModel, documents: list[list[int]], weights: Weights | None, normalised: bool = False
) -> np.ndarray:
    """Score one hypothesis at a time, all that came before it anew each time, in float64."""
    found: list[list[float]] = [[] for _ in TEXTS]
    for document in documents:
        before: list[int] = []
        for place in document:
            ids = [[*model.vocabulary.encode(text.split()).tolist(), END] for text in TEXTS[place]]
            found[place] = [float(plain_log_probs(model.network, own, normalised, before).sum()) for own in ids]
            num_oov = [text.count("zebra") for text in TEXTS[place]]
            chosen = 0
            if weights is not None:
                num_words = np.array([len(text.split()) for text in TEXTS[place]])
                log_place = np.log(1 + np.arange(len(num_words)))
                given = (np.array(AM[place]), 0.0, np.array(found[place]), num_words, np.array(num_oov), log_place)
                totals = weights.total(*given)
                chosen = int(np.argmax(totals))
            before += ids[chosen]
    return np.array(list(itertools.chain.from_iterable(found)))


@pytest.mark.parametrize("small_blocks", [False, True])
@pytest.mark.parametrize(("body", "normalised"), [("lstm", False), ("relu-lstm", True), ("ffnn", False)])
@pytest.mark.parametrize(
    "weights", [None, WEIGHTS, Weights(lm_weight=0, am_weight=-1), Weights(lm_weight=0.3, rank_weight=-5)]
)
def test_equals_scoring_all_that_came_before_anew(
    body: str, normalised: bool, weights: Weights | None, small_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small_blocks:
        monkeypatch.setattr(rescore_module, "BLOCK_HYPOTHESES", 2)
        monkeypatch.setattr(prefixes_module, "TREE_SEQUENCES", 2)
    model, done = make_model(body), []
    for documents, places in ((None, [[0, 1, 2, 3, 4]]), ("s|t", [[0, 1, 3], [2, 4]])):
        done.clear()
        scores = score_in_order(model, LISTS, weights, documents, done.append, normalised=normalised)
        np.testing.assert_allclose(scores.lm_N, plainly(model, places, weights, normalised), atol=1e-4)
        assert sum(done) == LISTS.num_hypotheses
        assert scores.num_oov_N.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    apart = score_nbest(model, LISTS, normalised=normalised)
    assert np.abs(apart.lm_N[3:] - scores.lm_N[3:]).max() > 1e-2


def test_documents() -> None:
    assert find_documents(LISTS) == [[0, 1, 2, 3, 4]]
    assert find_documents(LISTS, "blank") == [[0, 1], [2, 3, 4]]
    assert find_documents(LISTS, "[^-]+-[^-]+") == [[0, 1, 3], [2, 4]]
    assert find_documents(LISTS, "(.)-") == [[0, 1, 3], [2, 4]]  # the group counts
    with pytest.raises(UserError, match=r"'s-1-01' does not begin with a match of '\[0-9\]'"):
        find_documents(LISTS, "[0-9]")
    with pytest.raises(UserError, match="which is not a regular expression"):
        find_documents(LISTS, "(")


def test_each_part_of_a_mixture_has_its_own_context() -> None:
    one, other = make_model("lstm"), make_model("rnn")
    mixed = score_in_order(MixtureModel([one, other], [0.4, 0.6]), LISTS, None, "s|t")
    for weight, alone in ((1.0, one), (0.0, other)):
        found = score_in_order(MixtureModel([one, other], [weight, 1 - weight]), LISTS, None, "s|t")
        np.testing.assert_allclose(found.lm_N, score_in_order(alone, LISTS, None, "s|t").lm_N, atol=1e-5)
        assert np.abs(found.lm_N - mixed.lm_N).max() > 1e-3

    # What remembers nothing scores as it does without order.
    plain = Unigram({f"w{number}": 1 / (number + 2) ** 2 for number in range(2, 10)})
    np.testing.assert_allclose(score_in_order(plain, LISTS, None).lm_N, score_nbest(plain, LISTS).lm_N, atol=1e-5)


def test_weights_and_context_agree_in_the_end() -> None:
    asked: list[Weights | None] = []
    model = make_model()

    def score(weights: Weights | None) -> Scores:
        asked.append(weights)
        return score_in_order(model, LISTS, weights)

    answers = iter([Weights(lm_weight=2), Weights(lm_weight=3), Weights(lm_weight=3), Weights(lm_weight=4)])
    scores, weights = tune_in_order(score, lambda scores: next(answers), lambda *_: False)
    assert asked == [None, Weights(lm_weight=2), Weights(lm_weight=3)]
    assert weights == Weights(lm_weight=3)
    np.testing.assert_array_equal(scores.lm_N, score(weights).lm_N)
    # Where they never agree, the last scores are still those of the last weights.
    asked.clear()
    endless = (Weights(lm_weight=number) for number in range(1, 100))
    _, weights = tune_in_order(score, lambda scores: next(endless), lambda *_: False)
    assert asked[-1] == weights
    assert len(asked) == 1 + MAX_ROUNDS
    # Weights that lose with the context that they choose themselves are refused.
    scores, weights = tune_in_order(score, lambda _: Weights(lm_weight=3), lambda _, found: found.lm_weight == 3)
    assert weights == FIRST_BEST
    np.testing.assert_array_equal(scores.lm_N, score(None).lm_N)


def test_from_python_an_utterance_at_a_time() -> None:
    model = make_model()
    expected = score_in_order(model, LISTS, Weights(lm_weight=0.3))
    state, found = model.start(), []
    for utterance in LISTS.utterances:
        rescored = model.rescore(
            list(zip(utterance.texts, utterance.scores["am"], strict=True)), lm_weight=0.3, after=state
        )
        found += [one.log_prob for one in sorted(rescored, key=lambda one: one.place)]
        state = model.read(state, rescored[0].text)
    np.testing.assert_allclose(found, expected.lm_N, atol=1e-5)
