"""The error model of the n-best benchmark: what may be heard for what, and lists that are really the cheapest."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from command import Command
from small_corpus import SPECIALS, open_small_run

from benchmarks.nbest_lists import (
    NUM_HYPOTHESES,
    Confusions,
    cheapest,
    edit_distance,
    make_list,
    sound_key,
    write_lists,
)
from bnce import load

TEXT = "the a , was cat cut kat sat that their there model modal muddle"
WORDS = [*SPECIALS, *TEXT.split()]
VOCABULARY = open_small_run(words=WORDS).vocabulary


def plain_distance(one: str, other: str) -> int:
    if not one or not other:
        return len(one) + len(other)
    same = plain_distance(one[1:], other[1:]) + (one[0] != other[0])
    return min(same, plain_distance(one[1:], other) + 1, plain_distance(one, other[1:]) + 1)


def test_distances() -> None:
    words = ["", "a", "cat", "cut", "cart", "there", "their", "tree"]
    for one, other in itertools.product(words, repeat=2):
        assert edit_distance(one, other) == min(3, plain_distance(one, other)), (one, other)


def test_sounds() -> None:
    assert sound_key("model") == sound_key("modal") == sound_key("muddle")
    assert sound_key("there") == sound_key("their")
    assert sound_key("cat") != sound_key("sat")


def test_confusions() -> None:
    confusions = Confusions(VOCABULARY, np.arange(len(WORDS)))
    assert confusions.of("cat") == {"cut": 1, "kat": 1, "sat": 1}
    assert confusions.of("their") == {"there": 2}
    assert confusions.of("model") == {"modal": 1}  # muddle differs in three letters
    assert confusions.of("zzz") == {}


def test_the_cheapest_ways_are_the_cheapest() -> None:
    generator = np.random.default_rng(1)
    slots = [
        [(word, float(generator.normal())) for word in options]
        for options in (["a", "b", ""], ["c", ""], ["d"], ["a", "b"])
    ]
    every: dict[tuple[str, ...], float] = {}
    for way in itertools.product(*slots):
        words = tuple(word for word, _ in way if word)
        every[words] = min(every.get(words, np.inf), sum(cost for _, cost in way))
    expected = sorted(every.items(), key=lambda one: one[1])
    found = list(cheapest(slots, 7))
    assert [words for words, _ in found] == [words for words, _ in expected[:7]]
    assert [cost for _, cost in found] == pytest.approx([cost for _, cost in expected[:7]])
    assert len(list(cheapest(slots, 1000))) == len(expected)


def test_lists_are_read_back(bnce: Command, tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    unigrams = "".join(f"-1\t{word}\t0\n" for word in WORDS)
    head = f"\\data\\\nngram 1={len(WORDS) + 1}\nngram 2=1\n\n\\1-grams:\n-99\t<s>\t0\n"
    (tmp_path / "old.arpa").write_text(f"{head}{unigrams}\n\\2-grams:\n-0.5\t<s> the\n\n\\end\\\n", encoding="utf-8")
    confusions, old_lm = Confusions(VOCABULARY, np.ones(len(WORDS))), load(tmp_path / "old.arpa")
    sentence = ["the", "cat", ",", "that", "model", "was", "there"]
    lists = [make_list(sentence, confusions, old_lm, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert lists[0] == lists[1] != lists[2]
    assert 1 < len(lists[0]) <= NUM_HYPOTHESES
    assert all("," in one.words for one in lists[0])
    write_lists(tmp_path, "dev", [sentence] * 3, lists)
    names = {kind: str(tmp_path / f"dev.{kind}") for kind in ("nbest", "am", "lm", "ref")}
    given = ["--scores", f"am={names['am']}", "--scores", f"lm={names['lm']}", "--costs", "--refs", names["ref"]]
    out = tmp_path / "out.jsonl"
    record = bnce("rescore", tmp_path / "old.arpa", names["nbest"], *given, "--out", out, "--json").json
    assert record["before"]["num_words"] == 3 * len(sentence)
    found = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["utt"] for row in found] == ["dev-001", "dev-002", "dev-003"]
    scores = {row["text"]: row["am_score"] for row in found[2]["hyps"]}
    assert scores == pytest.approx({" ".join(one.words): -one.am_cost for one in lists[2]}, abs=1e-3)
