"""Weights: what they add up to, and their file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bnce import UserError
from bnce.scoring.weights import FIRST_BEST, Weights


def test_total() -> None:
    weights = Weights(2.0, 3.0, 5.0, 7.0, 11.0)
    assert weights.total(-1.0, -10.0, -100.0, 2, 1) == -2 - 30 - 500 - 14 - 11
    np.testing.assert_array_equal(weights.total(lm=np.array([-1.0, -2.0])), [-5.0, -10.0])
    assert Weights().total(-1.0, -10.0, -100.0, 3, 1) == -101.0
    assert Weights().total(-1.0, log_place=2.0) == -1.0
    assert Weights(rank_weight=3.0).total(-1.0, log_place=2.0) == -7.0
    assert FIRST_BEST.total(5.0, 5.0, 5.0, 5, 5) == 0


def test_the_file_keeps_every_digit(tmp_path: Path) -> None:
    weights = Weights(0.1, 1 / 3, 2.5, -6.02, 0.0, 0.7)
    weights.write(tmp_path / "w.json")
    assert Weights.read(tmp_path / "w.json") == weights
    (tmp_path / "some.json").write_text('{"lm_weight": 2}', encoding="utf-8")
    assert Weights.read(tmp_path / "some.json") == Weights(lm_weight=2)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[]", "is not a weights file"),
        ("{", "is not a weights file"),
        ("[" * 9999, "it is nested too deeply"),
        ('{"lm": 1}', r"Unknown weight in '.*' 'lm': choose one of am_weight"),
        ('{"lm_weight": "high"}', "The weight lm_weight is 'high': it must be a finite number"),
        ('{"lm_weight": NaN}', "The weight lm_weight is nan"),
        ('{"lm_weight": null}', "The weight lm_weight is None"),
    ],
)
def test_refused_files(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "w.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=told):
        Weights.read(tmp_path / "w.json")
    with pytest.raises(UserError, match="is not a weights file"):
        Weights.read(tmp_path / "none.json")


def test_other_scores_by_name(tmp_path: Path) -> None:
    weights = Weights(lm_weight=2.0, scores=(("dec", 0.5), ("ctc", -3.0)))
    assert weights == Weights(lm_weight=2.0, scores=(("ctc", -3.0), ("dec", 0.5)))
    assert weights.total(1.0, lm=10.0, others={"dec": 4.0, "ctc": 1.0, "more": 99.0}) == 1 + 20 + 2 - 3
    changed = weights.changed({"scores.dec": 7.0, "scores.new": 1.0, "am_weight": 0.0})
    assert changed == Weights(am_weight=0.0, lm_weight=2.0, scores=(("ctc", -3.0), ("dec", 7.0), ("new", 1.0)))
    assert (changed.value("scores.dec"), changed.value("scores.none"), changed.value("lm_weight")) == (7.0, 0.0, 2.0)
    changed.write(tmp_path / "w.json")
    assert Weights.read(tmp_path / "w.json") == changed
    assert "rank_weight 0, ctc -3, dec 7, new 1" in str(changed)
    with pytest.raises(UserError, match="The weight dec is nan"):
        Weights(scores=(("dec", float("nan")),))
    (tmp_path / "w.json").write_text('{"scores": 3}', encoding="utf-8")
    with pytest.raises(UserError, match="has the scores 3: give a weight for each name"):
        Weights.read(tmp_path / "w.json")
