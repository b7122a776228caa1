"""The entropy of the next word against the whole distribution in float64, for every kind of run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_corpus import END

from bnce import MODELS, Model, surprisal
from tests.data.models import make_model

from .plain import plain_scores

SENTENCES = [["a", "zebra", "b"], ["england", ",", "c"]]


def entropies(model: Model) -> list[float]:
    """Compute the entropy before every word of two texts of these sentences, in nats."""
    words = [word for sentence in SENTENCES for word in sentence] * 2
    places = {"text": [1] * 6 + [2] * 6, "sentence": [1, 1, 1, 2, 2, 2] * 2}
    values: list[float] = (surprisal(model, words, **places, entropy=True)["entropy_bits"] * np.log(2)).tolist()
    return values


@pytest.mark.parametrize("body", MODELS)
def test_a_run(body: str) -> None:
    model = make_model(body)
    expected = []
    history: list[int] = []
    for sentence in SENTENCES:
        for word in sentence:
            log_prob_V = torch.log_softmax(plain_scores(model.network, history), 0)
            expected.append(float(-(log_prob_V.exp() * log_prob_V).sum()))
            history.extend(model.vocabulary.encode([word]).tolist())
        history.append(END)
    assert entropies(model) == pytest.approx(2 * expected, abs=1e-4)


def test_a_layer_that_normalises_itself() -> None:
    model = make_model("lstm", "adaptive-softmax")
    log_prob_V = model.next_log_probs(model.start(), model.vocabulary.words, mode="normalised")
    assert entropies(model)[0] == pytest.approx(-float(np.exp(log_prob_V) @ log_prob_V), abs=1e-4)
