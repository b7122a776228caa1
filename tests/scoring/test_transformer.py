"""A Transformer wherever text is scored: what `evaluate` finds, within its context of five words and far beyond it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_corpus import END, UNK, random_ids

from bnce import Sampling, Scorer
from bnce.evaluation.evaluate import CONTEXT, WINDOW, evaluate
from bnce.language_model import LanguageModel
from bnce.scoring.batches import SentenceScorer
from bnce.scoring.prefixes import score_prefixes
from bnce.scoring.sampling import generate
from bnce.scoring.scorer import State

from .plain import model_of, plain_log_probs

ATTENDED = 5  # words that a layer of the small model attends to
LENGTHS = [ATTENDED - 1, 40]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    made = model_of("transformer 2").eval()
    with torch.no_grad():
        for block in made.body.blocks:
            block.found.weight *= 20  # so that it is attention that chooses words
    assert made.body.context == ATTENDED
    assert all(parameter.any() for parameter in made.body.parameters()), "layers of zeros would hide attention"
    return made


def walk(scorer: Scorer, ids: np.ndarray) -> list[State]:
    """Go through a text word by word: the states before each of its words."""
    states = [scorer.start()]
    for word in ids[:-1].tolist():
        states += scorer.advance(states[-1:], [word])
    return states


def total(log_probs: np.ndarray | torch.Tensor) -> float:
    return float(log_probs.sum()) / math.log(10)


@pytest.mark.parametrize("length", LENGTHS)
def test_word_by_word(model: LanguageModel, length: int) -> None:
    scorer, ids = Scorer(model), random_ids(length)
    result, states = evaluate(model, ids), walk(scorer, ids)
    assert total(scorer.score(states, ids.tolist())) == pytest.approx(result.log10_prob_n, rel=1e-5)
    assert total(scorer.score(states, ids.tolist(), normalised=True)) == pytest.approx(result.log10_prob_f, rel=1e-5)
    without = [scorer.advance([scorer.start()], [int(word)])[0] for word in ids[:-1]]
    forgetful = scorer.score([scorer.start(), *without], ids.tolist())
    assert total(forgetful) != pytest.approx(result.log10_prob_n, rel=1e-3), "what is attended to does matter"


def test_a_text_of_several_windows(model: LanguageModel) -> None:
    """Two layers see nine words, of which each window has some before its first."""
    ids = random_ids(CONTEXT + WINDOW + 150)
    (found,) = SentenceScorer(model, carry=True).score([ids])
    assert total(found) == pytest.approx(evaluate(model, ids).log10_prob_n, rel=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
def test_hypotheses_that_share_prefixes(model: LanguageModel, length: int) -> None:
    """Each goes its own way from some word on, and is what `evaluate` finds for it alone."""
    texts = [random_ids(length, seed=1) for _ in range(4)]
    for place, text in enumerate(texts[1:], start=1):
        text[place * length // 4 :] = random_ids(length, seed=2 + place)[place * length // 4 :]
    for text, found in zip(texts, score_prefixes(Scorer(model), texts), strict=True):
        assert total(found) == pytest.approx(evaluate(model, text).log10_prob_n, rel=1e-5)


def test_hypotheses_after_texts_of_other_lengths(model: LanguageModel) -> None:
    """Some of the contexts are full, others not; a tree starts from each."""
    scorer = Scorer(model)
    before = [[], [4, 5], list(range(2, 14)), [7, 3, 9, 4]]
    states = [scorer.read([scorer.start()], [words])[0] for words in before]
    sentences = [[5, 6, 7, 8, 9, 10, END], [5, 6, 3, END], [2, END]]
    after = [state for state in states for _ in sentences]
    kept = [tuple(part.clone() for part in state.states.network) for state in states]
    found = iter(score_prefixes(scorer, sentences * len(states), after=after))
    for words in before:
        for sentence in sentences:
            np.testing.assert_allclose(next(found), plain_log_probs(model, sentence, before=words), atol=1e-5)
    for state, parts in zip(states, kept, strict=True):
        assert all(torch.equal(part, own) for part, own in zip(parts, state.states.network, strict=True))


def test_a_beam_that_reorders_itself(model: LanguageModel) -> None:
    """Hypotheses of all ages, a state shared by several of them."""
    scorer, generator = Scorer(model), np.random.default_rng(1)
    beam: list[tuple[list[int], State]] = [([], scorer.start())]
    for step in range(12):
        chosen = [beam[place] for place in generator.integers(0, len(beam), 3)]
        words = random_ids(3, seed=step).tolist()
        moved = scorer.advance([state for _, state in chosen], words)
        beam = [*beam[:2], *(([*own[0], word], state) for own, word, state in zip(chosen, words, moved, strict=True))]
    found = scorer.score([state for _, state in beam], [3] * len(beam))
    expected = [plain_log_probs(model, [3], before=history)[0] for history, _ in beam]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_greedy_text_is_the_likeliest_word_by_word(model: LanguageModel) -> None:
    """By `evaluate`, each word is at least as likely as all others that could stand there."""
    prompt = [5, 7, 2, 9, 4, 3, 8]
    (made,) = generate(model, prompt, 1, 6, Sampling(temperature=0), seed=1)
    for place, word in enumerate(made):
        history = [*prompt, *made[:place]]
        log_probs = {
            other: evaluate(model, np.array([*history, other])).log10_prob_f
            for other in range(model.output.vocab_size)
            if other != UNK
        }
        assert max(log_probs, key=lambda other: log_probs[other]) == word


def test_no_more_sentences_side_by_side_than_their_states_have_room(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = [random_ids(length) for length in (7, 7, 6, 5, 3)]
    expected = SentenceScorer(model).score(sentences)
    num_asked = []
    initial_state = model.body.initial_state

    def watched(num_streams: int) -> tuple[torch.Tensor, ...]:
        num_asked.append(num_streams)
        return initial_state(num_streams)

    monkeypatch.setattr(model.body, "initial_state", watched)
    per_state = sum(part.numel() for part in initial_state(1))
    monkeypatch.setattr("bnce.scoring.engine.STATE_NUMBERS", 3 * per_state - 1)
    found = SentenceScorer(model).score(sentences)
    assert max(num_asked) == 2
    for some, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(some, others, rtol=1e-5)
