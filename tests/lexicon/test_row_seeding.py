"""Rows for new words: a share of `<unk>` where nothing is near, and the mass that they were given.

Legend: A new words, M contexts, D hidden.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_corpus import UNK, VOCAB_SIZE, small_model

from bnce.lexicon.row_seeding import (
    NUM_STEPS,
    NUM_TEXTS,
    Contexts,
    Neighbours,
    _base_words,
    find_neighbours,
    log_mass,
    make_up_contexts,
    seed_rows,
)

COUNTS = np.linspace(1000, 100, VOCAB_SIZE)
NONE = Neighbours([], [])


def test_a_word_like_no_other_is_a_share_of_the_unknown_word() -> None:
    model = small_model("lstm").eval()
    rows = seed_rows(model, COUNTS, np.array([COUNTS[UNK] / 10, 1.0]), [NONE, NONE])
    output = model.output
    assert torch.equal(rows.weight_AD, output.weight.data[UNK].repeat(2, 1))
    assert torch.equal(rows.embedding_AR, model.embedding.data[UNK].repeat(2, 1))
    unknown = float(output.bias.data[UNK])
    expected = [unknown - math.log(10), unknown - math.log(COUNTS[UNK])]
    assert rows.bias_A.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("body", ["lstm", "ffnn"])
def test_a_word_takes_what_its_count_says_whatever_its_neighbours(body: str) -> None:
    model = small_model(body).eval()
    near = [Neighbours([5, 6, 7], [0.9, 0.5, 0.1]), Neighbours([9], [0.25]), NONE]
    counts_A = np.array([50.0, 20.0, 3.0])
    rows = seed_rows(model, COUNTS, counts_A, near)
    contexts = make_up_contexts(model)
    unknown = float(log_mass(model.output.weight.data[[UNK]], contexts)[0] + model.output.bias.data[UNK])
    mass_A = log_mass(rows.weight_AD, contexts) + rows.bias_A
    expected = unknown + np.log(counts_A / COUNTS[UNK])
    assert mass_A.tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    # The row itself, by hand: λ = √0.9, weights 0.81, 0.25, 0.01.
    weight = model.output.weight.data.double()
    mean = (0.81 * weight[5] + 0.25 * weight[6] + 0.01 * weight[7]) / 1.07
    trust = math.sqrt(0.9)
    assert rows.weight_AD[0].tolist() == pytest.approx(((1 - trust) * weight[UNK] + trust * mean).tolist(), abs=1e-5)


def test_the_mass_is_the_mean_probability() -> None:
    hidden_MD, log_z_M = torch.randn(40, 5), torch.randn(40)
    weight_AD = torch.randn(9, 5)
    prob_MA = (hidden_MD.double() @ weight_AD.double().t() - log_z_M.double().unsqueeze(1)).exp()
    found = log_mass(weight_AD, Contexts(hidden_MD, log_z_M))
    assert found.tolist() == pytest.approx(prob_MA.mean(0).log().tolist(), abs=1e-5)


@pytest.mark.parametrize("body", ["lstm", "ffnn"])
def test_contexts_are_the_models_own_and_always_the_same(body: str) -> None:
    model = small_model(body, order=4).eval()
    state = torch.get_rng_state()
    first, again = make_up_contexts(model), make_up_contexts(model)
    assert torch.equal(first.hidden_MD, again.hidden_MD)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(first.hidden_MD) == NUM_TEXTS * NUM_STEPS
    assert torch.allclose(first.log_z_M, model.output.log_normaliser(first.hidden_MD), atol=1e-5)
    # Over these contexts all probabilities sum to one.
    total = torch.logsumexp(log_mass(model.output.weight.data, first) + model.output.bias.data, 0)
    assert float(total) == pytest.approx(0.0, abs=1e-5)


def test_an_unknown_word_that_was_never_seen_is_no_model() -> None:
    counts = COUNTS.copy()
    counts[UNK] = 0
    assert UNK not in _base_words(counts)
    assert _base_words(COUNTS).tolist() == [UNK]
    rows = seed_rows(small_model().eval(), counts, np.array([5.0]), [NONE])
    assert torch.isfinite(rows.bias_A).all()


def test_neighbours_are_ids_of_ordinary_words() -> None:
    (found,) = find_neighbours(["</s>", "<unk>", "walk", "unk", "walked"], ["walks"])
    assert found.ids[0] == 2
    assert set(found.ids) <= {2, 3, 4}
    assert found.trust == pytest.approx(math.sqrt(found.similarities[0]))
    assert NONE.trust == 0.0
