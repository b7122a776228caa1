"""A mixture with constants Z is compared with the exact one, as a run is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bnce import UserError
from bnce.tables.columns import Measuring
from bnce.tables.readers import CheckedReader, open_reader

from .models import make_model

SENTENCES = [["a", "b"], ["england"]]


def test_a_mixture_is_checked(tmp_path: Path) -> None:
    model = make_model("mixture", tmp_path)
    reader = open_reader(model, Measuring(normalised=False))
    assert isinstance(reader, CheckedReader)
    assert math.isnan(reader.check().mean_difference)
    reader.begin_document()
    found = reader.score(SENTENCES)
    exact = model.reader(normalised=True, carry=True).score(SENTENCES)
    differences = [
        float(value) for one, other in zip(found, exact, strict=True) for value in one.log_probs - other.log_probs
    ]
    check = reader.check()
    assert check.num_positions == 5
    assert check.mean_difference == pytest.approx(sum(differences) / 5)
    assert check.max_difference == pytest.approx(max(map(abs, differences)))


def test_an_ngram_model_has_no_constant(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is an n-gram model, whose probabilities are normalised"):
        open_reader(make_model("n-gram", tmp_path), Measuring(normalised=False))
