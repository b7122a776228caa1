"""The engine beside the scorers that it replaces: the same numbers, and the same texts of a seed."""

from __future__ import annotations

import numpy as np
import pytest
from scoring.plain import BODIES, model_of
from small_corpus import END, random_ids, score_all

from bnce import Sampling, Scorer
from bnce.engine import sampling
from bnce.engine.network import Query
from bnce.engine.packer import Passage, score, score_rows
from bnce.filtering.streams import StreamScorer
from bnce.scoring.batches import SentenceScorer
from bnce.scoring.engine import engine_of
from bnce.scoring.prefixes import score_prefixes
from bnce.scoring.sampling import generate

from .networks import network_of

TEXTS = [random_ids(length, seed=length) for length in (5, 1, 0, 40, 7, 7, 3)] * 3


@pytest.mark.parametrize("body", BODIES)
def test_sentences_lists_and_documents(body: str) -> None:
    model, network = model_of(body), network_of(body)
    for normalised in (False, True):
        constant = None if normalised else network.log_z
        values = score(network, TEXTS, Query(log_z=normalised)).log_probs(constant)
        expected = np.concatenate(SentenceScorer(model, normalised=normalised).score(TEXTS))
        np.testing.assert_allclose(values, expected, atol=1e-5)
        values = score(network, TEXTS, Query(log_z=normalised), share=True).log_probs(constant)
        np.testing.assert_allclose(values, np.concatenate(score_prefixes(Scorer(model), TEXTS, normalised)), atol=1e-5)
    texts = [np.append(text, END) for text in TEXTS]
    sums = {one.number: one.values.log_probs(network.log_z).sum() for one in score_rows(network, map(Passage, texts))}
    expected = score_all(StreamScorer(model), texts)
    np.testing.assert_allclose([sums[number] for number in range(len(texts))], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 0.0}, {"temperature": 0.5, "top_p": 0.9}]
)
@pytest.mark.parametrize("body", ["ffnn", "relu-lstm", "transformer 2"])
def test_a_seed_gives_the_same_texts(body: str, settings: dict[str, float]) -> None:
    engine = engine_of(model_of(body))
    expected = generate(engine, [5, 7], 4, 12, Sampling(**settings), seed=3)
    for computed_by in ("torch", "numpy"):
        found = sampling.generate(network_of(body, computed_by), [5, 7], 4, 12, sampling.Sampling(**settings), seed=3)
        assert found == expected
