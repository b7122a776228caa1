"""What rescoring writes comes back when it is read, with all scores; what a format would change is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Command, Refused

from .made_lists import WITHOUT_MODEL, Record, as_they_were, record, save

LISTS = [
    record("a", None, ("ba be bi", -1.0), ("ba be", -2.0), ("ba xyzzy bi yak", -3.0), ("", -4.0)),
    record("b", None, ("fu", -1.0)),
    record("c", None, ("ba be bo", 0.0), ("ba be bo", 0.0)),
]
LAST_FIRST = ["--weight", "am=-1", "--weight", "lm=0"]  # the last hypothesis of "a" is the best


def write(place: Path, *lists: Record) -> Path:
    return save(place / "lists.jsonl", map(json.dumps, lists))


@pytest.mark.parametrize(
    ("name", "content"), [("best", "a\nb fu\nc ba be bo\n"), ("b.trn", "(a)\nfu (b)\nba be bo (c)\n")]
)
def test_the_best(bnce: Command, trained: Path, tmp_path: Path, name: str, content: str) -> None:
    bnce("rescore", trained, write(tmp_path, *LISTS), *LAST_FIRST, "--out", tmp_path / name)
    assert (tmp_path / name).read_text(encoding="utf-8") == content


def test_a_table_of_all_scores(bnce: Command, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.tsv"
    bnce("rescore", trained, write(tmp_path, *LISTS), *LAST_FIRST, "--out", out)
    head, *rows = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()]
    assert head == ["utt", "place", "total", "am", "old_lm", "ln_prob", "num_words", "num_oov", "hypothesis"]
    assert [row[1] for row in rows] == ["4", "3", "2", "1", "1", "1", "2"]
    own = dict(zip(head, rows[1], strict=True))
    del own["ln_prob"]
    assert own == {
        "utt": "a", "place": "3", "total": "3.0", "am": "-3.0", "old_lm": "", "num_words": "4", "num_oov": "2",
        "hypothesis": "ba xyzzy bi yak",
    }  # fmt: skip


def test_all_scores_come_back(bnce: Command, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    bnce("rescore", trained, write(tmp_path, *LISTS), *LAST_FIRST, "--out", out)
    first = json.loads(out.read_text(encoding="utf-8").splitlines()[0])
    assert [hypothesis["place"] for hypothesis in first["hyps"]] == [4, 3, 2, 1]
    found = bnce("rescore", trained, out, "--scores", "ln_prob", "--json").json
    assert found["scores"] == ["am", "ln_prob"]
    assert as_they_were(out) == LISTS


def test_scores_that_are_called_like_ours_come_back_too(bnce: Command, trained: Path, tmp_path: Path) -> None:
    """A list that was written by rescoring has our names, and one that was written twice has them twice."""
    scores = [
        {"total": 5.0, "ln_prob": -3.0, "ctc": 1.0, "score.total": 7.0},
        {"total": 1.0, "ln_prob": -4.0, "ctc": 2.0, "score.total": 8.0},
    ]
    texts = ("ba", "be")
    own = {"utt": "a", "hyps": [{"text": text, **some} for text, some in zip(texts, scores, strict=True)]}
    out = tmp_path / "out.jsonl"
    bnce("rescore", trained, write(tmp_path, own), "--weight", "lm=0", "--weight", "total=1", "--out", out)
    first, second = json.loads(out.read_text(encoding="utf-8"))["hyps"]
    assert first["total"] == first["score.score.total"] == 5.0
    assert second["total"] == second["score.score.total"] == 1.0
    assert (first["score.ln_prob"], first["score.total"], first["ctc"]) == (-3.0, 7.0, 1.0)


@pytest.mark.parametrize(
    ("name", "text", "ending", "told"),
    [
        ("a b", "x", "", "'a b' has a blank or a bracket in its name, which a kaldi file cannot hold: write to a file"),
        ("a(b", "x", ".trn", "has a blank or a bracket in its name"),
    ],
)
def test_what_would_be_changed(
    bnce: Command, refused: Refused, trained: Path, tmp_path: Path, name: str, text: str, ending: str, told: str
) -> None:
    lists = write(tmp_path, record(name, None, (text, 1.0)))
    lists_and_weights = [lists, *WITHOUT_MODEL]
    assert told in refused("rescore", trained, *lists_and_weights, "--out", tmp_path / f"out{ending}")
    for ending in (".jsonl", ".tsv"):
        assert bnce("rescore", trained, *lists_and_weights, "--out", tmp_path / f"out{ending}").status == 0
