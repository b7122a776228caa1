"""Whatever is opened by its path: runs, n-gram models, and the file of a mixture."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from command import Command
from export.exported_runs import make_run

from bnce import UserError, load

from .arpa import write_arpa

pytest.importorskip("kenlm")

SENTENCES = [["w3", "w4", "zebra"], ["w3", "w4"], [], ["<unk>", "yak", "w5"]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path, "relu-lstm").path


def test_a_mixture_survives_its_file(bnce: Command, run: Path, tmp_path: Path) -> None:
    arpa = write_arpa(tmp_path)
    path = tmp_path / "mixtures" / "both.toml"
    path.parent.mkdir()
    (tmp_path / "valid.txt").write_text("w3 w4\na model\nw5 w6 w7\n", encoding="utf-8")
    assert bnce("interpolate", run, arpa, "--valid", tmp_path / "valid.txt", "--out", path).status == 0
    content = path.read_text(encoding="utf-8")
    assert str(tmp_path) not in content
    weights = iter((1 / 3, 2 / 3))
    path.write_text(re.sub("weight = .*", lambda found: f"weight = {next(weights)!r}", content), encoding="utf-8")
    mixture = load(path)
    assert mixture.kind == "mixture"
    assert mixture.components[1].kind == "n-gram"
    assert mixture.weights_K.tolist() == [1 / 3, 2 / 3]
    one, other = (load(place).score_words(SENTENCES) for place in (run, arpa))
    for mixed, by_run, by_ngram in zip(mixture.score_words(SENTENCES), one, other, strict=True):
        expected = np.exp(by_run.log_probs) / 3 + 2 * np.exp(by_ngram.log_probs) / 3
        np.testing.assert_allclose(np.exp(mixed.log_probs), expected, rtol=1e-5)
        np.testing.assert_array_equal(mixed.oov, by_run.oov & by_ngram.oov)
    assert mixture.encode(["w3"]).tolist() == [3, 0]
    # Moved together, they still find each other.
    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    tmp_path.rename(moved)
    assert load(moved / "mixtures" / "both.toml").kind == "mixture"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is not a mixture from 'bnce interpolate'"),
        ("[[components]]\npath = 'x'", "is not a mixture .*weight"),
        ("[[components]]\npath = 'x'\nweight = 'much'", "is not a mixture"),
        ("components = 3", "is not a mixture"),
        ("not toml", "is not a mixture"),
        ("[[components]]\npath = 'other.toml'\nweight = 1", "contains the mixture '.*other.toml'"),
        ("[[components]]\npath = 'none'\nweight = 1", "none' does not exist: check the path"),
    ],
)
def test_refused_mixtures(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "m.toml").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=told):
        load(tmp_path / "m.toml")


def test_a_path_that_leads_nowhere(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.toml' does not exist: check the path"):
        load(tmp_path / "none.toml")
