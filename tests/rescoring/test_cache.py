"""Scores in a file: bit for bit what was computed, for the same model and text alone, and damage is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bnce import Normaliser, UserError
from bnce.rescoring.cache import ScoreCache, describe
from bnce.rescoring.rescore import score_nbest
from bnce.text.tokenised import TokenisedNormaliser
from bnce.text.wikipedia import MarkupNormaliser
from tests.damage import damaged

from .test_rescore import LISTS, make_model


def test_nothing_is_scored_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    plain = score_nbest(model, LISTS)
    path = tmp_path / "scores.db"
    done: list[int] = []
    with ScoreCache(path, "one") as cache:
        first = score_nbest(model, LISTS, done.append, cache=cache)
        assert cache.num_found == 0
    np.testing.assert_array_equal(first.lm_N, plain.lm_N)
    monkeypatch.setattr(model, "score_words", None)
    with ScoreCache(path, "one") as cache:
        again = score_nbest(model, LISTS, done.append, cache=cache)
        assert cache.num_found == 7
    assert done == [7, 7]
    np.testing.assert_array_equal(again.lm_N, plain.lm_N)
    np.testing.assert_array_equal(again.num_oov_N, plain.num_oov_N)
    with ScoreCache(path, "two") as cache:
        assert cache.find(["w9"]) == {}


def test_many_texts(tmp_path: Path) -> None:
    scores = {f"text {number} '\"%": (-number / 7, number) for number in range(2500)}
    with ScoreCache(tmp_path / "scores.db", "m") as cache:
        cache.add(scores)
        cache.add({"text 0 '\"%": (1.5, 3)})
        assert cache.find([*scores, "none"]) == {**scores, "text 0 '\"%": (1.5, 3)}


def test_keys_of_models() -> None:
    usual = Normaliser(True, "whitespace", "lines")
    keys = {
        describe("a", "unnormalised", usual),
        describe("b", "unnormalised", usual),
        describe("a", "normalised", usual),
        describe("a", "unnormalised", Normaliser(False, "whitespace", "lines")),
    }
    assert len(keys) == 4


def test_every_kind_of_normaliser_has_its_own_key() -> None:
    kinds = (Normaliser, TokenisedNormaliser, MarkupNormaliser)
    assert len({describe("a", "unnormalised", kind()) for kind in kinds}) == len(kinds)


def test_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    with ScoreCache(path, "m") as cache:
        cache.add({"a": (-1.0, 0), "b": (-2.0, 1)})
    whole = path.read_bytes()
    told = []
    for seed in range(80):
        path.write_bytes(damaged(whole, seed))
        try:
            with ScoreCache(path, "m") as cache:
                assert set(cache.find(["a", "b"])) <= {"a", "b"}
        except UserError as error:
            told.append(str(error))
    assert told
    assert all("cannot be used as a file of scores" in one and "\n" not in one for one in told)
    path.write_text("no database at all, but a text that is long enough", encoding="utf-8")
    with pytest.raises(UserError, match=r"scores.db' cannot be used as a file of scores"):
        ScoreCache(path, "m")
