"""A Transformer wherever text is scored: each word as it is alone, within its context of five words and far beyond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_corpus import END, open_small_run, random_ids

from .models import WORDS, run_model
from .plain import model_of, plain_log_probs

ATTENDED = 5  # words that a layer of the small model attends to


@pytest.fixture(scope="module")
def network() -> Any:
    made = model_of("transformer 2").eval()
    assert made.body.context == ATTENDED
    assert all(parameter.any() for parameter in made.body.parameters()), "layers of zeros would hide attention"
    return made


def spelt(ids: Any) -> list[str]:
    return [WORDS[number] for number in ids]


def test_a_text_of_several_passes(network: Any) -> None:
    """Two layers see nine words, of which each pass has some before its first."""
    texts = [random_ids(length, seed=length) for length in (700, 90)]
    texts = [text[text != END] for text in texts]
    whole = np.concatenate([[*text.tolist(), END] for text in texts])
    found = run_model(network).score([" ".join(spelt(text)) for text in texts], carry=True)
    log_probs = np.concatenate([one.log10_probs for one in found]) * np.log(10)
    for place in (0, 5, 300, 511, 512, 513, 640, len(whole) - 1):
        # What stands further before is out of its sight.
        (expected,) = plain_log_probs(network, [int(whole[place])], before=whole[max(0, place - 20) : place].tolist())
        assert log_probs[place] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("normalised", [False, True])
def test_a_list_is_read_side_by_side(normalised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not word by word: to go on from a history copies the keys and values of all of its words."""
    model = open_small_run("transformer", num_layers=2, num_heads=2, context=ATTENDED)
    start = [f"w{number}" for number in range(2, 14)]
    hypotheses = [[*start[:length], f"w{last}"] for length in (0, 3, 12) for last in (5, 7, 9)]
    passes: list[tuple[int, ...]] = []
    forward = model.network.forward
    monkeypatch.setattr(model.network, "forward", lambda *given: passes.append(given[0].shape) or forward(*given))
    together = model.score_words(hypotheses, normalised=normalised, share_prefixes=True)
    assert passes == [(1 + len(start) + 1, len(hypotheses))]
    for words, found in zip(hypotheses, together, strict=True):
        (alone,) = model.score_words([words], normalised=normalised)
        np.testing.assert_allclose(found.log_probs, alone.log_probs, atol=1e-6)


def score_shared(network: Any, texts: list[Any], after: Any = None) -> list[np.ndarray]:
    """Score texts that share beginnings, each with its end."""
    words = [spelt(text) for text in texts]
    return [one.log_probs for one in run_model(network).score_words(words, share_prefixes=True, after=after)]


def test_hypotheses_after_texts_of_other_lengths(network: Any) -> None:
    """Some of the contexts are full, others not; a tree starts from each, and none changes."""
    model = run_model(network)
    before = [[4, 5], list(range(2, 14)), [7, 3, 9, 4]]
    states = [model.start(), *(model.read(model.start(), " ".join(spelt(words))) for words in before)]
    sentences = [[5, 6, 7, 8, 9, 10], [5, 6, 3], [2]]
    for _ in range(2):
        found = iter(score_shared(network, sentences * 4, [state for state in states for _ in sentences]))
        for words in ([], *([*words, END] for words in before)):
            for sentence in sentences:
                expected = plain_log_probs(network, [*sentence, END], before=words)
                np.testing.assert_allclose(next(found), expected, atol=1e-5)


def test_no_more_sentences_side_by_side_than_their_states_have_room(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = run_model(network)
    sentences = [spelt(random_ids(length)) for length in (7, 7, 6, 5, 3)]
    expected = model.score_words(sentences)
    num_asked = []
    initial_state = network.body.initial_state

    def watched(num_streams: int) -> tuple[torch.Tensor, ...]:
        num_asked.append(num_streams)
        return initial_state(num_streams)

    monkeypatch.setattr(network.body, "initial_state", watched)
    per_state = sum(part.numel() for part in initial_state(1))
    monkeypatch.setattr("bnce.scoring.engine.STATE_NUMBERS", 3 * per_state - 1)
    found = model.score_words(sentences)
    assert max(num_asked) == 2
    for some, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(some.log_probs, others.log_probs, rtol=1e-5)
