"""The same text has the same ln p whichever way it goes in: six bodies, both networks, both modes, every caller."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from export.exported_runs import MODELS, make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from bnce import Model
from bnce.engine.torch_network import TorchNetwork
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model, open_network
from bnce.scoring.results import ScoredSentence

from .models import MODES, WORDS, Mode, mixture, run_model, spelling_model

TOLERANCE = 2e-6  # of float32 scores up to twenty; between NumPy and PyTorch 1e-5
TEXTS = st.lists(st.lists(st.sampled_from([*WORDS[2:6], "zebra", "<unk>"]), max_size=12), min_size=1, max_size=20)
SPELLING = spelling_model(["zebras", "w3"])


@functools.cache
def models_of(body: str, directory: str) -> tuple[Model, Model]:
    """Give a run as NumPy computes it, and as PyTorch does."""
    from pathlib import Path

    run = Run.open(make_run(Path(directory), body).path)
    networks = open_network(run), TorchNetwork(load_model(run))
    return run_model(networks[0], spelling=SPELLING), run_model(networks[1], spelling=SPELLING)


def one_by_one(model: Model, words: list[str], mode: Mode) -> np.ndarray:
    """Ask for the next word after every beginning."""
    state, found = model.start(), []
    for word in [*words, "</s>"]:
        found.append(float(model.next_log_probs(state, [word], mode=mode)[0]))
        state = model.advance(state, word)
    return np.array(found)


def by_search(model: Model, words: list[str], mode: Mode) -> np.ndarray:
    """Ask as a beam search does."""
    scorer, found = model.scorer(), []
    state = scorer.start()
    for number in model.encode(words).tolist():
        found.append(float(scorer.score([state], [number], mode)[0]))
        (state,) = scorer.advance([state], [number])
    return np.array(found)


@settings(max_examples=6, deadline=None)
@given(texts=TEXTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("body", MODELS)
def test_every_way_gives_the_same(
    body: str, mode: Mode, tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]]
) -> None:
    lines = [" ".join(words) for words in texts]
    every: list[list[np.ndarray]] = []
    for model in models_of(body, str(tmp_path_factory.getbasetemp() / "same-ways")):
        whole = [one.log_probs for one in model.score(lines, mode=mode)]
        same: list[list[np.ndarray]] = [
            [one.log_probs for one in ways]
            for ways in (
                model.score_words(texts, mode=mode),
                model.score_words(texts, mode=mode, share=True),
                model.score_words(texts, mode=mode, after=[model.start()] * len(texts)),
                mixture([model, model], [0.25, 0.75]).score_words(texts, mode=mode),
                mixture([model, model], [0.25, 0.75]).stream(lines, mode=mode),
            )
        ]
        rescored = sorted(model.rescore(lines, mode=mode), key=lambda one: one.place)
        totals = [float(one.sum()) for one in whole]
        np.testing.assert_allclose([one.log_prob for one in rescored], totals, rtol=TOLERANCE, atol=TOLERANCE)
        first = texts[0]
        same += [[ask(model, first, mode)] for ask in (one_by_one, by_search)]
        distribution = model.distribution(model.start(), mode=mode)[model.encode(first)[:1]]
        np.testing.assert_allclose(distribution, whole[0][:1], atol=TOLERANCE)
        for ways in same:
            for one, other in zip(ways, whole, strict=False):
                np.testing.assert_allclose(one, other, atol=TOLERANCE, rtol=TOLERANCE)
        every.append(whole)
    for by_numpy, by_torch in zip(*every, strict=True):
        np.testing.assert_allclose(by_numpy, by_torch, atol=1e-5)


@settings(max_examples=4, deadline=None)
@given(texts=TEXTS)
@pytest.mark.parametrize("spell", [False, True])
@pytest.mark.parametrize("body", MODELS)
def test_carried_over(body: str, spell: bool, tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]]) -> None:
    """As one stream, in blocks of any size, or sentence by sentence after the state before it."""
    for model in models_of(body, str(tmp_path_factory.getbasetemp() / "same-ways")):
        whole = model.score([" ".join(words) for words in texts], carry=True, spell=spell)
        state = model.start()
        for words, expected in zip(texts, whole, strict=True):
            (found,) = model.score_words([words], after=[state], spell=spell)
            assert isinstance(found, ScoredSentence)
            np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=TOLERANCE, rtol=TOLERANCE)
            np.testing.assert_array_equal(found.oov, expected.oov)
            np.testing.assert_array_equal(found.ngram_lengths, expected.ngram_lengths)
            state = model.read(state, " ".join(words))
