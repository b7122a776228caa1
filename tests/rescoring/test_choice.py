"""Which weights decide: names of the list, cautious defaults, and what a list does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from bnce import UserError
from bnce.rescoring.choice import check_scores, complete, resolve
from bnce.rescoring.nbest import NBest, read_nbest
from bnce.rescoring.pool import pool
from bnce.scoring.weights import Weights

from .made_lists import LISTS

NAMED = NBest([], ("am", "old_lm", "dec"), {"am": "score", "old_lm": "lm"})


def test_names_of_weights() -> None:
    found = resolve({"score": "0.5", "old_lm": "2", "dec": "-1", "word_penalty": "3"}, NAMED)
    assert found == {"am_weight": 0.5, "old_lm_weight": 2.0, "scores.dec": -1.0, "word_penalty": 3.0}
    assert resolve({"am": "1"}, NAMED) == {"am_weight": 1.0}
    assert resolve({"lm": "1"}, NBest([])) == resolve({"lm_weight": "1"}, NAMED) == {"lm_weight": 1.0}
    with pytest.raises(UserError, match="weight is 'lm=1', but the list has a score 'lm', too: give lm_weight=1 for"):
        resolve({"lm": "1"}, NAMED)
    with pytest.raises(UserError, match="Unknown score in weight 'ctc': choose one of am, old_lm, dec, lm, am_weight"):
        resolve({"ctc": "1"}, NAMED)
    for value in ("high", "nan", "1e999"):
        with pytest.raises(UserError, match=f"weight is 'dec={value}': give a finite number"):
            resolve({"dec": value}, NAMED)


def test_a_score_that_is_called_like_a_role_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "lists.jsonl"
    path.write_text('{"utt": "a", "hyps": [{"text": "w3", "am_score": -1, "am": -2, "lm": -3}]}\n', encoding="utf-8")
    lists = read_nbest(path)
    assert lists.utterances[0].scores == {"am": [-1.0], "old_lm": [-3.0], "score.am": [-2.0]}
    # What the list calls it is meant.
    wanted = {"scores.score.am": 0.5}
    assert resolve({"am": "0.5"}, lists) == resolve({"score.am": "0.5"}, lists) == wanted
    assert resolve({"am_score": "0.5"}, lists) == resolve({"am_weight": "0.5"}, lists) == {"am_weight": 0.5}


def test_defaults_are_cautious() -> None:
    scored, bare = NBest([], ("am",)), NBest([], ())
    assert complete(None, {}, scored, tunes=False) == Weights(lm_weight=0.25, oov_penalty=4.0)
    assert complete(None, {"lm_weight": 0.5}, scored, tunes=False) == Weights(lm_weight=0.5, oov_penalty=8.0)
    assert complete(None, {"lm_weight": 0.0}, scored, tunes=False) == Weights(lm_weight=0.0)
    assert complete(None, {"oov_penalty": 1.0}, scored, tunes=False).oov_penalty == 1.0
    assert complete(None, {}, scored, tunes=True) == Weights()
    assert complete(Weights(lm_weight=2), {}, scored, tunes=False) == Weights(lm_weight=2)
    assert complete(None, {}, bare, tunes=False) == Weights(am_weight=0, rank_weight=16)
    assert complete(None, {}, bare, tunes=True) == Weights(am_weight=0, rank_weight=1)
    # A score of the recogniser that is asked for by name says what the order would say.
    dec = complete(None, {"scores.dec": 1.0}, NBest([], ("dec",)), tunes=False)
    assert (dec.rank_weight, dec.am_weight, dec.scores) == (0.0, 0.0, (("dec", 1.0),))


def test_weights_of_what_is_not_there() -> None:
    with pytest.raises(UserError, match="weight is 'am_weight=2', but 'x' has no acoustic scores"):
        check_scores(Weights(), NBest([]), "x", {"am_weight": 2.0})
    with pytest.raises(UserError, match="The score 'dec' has the weight 1, but 'x' does not have it"):
        check_scores(Weights(scores=(("dec", 1.0),)), NBest([]), "x", {})


def test_pooled_lists() -> None:
    one, two = NBest(LISTS[:1], ("am",)), NBest(LISTS[1:], ("am",))
    assert pool([("a", one), ("b", two)]) == NBest(LISTS, ("am",))
    with pytest.raises(UserError, match="'b' has the utterance 'spk-a', which 'a' has, too"):
        pool([("a", one), ("b", one)])
    with pytest.raises(UserError, match="'a' has the scores am and 'b' has no scores: give lists with the same"):
        pool([("a", one), ("b", NBest(LISTS[1:]))])
