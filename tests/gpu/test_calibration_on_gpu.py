"""A calibration on a GPU: the same sample and the same fit as on a CPU, and the network is given it there."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from small_corpus import random_ids, small_model

from bnce.editing.calibrate import draw_sample, fit_constant, fit_head, fold
from bnce.evaluation.evaluate import evaluate

DEVICE = torch.device("cuda")


@pytest.mark.parametrize("by_sentence", [False, True])
@pytest.mark.parametrize("body", ["relu-lstm", "ffnn", "transformer"])
@pytest.mark.parametrize("fit", [fit_constant, fit_head])
def test_agrees_with_the_cpu(body: str, by_sentence: bool, fit: object) -> None:
    model, ids = small_model(body, "softmax").eval(), random_ids(3000)
    there = copy.deepcopy(model).to(DEVICE)
    plain, found = (draw_sample(one, [ids], 1000, with_hidden=True, by_sentence=by_sentence) for one in (model, there))
    np.testing.assert_allclose(found.log_z_N, plain.log_z_N, atol=1e-4)
    np.testing.assert_allclose(found.hidden_ND, plain.hidden_ND, atol=1e-4)
    assert callable(fit)
    for one, sample in ((model, plain), (there, found)):
        fold(one, fit(sample))
    expected, result = evaluate(model, ids), evaluate(there, ids)
    assert result.ppl_n == pytest.approx(expected.ppl_n, rel=1e-3)
    assert result.ppl_f == pytest.approx(expected.ppl_f, rel=1e-4)
    assert result.log_z_std == pytest.approx(expected.log_z_std, rel=1e-2)
