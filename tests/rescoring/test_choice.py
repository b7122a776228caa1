"""Which weights decide: names of the list, cautious defaults, and what a list does not have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Command, Refused

from .made_lists import save

NAMES = ("am_weight", "old_lm_weight", "lm_weight", "word_penalty", "oov_penalty", "rank_weight")


@pytest.fixture
def weights_of(bnce: Command, trained: Path) -> Callable[..., dict[str, Any]]:
    """Give a command that says which weights decide."""
    return lambda *arguments: bnce("rescore", trained, *arguments, "--json").json["weights"]


def scored(place: Path, **scores: float) -> Path:
    """Write a list of two hypotheses, which have the same scores."""
    hypotheses = [{"text": text, **scores} for text in ("ba be", "ba")]
    return save(place / f"{'-'.join(['lists', *scores])}.jsonl", [json.dumps({"utt": "a", "hyps": hypotheses})])


def given(*weights: str) -> list[str]:
    return [part for weight in weights for part in ("--weight", weight)]


def six(*values: float) -> dict[str, float]:
    return dict(zip(NAMES, values, strict=True))


def test_names_of_weights(tmp_path: Path, weights_of: Callable[..., Any], trained: Path, refused: Refused) -> None:
    named = scored(tmp_path, score=-1, lm=-2, dec=-3)
    found = weights_of(named, *given("score=0.5", "old_lm=2", "dec=-1", "word_penalty=3", "rank_weight=5"))
    assert found == {**six(0.5, 2, 0.25, 3, 4, 5), "scores": {"dec": -1}}
    assert weights_of(named, *given("am=2", "lm_weight=0.5")) == six(2, 0, 0.5, 0, 8, 0)
    plain = scored(tmp_path, am=-1)
    assert weights_of(plain, *given("lm=0.5")) == weights_of(plain, *given("lm_weight=0.5")) == six(1, 0, 0.5, 0, 8, 0)
    for weight, told in (
        ("ctc=1", "Unknown score in --weight 'ctc': choose one of am, old_lm, lm, am_weight"),
        ("lm=1", "--weight is 'lm=1', but the list has a score 'lm', too: give lm_weight=1 for the new"),
        ("dec=high", "--weight is 'dec=high': give a finite number"),
        ("dec=nan", "--weight is 'dec=nan': give a finite number"),
        ("dec=1e999", "--weight is 'dec=1e999': give a finite number"),
        ("dec", "--weight is 'dec': give NAME=W"),
    ):
        assert told in refused("rescore", trained, named, "--weight", weight)
    told = refused("rescore", trained, named, *given("am_weight=1", "am=2"))
    assert "--weight is 'am=2', after another value for it: give each weight once." in told


def test_a_score_that_is_called_like_a_role_is_told_apart(tmp_path: Path, weights_of: Callable[..., Any]) -> None:
    lists = scored(tmp_path, am_score=-1, am=-2, lm=-3)
    # What the list calls it is meant.
    for name in ("am", "score.am"):
        assert weights_of(lists, *given(f"{name}=0.5"))["scores"] == {"score.am": 0.5}
    for name in ("am_score", "am_weight"):
        assert weights_of(lists, *given(f"{name}=0.5")) == six(0.5, 0, 0.25, 0, 4, 0)


def test_defaults_are_cautious(tmp_path: Path, weights_of: Callable[..., Any]) -> None:
    lists, bare = scored(tmp_path, am=-1), scored(tmp_path)
    assert weights_of(lists) == six(1, 0, 0.25, 0, 4, 0)
    assert weights_of(lists, *given("lm=0")) == six(1, 0, 0, 0, 0, 0)
    assert weights_of(lists, *given("oov_penalty=1")) == six(1, 0, 0.25, 0, 1, 0)
    kept = save(tmp_path / "w.json", ['{"lm_weight": 2}'])
    assert weights_of(lists, "--weights", kept) == six(1, 0, 2, 0, 0, 0)
    assert weights_of(bare) == six(0, 0, 1, 0, 0, 16)
    # A score of the recogniser that is asked for by name says what the order would say.
    found = weights_of(scored(tmp_path, dec=-1), *given("dec=1"))
    assert found == {**six(0, 0, 1, 0, 0, 0), "scores": {"dec": 1}}


def test_weights_of_what_is_not_there(tmp_path: Path, trained: Path, refused: Refused) -> None:
    bare = scored(tmp_path)
    told = refused("rescore", trained, bare, *given("am=2"))
    assert f"--weight is 'am_weight=2', but '{bare}' has no acoustic scores: leave it out." in told
    kept = save(tmp_path / "w.json", ['{"scores": {"dec": 1}}'])
    told = refused("rescore", trained, bare, "--weights", kept)
    assert f"The score 'dec' has the weight 1, but '{bare}' does not have it" in told


def test_the_file_keeps_every_digit(bnce: Command, trained: Path, tmp_path: Path) -> None:
    lists, kept, again = scored(tmp_path, am=-1, lm_score=-2, dec=-3), tmp_path / "w.json", tmp_path / "again.json"
    weights = {**six(0.1, 1 / 3, 2.5, -6.02, 0.0, 0.7), "scores": {"dec": 1e-17}}
    save(kept, [json.dumps(weights)])
    outcome = bnce("rescore", trained, lists, "--weights", kept, "--save-weights", again)
    assert "lm_weight 2.5, word_penalty -6.02, oov_penalty 0, rank_weight 0.7, dec 1e-17" in outcome.stderr
    assert json.loads(again.read_text(encoding="utf-8")) == weights


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[]", "is not a weights file"),
        ("{", "is not a weights file"),
        ("[" * 9999, "is nested too deeply"),
        ('{"lm": 1}', "'lm': choose one of am_weight"),
        ('{"lm_weight": "high"}', "The weight lm_weight is 'high': it must be a finite number"),
        ('{"lm_weight": NaN}', "The weight lm_weight is nan"),
        ('{"lm_weight": null}', "The weight lm_weight is None"),
        ('{"scores": 3}', "has the scores 3: give a weight for each name"),
        ('{"scores": {"dec": NaN}}', "The weight dec is nan"),
    ],
)
def test_refused_files(tmp_path: Path, trained: Path, refused: Refused, content: str, told: str) -> None:
    kept = save(tmp_path / "w.json", [content])
    assert told in refused("rescore", trained, scored(tmp_path), "--weights", kept)


def test_lists_that_cannot_be_tuned_on_together(tmp_path: Path, trained: Path, refused: Refused) -> None:
    one, other = scored(tmp_path, am=-1), scored(tmp_path)
    refs = save(tmp_path / "refs", ["a ba"])
    told = refused("rescore", trained, "--tune", one, "--tune", one, "--refs", refs)
    assert f"'{one}' has the utterance 'a', which '{one}' has, too: give lists of different utterances." in told
    told = refused("rescore", trained, "--tune", one, "--tune", other, "--refs", refs)
    assert f"'{one}' has the scores am and '{other}' has no scores: give lists with the same scores." in told
