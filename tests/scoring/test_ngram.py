"""N-gram models: the words, the numbers and the mistakes that KenLM itself has, in natural logarithms."""

from __future__ import annotations

import gzip
import lzma
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from command import Command

from bnce import Normaliser, UserError, load
from bnce.corpus.cutter import Cutter
from bnce.ngrams.arpa import stored_normaliser

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


def raw(lines: list[str]) -> str:
    """Write text as people do: with capitals and marks."""
    return "".join(f"{line.capitalize()}.\n" for line in lines)


@pytest.mark.parametrize("form", ["m.arpa", "m.arpa.gz", "m.arpa.xz", "m.bin"])
def test_a_model_keeps_its_cutting_rule(bnce: Command, tmp_path: Path, form: str) -> None:
    """Inside an ARPA file, packed or not; of a file that cannot hold it, as a KenLM binary, in the ARPA file beside."""
    (tmp_path / "train.txt").write_text(raw(LINES[:3]), encoding="utf-8")
    assert bnce("ngram", tmp_path / "train.txt", "--order", 2, "--out", tmp_path / "m.arpa").status == 0
    content = (tmp_path / "m.arpa").read_bytes()
    path = tmp_path / "other" / form
    path.parent.mkdir()
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    if form == "m.bin":  # here without its first line; KenLM reads what a file has, whatever its name is
        (path.parent / "m.arpa").write_bytes(content)
        path.write_bytes(content.partition(b"\n")[2])
    elif form == "m.arpa.xz":  # which KenLM's wheel may not read
        path.write_bytes(pack(content))
        assert stored_normaliser(path) == Normaliser()
        return
    else:
        path.write_bytes(pack(content))
    model = load(path)
    assert (model.normaliser, model.notice) == (Normaliser(), None)
    assert model.words("A model WAS.") == ["a", "model", "was", "."]
    if form == "m.bin":
        (path.parent / "m.arpa").unlink()
        assert load(path).normaliser.tokens == "whitespace"
        told = bnce("score", path, tmp_path / "train.txt").stderr
        assert f"'{path}' does not say how its text was cut into words" in told


def test_totals_alone_are_those_of_the_words(tmp_path: Path) -> None:
    ngram = load(write_arpa(tmp_path))
    text = Cutter(ngram.normaliser).cut([*LINES, *LINES])
    sums, words = ngram.sums(text), ngram.log_probs(text).sums()
    np.testing.assert_allclose(sums.log_prob_S, words.log_prob_S, atol=1e-5)
    np.testing.assert_array_equal(sums.num_oov_S, words.num_oov_S)
    assert sums.log_prob_known == pytest.approx(words.log_prob_known)


def test_a_state_goes_on_within_a_sentence_and_forgets_after_it(tmp_path: Path) -> None:
    ngram = load(write_arpa(tmp_path))
    (whole,) = ngram.score_words([["a", "model", "was"]])
    state, found = ngram.start(), []
    for word in ("a", "model", "was", "</s>"):
        found.append(float(ngram.next_log_probs(state, [word])[0]))
        state = ngram.advance(state, word)
    np.testing.assert_allclose(found, whole.log_probs, atol=1e-6)
    (again,) = ngram.score_words([["a", "model", "was"]], after=[state])
    np.testing.assert_array_equal(again.log_probs, whole.log_probs)
