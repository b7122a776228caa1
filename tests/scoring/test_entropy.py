"""The entropy of the next word against the whole distribution in float64, for every kind of model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_corpus import END

from bnce import UserError
from bnce.scoring.entropy import EntropyReader
from bnce.scoring.mixture import MixtureModel
from tests.tables.models import BODIES, make_model, make_run

from .plain import plain_scores

SENTENCES = [["a", "zebra", "b"], ["england", ",", "c"]]


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_a_run(body: str, carry: bool) -> None:
    model = make_run(body)
    reader = EntropyReader(model, carry)
    for _ in range(2):
        reader.begin_document()
        history: list[int] = []
        for words, found in zip(SENTENCES, reader.score(SENTENCES), strict=True):
            history = history if carry else []
            for number, entropy in zip(model.encode(words).tolist(), found, strict=True):
                log_prob_V = torch.log_softmax(plain_scores(model.network, history), 0)
                assert entropy == pytest.approx(float(-(log_prob_V.exp() * log_prob_V).sum()), abs=1e-4)
                history.append(number)
            assert history[-1] == END


def test_a_layer_that_normalises_itself() -> None:
    model = make_run("lstm", "adaptive-softmax")
    (found,) = EntropyReader(model, False).score([["a"]])
    log_prob_V = model.next_log_probs(model.start(), model.vocabulary.words, normalised=True)
    assert found[0] == pytest.approx(-float(np.exp(log_prob_V) @ log_prob_V), abs=1e-4)


@pytest.mark.parametrize("kind", ["n-gram", "mixture"])
def test_word_by_word(kind: str, tmp_path: Path) -> None:
    model = make_model(kind, tmp_path)
    first, second = EntropyReader(model, True).score([["a", "b"], ["c"]])
    state = model.advance(model.start(), "a")
    prob_V = np.exp(model.next_log_probs(state, model.vocabulary.words, normalised=True))
    assert prob_V.sum() == pytest.approx(1, abs=1e-4)
    assert first[1] == pytest.approx(-float(prob_V @ np.log(prob_V)))
    if kind == "n-gram":
        assert second[0] == pytest.approx(first[0])
    else:
        assert second[0] != pytest.approx(first[0], abs=1e-3)


def test_what_is_refused() -> None:
    run = make_run()
    other = make_run("rnn", words=[*run.vocabulary.words[:-1], "zebra"], name="other")
    with pytest.raises(UserError, match="'run' and 'other' have different vocabularies"):
        EntropyReader(MixtureModel([run, other], [0.5, 0.5]), False)
