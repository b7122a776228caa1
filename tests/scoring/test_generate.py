"""Texts from a network: a state that is the whole text's, and a seed that decides."""

from __future__ import annotations

import pytest
import torch
from small_corpus import small_model

from bnce.corpus.vocabulary import END, UNK
from bnce.language_model import LanguageModel
from bnce.scoring.generate import generate
from bnce.scoring.sampling import Sampling


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
