"""Tuning: it finds weights that are known to be there, keeps what is given, and is the same every time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command

from .made_lists import Record, save

U, H = 150, 10
WORDS = ["ba", "be", "bi", "bo", "da", "de", "di", "xyzzy"]
FIRST_BEST = {"am_weight": 0, "old_lm_weight": 0, "lm_weight": 0, "word_penalty": 0, "oov_penalty": 0, "rank_weight": 1}
Tune = Callable[..., dict[str, Any]]


@pytest.fixture
def tune(bnce: Command, trained: Path, tmp_path: Path) -> Tune:
    """Give a command that tunes on lists, and gives the JSON object."""

    def run(lists: Sequence[Record], *weights: str, test: Sequence[Record] = ()) -> dict[str, Any]:
        arguments = ["--tune", save(tmp_path / "dev.jsonl", map(json.dumps, lists))]
        if test:
            arguments += ["--test", save(tmp_path / "test.jsonl", map(json.dumps, test))]
        options = [part for weight in weights for part in ("--weight", weight)]
        fields = {name for one in lists for hypothesis in one["hyps"] for name in hypothesis} - {"text", "am", "old_lm"}
        options += [part for name in fields for part in ("--scores", name)]
        return bnce("rescore", trained, *arguments, *options, "--json").json

    return run


@pytest.fixture
def make_lists(bnce: Command, trained: Path, tmp_path: Path) -> Callable[..., list[Record]]:
    """Give a maker of lists by chance, in which the reference is the hypothesis that is the best by some weights."""

    def make(weights: dict[str, float], *names: str, seed: int = 1) -> list[Record]:
        generator = np.random.default_rng(seed)
        made = []
        for place in range(U):
            texts = [" ".join(generator.choice(WORDS, generator.integers(3, 9))) for _ in range(H)]
            scores = 10 * generator.normal(size=(H, len(names)))
            pairs = zip(texts, scores.tolist(), strict=True)
            hypotheses = [{"text": text, **dict(zip(names, own, strict=True))} for text, own in pairs]
            made.append({"utt": f"{seed}-{place}", "hyps": hypotheses})
        out = tmp_path / "scored.jsonl"
        options = [part for name, value in weights.items() for part in ("--weight", f"{name}={value}")]
        bnce("rescore", trained, save(tmp_path / "made.jsonl", map(json.dumps, made)), *options, "--out", out)
        for one, scored in zip(made, out.read_text(encoding="utf-8").splitlines(), strict=True):
            one["ref"] = json.loads(scored)["hyps"][0]["text"]
        return made

    return make


@pytest.mark.parametrize(
    "truth",
    [
        {"am": 1, "old_lm": 0.3, "lm": 7, "word_penalty": 2, "oov_penalty": -3},
        {"am": 1, "old_lm": 0, "lm": 0.5},
        {"am": 1, "old_lm": 2, "lm": 0, "word_penalty": -5, "oov_penalty": 10},
    ],
)
def test_known_weights_are_found(tune: Tune, make_lists: Callable[..., list[Record]], truth: dict[str, float]) -> None:
    lists, others = make_lists(truth, "am", "old_lm"), make_lists(truth, "am", "old_lm", seed=2)
    found = tune(lists, test=others)
    assert found["tuning"]["weights"] == ["lm_weight", "old_lm_weight", "word_penalty", "oov_penalty"]
    assert found["tuning"]["after"]["wer"] < 0.015 * found["tuning"]["before"]["wer"]
    assert found["weights"]["am_weight"] == 1
    # Lists that were never seen are ranked nearly as well.
    assert found["after"]["wer"] < 0.1 * found["before"]["wer"]
    assert tune(lists, test=others)["weights"] == found["weights"]


def test_what_is_given_stays(tune: Tune, make_lists: Callable[..., list[Record]]) -> None:
    lists = make_lists({"am": 1, "old_lm": 0.3, "lm": 7, "word_penalty": 2, "oov_penalty": -3}, "am", "old_lm")
    found = tune(lists, "lm=0.5", "word_penalty=1")
    assert [found["weights"][name] for name in ("lm_weight", "word_penalty", "am_weight")] == [0.5, 1, 1]
    assert found["tuning"]["weights"] == ["old_lm_weight", "oov_penalty"]
    assert found["after"]["wer"] < found["before"]["wer"]
    every = {"am_weight": 1, "old_lm_weight": 0, "lm_weight": 0.5, "word_penalty": 1, "oov_penalty": 0}
    found = tune(lists, *(f"{name}={value}" for name, value in every.items()))
    assert found["weights"] == {**every, "rank_weight": 0}


def test_named_scores_are_tuned_together(tune: Tune, make_lists: Callable[..., list[Record]]) -> None:
    lists = make_lists({"am": 1, "lm": 0, "dec": -2, "ctc": 0.5}, "am", "dec", "ctc")
    for one in lists:
        for hypothesis in one["hyps"]:
            hypothesis["none"] = 0.0
    found = tune(lists, "lm=0")
    assert found["tuning"]["weights"][:2] == ["dec", "ctc"]
    assert "none" not in found["tuning"]["weights"]
    assert found["after"]["wer"] < 0.05
    assert found["weights"]["scores"]["dec"] == pytest.approx(-2, rel=0.2)
    held = tune(lists, "lm=0", "dec=-3")
    assert held["weights"]["scores"]["dec"] == -3


def test_without_scores_the_rank_is_the_measure(tune: Tune, make_lists: Callable[..., list[Record]]) -> None:
    truth = {"am": 0, "lm": 0.25, "word_penalty": 0.5, "rank_weight": 1}
    found = tune(make_lists(truth))
    weights = found["weights"]
    assert (weights["rank_weight"], weights["am_weight"]) == (1, 0)
    assert found["after"]["wer"] < 0.2 * found["before"]["wer"]
    found = tune(make_lists(truth), "word_penalty=0.5")
    assert found["tuning"]["weights"] == ["lm_weight", "oov_penalty"]


def test_without_scores_and_rank_the_new_model_is_the_measure(
    tune: Tune, make_lists: Callable[..., list[Record]]
) -> None:
    found = tune(make_lists({"am": 0, "rank_weight": 0, "lm": 1, "word_penalty": 4}), "rank_weight=0")
    assert (found["weights"]["lm_weight"], found["weights"]["rank_weight"]) == (1, 0)
    assert found["after"]["wer"] < 0.05


def listed(num_better: int, num_worse: int) -> list[Record]:
    """Let a score choose the second of each list, which is right in some utterances, wrong in others, else the same."""
    return [
        {
            "utt": str(place),
            "ref": "ba be",
            "hyps": [
                {"text": "ba bi", "am": 0, "dec": 0},
                {
                    "text": "ba be" if place < num_better else "bo bi" if place < num_better + num_worse else "ba bo",
                    "am": 0,
                    "dec": 1,
                },
            ],
        }
        for place in range(U)
    ]


@pytest.mark.parametrize(("num_better", "num_worse", "kept"), [(1, 0, True), (5, 4, True), (9, 6, True), (9, 0, False)])
def test_a_gain_within_chance_is_no_gain(tune: Tune, num_better: int, num_worse: int, kept: bool) -> None:
    found = tune(listed(num_better, num_worse), "lm=0", "word_penalty=0")
    assert found["tuning"]["kept_first_best"] is kept
    assert (found["weights"] == FIRST_BEST) is kept
    assert found["after"]["wer"] <= found["before"]["wer"]


def test_weights_that_lose_to_the_first_best_are_refused_though_all_were_given(tune: Tune) -> None:
    assert tune(listed(0, 20), "lm=0", "word_penalty=0", "dec=1")["weights"] == FIRST_BEST


def test_one_utterance_does_not_bring_a_large_weight(tune: Tune) -> None:
    lists = listed(10, 0)
    for place, one in enumerate(lists):
        first, second = one["hyps"]
        second["dec"] = 1 if place < 10 else -1
        first["ctc"] = second["ctc"] = 0.0
    # One more error goes away with a weight of 64, if the recogniser is overruled with all its might.
    first, second = lists[-1]["hyps"]
    first["ctc"], second["am"], second["text"] = -1.0, -60.0, "ba be"
    found = tune(lists, "lm=0", "word_penalty=0")
    assert found["weights"]["scores"].get("ctc", 0) == 0
    assert 0 < found["weights"]["scores"]["dec"] <= 1
    assert math.isclose(found["before"]["wer"] - found["after"]["wer"], 10 / (2 * U))
