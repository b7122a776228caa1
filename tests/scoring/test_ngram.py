"""N-gram models: the words, the numbers and the mistakes that KenLM itself has, in natural logarithms."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from bnce import UserError, load

from .arpa import LINES, write_arpa

kenlm = pytest.importorskip("kenlm")


def test_sentences_as_kenlm_scores_them(tmp_path: Path) -> None:
    path = write_arpa(tmp_path)
    ngram = load(path)
    model = kenlm.Model(str(path))
    for line, scores in zip(LINES, ngram.score_words([ngram.words(line) for line in LINES]), strict=True):
        assert scores.log_probs.sum() / math.log(10) == pytest.approx(model.score(line), abs=1e-5)
        assert scores.oov.tolist() == [*(word not in model for word in line.split()), False]
        assert len(scores.ngram_lengths) == len(line.split()) + 1
    scored = ngram.score(LINES)
    assert sum(one.log_prob for one in scored) / math.log(10) == pytest.approx(sum(map(model.score, LINES)), abs=1e-4)
    assert scored[0].words == ["a", "model", "was", "</s>"]
    assert scored[0].ids == [0, 0, 0, 0]
    np.testing.assert_allclose(scored[0].log_probs[0] / math.log(10), -0.39794)


@pytest.mark.parametrize("content", [b"", b"no model\n", b"\\data\\\nngram 1=3\n", bytes(range(256)) * 20])
def test_what_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.arpa"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"is not an n-gram model that KenLM can read \([^()]*") as told:
        load(path)
    assert "\n" not in str(told.value)


def test_the_package_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(UserError, match=r"pip install 'bnce\[ngram\]'"):
        load(write_arpa(tmp_path))


def test_a_string_is_no_list_of_words(tmp_path: Path) -> None:
    ngram = load(write_arpa(tmp_path))
    for given in ("a model", ["a model"]):
        with pytest.raises(UserError, match="The words are one string, 'a model': give a list of words"):
            ngram.score_words(given)


def test_a_model_may_lie_beside_the_files_of_a_run(tmp_path: Path) -> None:
    path = write_arpa(tmp_path).rename(tmp_path / "model.arpa")
    for name in ("config.toml", "model.safetensors"):
        (tmp_path / name).touch()
    assert load(path).vocab_size > 0
    with pytest.raises(UserError, match="is a file of a run: give the directory"):
        load(tmp_path / "model.safetensors")
