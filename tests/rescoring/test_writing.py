"""What rescoring writes comes back when it is read, with all scores; what a format would change is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bnce import UserError
from bnce.rescoring.nbest import NBest, Utterance, read_nbest
from bnce.rescoring.references import read_references
from bnce.rescoring.rescore import Scores, score_nbest
from bnce.rescoring.writing import check_writable, out_format, written
from bnce.scoring.weights import Weights

from .test_rescore import LISTS, make_model

WEIGHTS = Weights(am_weight=-1, lm_weight=0)  # the last hypothesis of "a" is the best


def save(path: Path, scores: Scores) -> Path:
    path.write_text("".join(written(scores, WEIGHTS, out_format(str(path)))), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["best.txt", "best.trn"])
def test_the_best_come_back(tmp_path: Path, name: str) -> None:
    scores = score_nbest(make_model(), LISTS)
    path = save(tmp_path / name, scores)
    assert read_references(path, LISTS.utterances) == ["", "w9", "w3 w4 w6"]
    assert [one.texts for one in read_nbest(path).utterances] == [[""], ["w9"], ["w3 w4 w6"]]


def test_all_scores_come_back(tmp_path: Path) -> None:
    lists = NBest([*LISTS.utterances], LISTS.score_names)
    lists.utterances[1].reference = None
    scores = score_nbest(make_model(), lists)
    again = read_nbest(save(tmp_path / "lists.jsonl", scores))
    assert again.score_names == ("am", "old_lm", "ln_prob", "num_words", "num_oov", "total", "place")
    first = again.utterances[0]
    assert first.texts == ["", "w3 zebra w5 yak", "w3 w4", "w3 w4 w5"]
    assert first.scores["am"] == [-4.0, -3.0, -2.0, -1.0]
    assert first.scores["place"] == [4.0, 3.0, 2.0, 1.0]
    assert sorted(first.scores["ln_prob"]) == sorted(scores.lm_N[:4].tolist())


def test_scores_that_are_called_like_ours_come_back_too(tmp_path: Path) -> None:
    """A list that was written by rescoring has our names, and one that was written twice has them twice."""
    own = {"total": [5.0, 1.0], "ln_prob": [-3.0, -4.0], "ctc": [1.0, 2.0], "score.total": [7.0, 8.0]}
    lists = NBest([Utterance("a", ["w3", "w4"], own)], tuple(own))
    scores = score_nbest(make_model(), lists)
    assert scores.columns[5:9] == ("score.score.total", "score.ln_prob", "ctc", "score.total")
    weights = Weights(am_weight=0, lm_weight=0, scores={"total": 1.0})
    rows = list(scores.rows(weights))
    assert [row["total"] for row in rows] == [row["score.score.total"] for row in rows] == [5.0, 1.0]
    assert all(tuple(row) == scores.columns for row in rows)
    path = tmp_path / "lists.jsonl"
    path.write_text("".join(written(scores, weights, "jsonl")), encoding="utf-8")
    again = read_nbest(path).utterances[0].scores
    assert again["score.score.total"] == again["total"] == [5.0, 1.0]
    assert (again["score.ln_prob"], again["score.total"], again["ctc"]) == ([-3.0, -4.0], [7.0, 8.0], [1.0, 2.0])


def test_formats_of_output() -> None:
    assert [out_format(name) for name in (None, "x", "x.trn", "x.jsonl")] == ["kaldi", "kaldi", "trn", "jsonl"]
    assert out_format("x.trn", "kaldi") == "kaldi"
    with pytest.raises(UserError, match="Unknown value of out_format 'ctm'"):
        out_format("x", "ctm")


@pytest.mark.parametrize(
    ("utterance", "form", "told"),
    [
        (Utterance("a b", ["x"]), "kaldi", "'a b' has a blank or a bracket in its name"),
        (Utterance("a(b", ["x"]), "trn", "has a blank or a bracket in its name"),
        (Utterance("a", ["x", "x (uh)"]), "trn", r"A hypothesis of 'a' is 'x \(uh\)', and SCTK reads"),
    ],
)
def test_what_would_be_changed(utterance: Utterance, form: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        check_writable(NBest([utterance]), form)
    check_writable(NBest([utterance]), "jsonl")
