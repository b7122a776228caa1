"""A mixture with constants Z is compared with the exact one, as a run is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command import Command

from bnce import UserError, load, surprisal

from .models import make_model, write_model


def test_a_mixture_is_checked(bnce: Command, tmp_path: Path) -> None:
    path, table, out = write_model("mixture", tmp_path), tmp_path / "t.tsv", tmp_path / "o.tsv"
    table.write_text("word\tn\na\t1\nb\t1\nengland\t2\n", encoding="utf-8")
    options = ["--sentence", "n", "--mode", "unnormalised", "--json"]
    check = bnce("surprisal", path, table, "--out", out, *options).json["check"]
    sentences, log_probs = [["a", "b"], ["england"]], []
    for normalised in (True, False):
        scores = load(path).reader(normalised=normalised, carry=True).score(sentences)
        log_probs.append(np.concatenate([one.log_probs for one in scores]))
    difference = log_probs[1] - log_probs[0]
    assert check["num_positions"] == len(difference) == 5
    assert check["mean_difference"] == pytest.approx(np.mean(difference))
    assert check["max_difference"] == pytest.approx(np.abs(difference).max())


def test_an_ngram_model_has_no_constant() -> None:
    with pytest.raises(UserError, match="is an n-gram model, whose probabilities are normalised"):
        surprisal(make_model("n-gram"), ["a"], normalised=False)
