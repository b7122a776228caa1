"""Rescoring: scores as each hypothesis has them by itself, lists of any length, and who is the best."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from command import Command

import bnce as library

from .made_lists import save

# Utterances, acoustic scores, scores of an old language model, hypotheses.
LISTS = [
    "a\t-1\t-5\tba be bi", "a\t-2\t-6\tba be", "a\t-3\t-7\tba xyzzy bi yak", "a\t-4\t-8\t",
    "b\t-1\t-1\tfu",
    "c\t0\t0\tba be bo", "c\t0\t0\tba be bo",
]  # fmt: skip


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    return save(tmp_path / "lists.tsv", LISTS)


@pytest.mark.parametrize("mode", ["unnormalised", "normalised"])
def test_every_hypothesis_has_its_own_score(bnce: Command, trained: Path, tmp_path: Path, mode: str) -> None:
    """So many that they are scored in parts."""
    generator = random.Random(1)
    model = library.load(trained)
    known = [word for word in (trained / "vocab.txt").read_text(encoding="utf-8").split() if word.isalpha()]
    texts = [" ".join(generator.choices([*known, "xyzzy"], k=generator.randrange(6))) for _ in range(3 * 1100)]
    lines = (f"{place // 1100} {text}" for place, text in enumerate(texts))
    out = tmp_path / "out.tsv"
    assert bnce("rescore", trained, save(tmp_path / "nbest", lines), "--mode", mode, "--out", out).status == 0
    head, *rows = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()]
    found = {row[head.index("hypothesis")]: float(row[head.index("ln_prob")]) for row in rows}
    assert len(rows) == len(texts)
    assert set(found) == set(texts)
    for text, expected in zip(texts, model.score(texts, mode=mode), strict=True):
        assert found[text] == pytest.approx(expected.log_prob, abs=1e-3)
    # Equal hypotheses have equal scores to the bit, so that none of them wins by chance.
    assert len({(row[-1], row[head.index("ln_prob")]) for row in rows}) == len(found)


@pytest.mark.parametrize(
    ("weights", "best"),
    [
        (["lm=0"], [1, 1, 1]),  # by the acoustic score alone, the first of equals
        (["am=-1", "lm=0"], [4, 1, 1]),
        (["am=0", "lm=0", "word_penalty=-100"], [3, 1, 1]),
        (["am=0", "lm=0", "word_penalty=100"], [4, 1, 1]),
        (["am=0", "lm=0", "word_penalty=-100", "oov_penalty=1000"], [1, 1, 1]),
        (["am=0", "lm=0", "rank_weight=1"], [1, 1, 1]),
        (["am=0", "lm=0", "rank_weight=-1"], [4, 1, 2]),
    ],
)
def test_the_best_by_weights(
    bnce: Command, trained: Path, lists: Path, tmp_path: Path, weights: list[str], best: list[int]
) -> None:
    options = [part for weight in weights for part in ("--weight", weight)]
    bnce("rescore", trained, lists, *options, "--out", tmp_path / "out.jsonl")
    written = map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines())
    assert [one["hyps"][0]["place"] for one in written] == best


def test_totals(bnce: Command, trained: Path, lists: Path, tmp_path: Path) -> None:
    weights = ["am=0.5", "old_lm=0.25", "lm=2", "word_penalty=0.125", "oov_penalty=3", "rank_weight=0.7"]
    options = [part for weight in weights for part in ("--weight", weight)]
    bnce("rescore", trained, lists, *options, "--out", tmp_path / "out.jsonl")
    first, _, third = map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines())
    (own,) = (hypothesis for hypothesis in first["hyps"] if hypothesis["place"] == 3)
    assert (own["num_words"], own["num_oov"]) == (4, 2)
    expected = 0.5 * -3 + 0.25 * -7 + 2.0 * own["ln_prob"] - 0.125 * 4 - 3.0 * 2 - 0.7 * math.log(3)
    assert own["total"] == pytest.approx(expected)
    totals = [hypothesis["total"] for hypothesis in first["hyps"]]
    assert totals == sorted(totals, reverse=True)
    assert third["hyps"][0]["ln_prob"] == third["hyps"][1]["ln_prob"]


def test_a_total_that_is_not_finite_is_refused(trained: Path) -> None:
    with pytest.raises(
        library.UserError, match=r"The total of a hypothesis is not a finite number with am_weight 1e\+308"
    ):
        library.load(trained).rescore([("ba", 1e10)], score_weight=1e308)
