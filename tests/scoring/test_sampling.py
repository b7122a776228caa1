"""One word among scores: the probabilities, and the limits on them. And texts of such words, which a seed decides.

Legend: B texts side by side, K words, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_corpus import END, SPECIALS, UNK, small_model

from bnce import Model, Sampling, UserError

from .models import WORDS, run_model
from .plain import model_of

PROBS = [0.05, 0.3, 0.4, 0.2, 0.05]  # the first ends a text, the second is <unk>


def fixed_model(probs: np.ndarray) -> Model:
    """Make a run that gives these probabilities, whatever came before; they need not sum to one."""
    network = small_model("ffnn", vocab_size=len(probs)).eval()
    with torch.no_grad():
        network.output.weight.zero_()
        network.output.bias.copy_(torch.from_numpy(np.log(probs) + 3.0))
    return run_model(network, [*SPECIALS, *(f"w{number}" for number in range(2, len(probs)))])


def drawn(probs: np.ndarray, sampling: Sampling, num_draws: int) -> np.ndarray:
    """Count how often each word is chosen."""
    texts = fixed_model(probs).generate("", num_draws, 1, sampling, seed=1)
    # A text that has not ended by itself ends in "…".
    words = [text.removesuffix(" …") or "</s>" for text in texts]
    numbers = [SPECIALS.index(word) if word in SPECIALS else int(word.removeprefix("w")) for word in words]
    return np.bincount(numbers, minlength=len(probs))


def normalised(weights: list[float]) -> np.ndarray:
    return np.array(weights) / np.sum(weights)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.05, 0, 0.4, 0.2, 0.05]),
        (Sampling(temperature=0.5), [0.05**2, 0, 0.4**2, 0.2**2, 0.05**2]),
        (Sampling(temperature=2.0), [0.05**0.5, 0, 0.4**0.5, 0.2**0.5, 0.05**0.5]),
        (Sampling(top_k=2), [0, 0, 0.4, 0.2, 0]),
        (Sampling(top_k=99), [0.05, 0, 0.4, 0.2, 0.05]),
        # The likeliest alone make up 0.57 of what is left without <unk>, the two likeliest 0.86.
        (Sampling(top_p=0.55), [0, 0, 1, 0, 0]),
        (Sampling(top_p=0.6), [0, 0, 0.4, 0.2, 0]),
        (Sampling(top_k=3, top_p=0.8), [0, 0, 0.4, 0.2, 0]),
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
    seen = drawn(np.array(PROBS), sampling, 20_000) / 20_000
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
def test_a_nucleus_is_what_sorting_all_words_finds(spread: float, top_p: float) -> None:
    weight_V = np.exp(spread * np.random.default_rng(2).standard_normal(5000))
    seen = drawn(weight_V, Sampling(top_p=top_p), 2000)
    weight_V[UNK] = 0.0
    prob_V = weight_V / weight_V.sum()
    order = np.argsort(-prob_V, kind="stable")
    num_kept = np.count_nonzero(np.cumsum(prob_V[order]) - prob_V[order] < top_p)
    # Sums in float32 may end one or two words sooner or later.
    assert not seen[order[num_kept + 3 :]].any()
    # The words of the less likely half are drawn as often as they should be, too.
    half = order[num_kept // 2 : num_kept]
    expected = prob_V[half].sum() / prob_V[order[:num_kept]].sum()
    assert seen[half].sum() / 2000 == pytest.approx(expected, abs=0.04)


def greedy(network: Any, prompt: list[int], max_words: int) -> list[int]:
    """Take the likeliest word each time, reading the whole text anew for every word."""
    words: list[int] = []
    with torch.no_grad():
        while len(words) < max_words and END not in words:
            context = [END] * (network.num_context + 1) + prompt + words
            hidden_TBD, _ = network(torch.tensor(context).unsqueeze(1), network.initial_state(1))
            score_V = network.output.all_scores(hidden_TBD[-1])[0]
            score_V[UNK] = -torch.inf
            words.append(int(score_V.argmax()))
    return words


@pytest.mark.parametrize("body", ["lstm", "rnn", "ffnn", "transformer 2"])
@pytest.mark.parametrize("prompt", [[], [5], [5, UNK, 7, 2, 9, 4, 3, 8]])
def test_goes_on_from_all_that_stands_before(body: str, prompt: list[int]) -> None:
    network = model_of(body).eval()
    expected = [WORDS[number] for number in [*prompt, *greedy(network, prompt, max_words=12)]]
    text = " ".join(expected[:-1] if expected[-1] == "</s>" else [*expected, "…"])
    model, begun = run_model(network), " ".join(WORDS[number] for number in prompt)
    assert model.generate(begun, 3, 12, Sampling(temperature=0), seed=1) == [text] * 3


def test_texts_end_by_themselves_or_at_the_limit() -> None:
    texts = run_model(small_model("lstm").eval()).generate("", 60, 8, seed=1)
    assert len(texts) == 60
    lengths = [len(text.removesuffix(" …").split()) for text in texts]
    assert all((length == 8) == text.endswith("…") for length, text in zip(lengths, texts, strict=True))
    assert 8 in lengths
    assert len(set(lengths)) > 2
    assert not any("<unk>" in text for text in texts)


def test_stops_when_all_texts_have_ended() -> None:
    network = small_model("lstm").eval()
    with torch.no_grad():
        network.output.bias[END] = 1000.0
    assert run_model(network).generate("", 2, 10**9, seed=1) == ["", ""]


def test_a_seed_is_all_that_decides() -> None:
    model = run_model(small_model("ffnn").eval())
    first = model.generate("w3", 5, 10, seed=4)
    state = torch.get_rng_state()
    assert model.generate("w3", 5, 10, seed=4) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert model.generate("w3", 5, 10, seed=5) != first


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=3), Sampling(top_p=0.8), Sampling(temperature=0)])
def test_texts_do_not_depend_on_how_the_vocabulary_is_cut(monkeypatch: pytest.MonkeyPatch, sampling: Sampling) -> None:
    model = run_model(small_model("lstm").eval())
    whole = model.generate("w4", 6, 8, sampling, seed=2)
    monkeypatch.setattr("bnce.engine.network.BLOCK_NUMBERS", 30)
    assert model.generate("w4", 6, 8, sampling, seed=2) == whole
