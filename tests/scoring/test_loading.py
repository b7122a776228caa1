"""Whatever is opened by its path: runs, n-gram models, and the file of a mixture."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from small_corpus import UNK, small_config, small_corpus, small_model

from bnce import UserError, load
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import save_weights
from bnce.scoring.loading import write_mixture
from bnce.scoring.mixture import MixtureModel
from bnce.scoring.ngram import NgramModel
from bnce.scoring.run_model import RunModel

from .arpa import write_arpa

pytest.importorskip("kenlm")

SENTENCES = [["w3", "w4", "zebra"], ["w3", "w4"], [], ["<unk>", "yak", "w5"]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    corpus = small_corpus(tmp_path / "corpus")
    made = RunDirectory.create(tmp_path / "runs" / "one", small_config(corpus), corpus)
    save_weights(made, small_model("relu-lstm").state_dict(), 1)
    return made.path


@pytest.mark.parametrize("normalised", [False, True])
def test_a_run_gives_the_same_either_way(run: Path, normalised: bool) -> None:
    model = load(run)
    assert isinstance(model, RunModel)
    apart = model.score_words(SENTENCES, normalised=normalised)
    together = model.score_words(SENTENCES, normalised=normalised, share_prefixes=True)
    scored = model.score([" ".join(words) for words in SENTENCES], normalised=normalised)
    for one, other, expected in zip(apart, together, scored, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)
        np.testing.assert_allclose(one.log_probs / math.log(10), expected.log10_probs, atol=1e-5)
        np.testing.assert_array_equal(one.oov, other.oov)
    assert model.ids(["w3", "zebra"]) == [3, UNK, 0]


def test_a_mixture_survives_its_file(run: Path, tmp_path: Path) -> None:
    arpa = write_arpa(tmp_path)
    path = tmp_path / "mixtures" / "both.toml"
    path.parent.mkdir()
    write_mixture(path, [run, arpa], [1 / 3, 2 / 3])
    assert str(tmp_path) not in path.read_text(encoding="utf-8")
    mixture = load(path)
    assert isinstance(mixture, MixtureModel)
    assert isinstance(mixture.components[1], NgramModel)
    assert mixture.weights_K.tolist() == [1 / 3, 2 / 3]
    one, other = (load(place).score_words(SENTENCES) for place in (run, arpa))
    for mixed, by_run, by_ngram in zip(mixture.score_words(SENTENCES), one, other, strict=True):
        expected = np.exp(by_run.log_probs) / 3 + 2 * np.exp(by_ngram.log_probs) / 3
        np.testing.assert_allclose(np.exp(mixed.log_probs), expected, rtol=1e-5)
        np.testing.assert_array_equal(mixed.oov, by_run.oov & by_ngram.oov)
    assert mixture.ids(["w3"]) == [3, 0]
    # Moved together, they still find each other.
    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    tmp_path.rename(moved)
    assert isinstance(load(moved / "mixtures" / "both.toml"), MixtureModel)


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


def test_other_refusals(tmp_path: Path, run: Path) -> None:
    with pytest.raises(UserError, match=r"none\.toml' does not exist: check the path"):
        load(tmp_path / "none.toml")
    with pytest.raises(UserError, match=r"give a name that ends in \.toml"):
        write_mixture(tmp_path / "m.json", [run], [1.0])
