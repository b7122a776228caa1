"""One word among scores: the probabilities, and the limits on them. And texts of such words, which a seed decides.

Legend: B texts side by side, K words, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_corpus import END, UNK, small_model

from bnce import Sampling, UserError
from bnce.language_model import LanguageModel
from bnce.scoring.sampling import draw, generate, nucleus, sample_words

PROBS = [0.05, 0.3, 0.4, 0.2, 0.05]  # the second is <unk>


def shares(sampling: Sampling, num_draws: int = 20_000) -> np.ndarray:
    """Measure how often each word is chosen."""
    score_BV = np.log(np.tile(np.array(PROBS, dtype=np.float32), (num_draws, 1))) + np.float32(3.0)
    words = sample_words(score_BV, sampling, np.random.default_rng(1))
    return np.bincount(words, minlength=len(PROBS)) / num_draws


def normalised(weights: list[float]) -> np.ndarray:
    return np.array(weights) / np.sum(weights)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(allow_unknown=True), PROBS),
        (Sampling(), [0.05, 0, 0.4, 0.2, 0.05]),
        (Sampling(temperature=0.5), [0.05**2, 0, 0.4**2, 0.2**2, 0.05**2]),
        (Sampling(temperature=2.0), [0.05**0.5, 0, 0.4**0.5, 0.2**0.5, 0.05**0.5]),
        (Sampling(top_k=2), [0, 0, 0.4, 0.2, 0]),
        (Sampling(top_k=99), [0.05, 0, 0.4, 0.2, 0.05]),
        # The likeliest alone make up 0.57 of what is left without <unk>, the two likeliest 0.86.
        (Sampling(top_p=0.55), [0, 0, 1, 0, 0]),
        (Sampling(top_p=0.6), [0, 0, 0.4, 0.2, 0]),
        (Sampling(top_k=3, top_p=0.9, allow_unknown=True), [0, 0.3, 0.4, 0.2, 0]),
        (Sampling(temperature=0.0), [0, 0, 1, 0, 0]),
        (Sampling(temperature=1e-42), [0, 0, 1, 0, 0]),
        # Nothing in float32, and more than it holds.
        (Sampling(temperature=1e-300), [0, 0, 1, 0, 0]),
        (Sampling(temperature=1e-300, top_k=2), [0, 0, 1, 0, 0]),
        (Sampling(temperature=1e300), [1, 0, 1, 1, 1]),
        (Sampling(temperature=1e300, top_k=99, top_p=0.999), [1, 0, 1, 1, 1]),
        (Sampling(top_p=1e-9), [0, 0, 1, 0, 0]),
    ],
)
def test_words_are_chosen_with_these_probabilities(sampling: Sampling, expected: list[float]) -> None:
    seen = shares(sampling)
    expected_V = normalised(expected)
    # Four standard deviations of a share of 20,000 draws are less than this.
    np.testing.assert_allclose(seen, expected_V, atol=0.015)
    assert not np.any(seen[expected_V == 0])


def test_what_cannot_be_is_refused() -> None:
    for temperature in (-0.1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="The temperature is"):
            Sampling(temperature=temperature)
    with pytest.raises(UserError, match="top-k is -1"):
        Sampling(top_k=-1)
    for top_p in (0.0, -1.0, 1.01, float("nan")):
        with pytest.raises(UserError, match="top-p is"):
            Sampling(top_p=top_p)


def sorted_nucleus(prob_V: np.ndarray, top_p: float) -> np.ndarray:
    """Keep the likeliest words up to top_p by sorting them all, in float64."""
    order = np.argsort(-prob_V, kind="stable")
    before = np.cumsum(prob_V[order]) - prob_V[order]
    kept = np.zeros_like(prob_V)
    kept[order[before < top_p]] = prob_V[order[before < top_p]]
    return kept


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.1, 3.0])  # nearly uniform: thousands of words make it up; or a few do
def test_a_nucleus_found_without_sorting_is_the_sorted_one(spread: float, top_p: float) -> None:
    weight_BV = np.exp(spread * np.random.default_rng(2).standard_normal((3, 20_000), dtype=np.float32))
    prob_BV = weight_BV / weight_BV.sum(1, keepdims=True)
    prob_BK, word_BK = nucleus(prob_BV, top_p)
    found_BV = np.zeros_like(prob_BV)
    np.put_along_axis(found_BV, word_BK, prob_BK, 1)
    for found_V, prob_V in zip(found_BV, prob_BV.astype(np.float64), strict=True):
        expected_V = sorted_nucleus(prob_V, top_p)
        # Sums in float32 may end one or two words sooner or later.
        assert abs(np.count_nonzero(found_V) - np.count_nonzero(expected_V)) <= 3
        assert np.abs(found_V - expected_V).sum() < 1e-3
    if spread == 3.0 and top_p < 0.999:
        assert prob_BK.shape[1] < 20_000


def test_places_of_no_weight_are_never_drawn() -> None:
    weights_BK = np.tile([0.0, 0.3, 0.0, 0.7, 0.0], (50_000, 1))
    seen = np.bincount(draw(weights_BK, np.random.default_rng(3)), minlength=5) / 50_000
    np.testing.assert_allclose(seen, [0, 0.3, 0, 0.7, 0], atol=0.01)


def greedy(model: LanguageModel, prompt: list[int], max_words: int) -> list[int]:
    """Take the likeliest word each time, reading the whole text anew for every word."""
    words: list[int] = []
    with torch.no_grad():
        while len(words) < max_words and END not in words:
            context = [END] * (model.num_context + 1) + prompt + words
            hidden_TBD, _ = model(torch.tensor(context).unsqueeze(1), model.initial_state(1))
            score_V = model.output.all_scores(hidden_TBD[-1])[0]
            score_V[UNK] = -torch.inf
            words.append(int(score_V.argmax()))
    return words


@pytest.mark.parametrize("body", ["lstm", "rnn", "ffnn", "transformer"])
@pytest.mark.parametrize("prompt", [[], [5], [5, UNK, 7, 2, 9]])
def test_goes_on_from_all_that_stands_before(body: str, prompt: list[int]) -> None:
    model = small_model(body, order=4).eval()
    expected = greedy(model, prompt, max_words=12)
    texts = generate(model, prompt, num_texts=3, max_words=12, sampling=Sampling(temperature=0), seed=1)
    assert texts == [expected] * 3


def test_texts_end_by_themselves_or_at_the_limit() -> None:
    model = small_model("lstm").eval()
    texts = generate(model, [], num_texts=60, max_words=8, sampling=Sampling(), seed=1)
    assert len(texts) == 60
    assert all(END not in text[:-1] for text in texts)
    assert all(len(text) == 8 or text[-1] == END for text in texts)
    lengths = {len(text) for text in texts}
    assert 8 in lengths
    assert len(lengths) > 2
    assert all(UNK not in text for text in texts)


def test_stops_when_all_texts_have_ended() -> None:
    model = small_model("lstm").eval()
    with torch.no_grad():
        model.output.bias[END] = 1000.0
    assert generate(model, [], num_texts=2, max_words=10**9, sampling=Sampling(), seed=1) == [[END], [END]]


def test_a_seed_is_all_that_decides() -> None:
    model = small_model("ffnn").eval()
    first = generate(model, [3], 5, 10, Sampling(), seed=4)
    state = torch.get_rng_state()
    assert generate(model, [3], 5, 10, Sampling(), seed=4) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert generate(model, [3], 5, 10, Sampling(), seed=5) != first


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=3), Sampling(top_p=0.8), Sampling(temperature=0)])
def test_texts_do_not_depend_on_how_the_vocabulary_is_cut(monkeypatch: pytest.MonkeyPatch, sampling: Sampling) -> None:
    model = small_model("lstm").eval()
    whole = generate(model, [4], 6, 8, sampling, seed=2)
    monkeypatch.setattr("bnce.scoring.engine.BLOCK_NUMBERS", 30)
    assert generate(model, [4], 6, 8, sampling, seed=2) == whole
