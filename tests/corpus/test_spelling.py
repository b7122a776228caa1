"""The spelling model: every string has a probability, those outside the vocabulary sum to one, files give them back."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
from damage import damaged
from safetensors.numpy import save_file

from bnce import UserError
from bnce.corpus import spelling as model_module
from bnce.corpus.spelling import NUM_OUTCOMES, SPELLING_FILE, SpellingModel, find_ngrams, probabilities

ODD = ["🙂", "👩‍👩‍👧", "\ud800", "x\udcffy", " ", "\0", "a" * 10_000, "日本語", "ß", "-", "\U0010ffff", "</s>"]


def made_up_words(num_words: int, seed: int = 1) -> list[str]:
    generator = random.Random(seed)
    syllables = [first + second for first in "bdklmnrst" for second in ("a", "e", "i", "on")]
    return ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(num_words)]


@pytest.mark.parametrize("words", [[], ["a"], made_up_words(500)])
def test_every_string_has_a_probability(words: list[str]) -> None:
    model = SpellingModel.train(words).leaving_out(["</s>", "<unk>", "ba"])
    log_probs = model.log_probs([*ODD, "", *made_up_words(20, seed=2)])
    assert np.isfinite(log_probs).all()
    assert (log_probs < 0).all()
    assert len(model.log_probs([])) == 0


def test_a_word_is_the_product_of_its_bytes_and_its_end() -> None:
    model = SpellingModel.train(made_up_words(300))
    for word in ("bana", "é", ""):
        ngrams, _ = find_ngrams([word], model.order)
        assert len(ngrams) == len(word.encode()) + 1
        (found,) = model.log_probs([word])
        assert found == pytest.approx(np.log(probabilities(model._levels, ngrams)).sum())


def test_held_out_words_are_spelt_far_better_than_by_chance() -> None:
    words = made_up_words(2000)
    held_out = [word for word in made_up_words(400, seed=3) if word not in set(words)]
    assert len(held_out) > 100
    found = -SpellingModel.train(words).log_probs(held_out).mean() / math.log(2)
    by_chance = np.mean([(len(word) + 1) * math.log2(NUM_OUTCOMES) for word in held_out])
    assert found < by_chance / 2.5
    assert found < -SpellingModel.train(words, order=1).log_probs(held_out).mean() / math.log(2)


def test_counts_are_repetitions() -> None:
    once, often = ["baba", "dede", "kon"], ["baba"] * 3 + ["dede", "kon", "kon"]
    one, other = SpellingModel.train(once, np.array([3, 1, 2])), SpellingModel.train(often)
    assert one.ngram_N.tolist() == other.ngram_N.tolist()
    assert one.count_N.tolist() == other.count_N.tolist()


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    words, counts = [*made_up_words(200), *ODD], np.arange(200 + len(ODD)) % 3 + 1
    whole = SpellingModel.train(words, counts)
    log_probs = whole.log_probs(words)
    monkeypatch.setattr(model_module, "_BLOCK_WORDS", 7)
    monkeypatch.setattr(model_module, "_BLOCK_LETTERS", 40)
    cut = SpellingModel.train(words, counts)
    assert np.array_equal(cut.ngram_N, whole.ngram_N)
    assert np.array_equal(cut.count_N, whole.count_N)
    np.testing.assert_allclose(cut.log_probs(words), log_probs, rtol=1e-12)


def test_what_the_vocabulary_would_have_goes_to_all_others() -> None:
    """Strings of one or two letters are summed one by one, and all others are what is left of one."""
    vocabulary = ["</s>", "<unk>", "b", "ba", "a", "za"]
    every = SpellingModel.train(["ba", "b", "bab", "baba", "dada"], np.array([9, 5, 1, 1, 1]))
    model = every.leaving_out(vocabulary)
    letters = list(map(chr, range(128)))
    short = [*letters, *map("".join, itertools.product(letters, letters))]
    inside = set(vocabulary)
    known = math.fsum(np.exp(every.log_probs(["", *vocabulary])))
    assert known > 0.3
    total = math.fsum(np.exp(model.log_probs([word for word in short if word not in inside])))
    rest = 1 - math.fsum(np.exp(every.log_probs(["", *{*short, *vocabulary}])))
    assert total + rest / (1 - known) == pytest.approx(1, abs=1e-9)
    assert model.log_outside == pytest.approx(math.log(1 - known), abs=1e-12)
    # Another vocabulary takes the place of the first.
    again = model.leaving_out(["za"])
    assert again.log_outside == pytest.approx(math.log1p(-math.fsum(np.exp(every.log_probs(["", "za"])))), abs=1e-12)


def test_the_file_gives_back_the_same(tmp_path: Path) -> None:
    assert SpellingModel.of_run(tmp_path) is None
    words = made_up_words(300)
    model = SpellingModel.train(words, order=5).leaving_out(words[:50])
    model.write(tmp_path / SPELLING_FILE)
    again = SpellingModel.of_run(tmp_path)
    assert again is not None
    assert (again.order, again.log_outside) == (5, model.log_outside)
    assert np.array_equal(again.log_probs(ODD), model.log_probs(ODD))
    again.write(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / SPELLING_FILE).read_bytes()


def test_more_than_the_file_holds(tmp_path: Path) -> None:
    model = SpellingModel.train(["a", "aa", "aaa"], np.array([2**40, 2**62, 2**62])).leaving_out(["b"])
    assert model.count_N.min() > 0
    model.write(tmp_path / SPELLING_FILE)
    assert np.array_equal(SpellingModel.read(tmp_path / SPELLING_FILE).log_probs(ODD), model.log_probs(ODD))


def test_what_is_no_spelling_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SPELLING_FILE
    for content in (b"", b"spelling", b"\xff" * 100):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"is not a spelling model .* prepare the corpus again"):
            SpellingModel.read(path)
    for metadata in ({}, {"about": "[]"}, {"about": '{"format": "bnce-spelling", "version": 99, "order": 7}'}):
        save_file({"ngram": np.zeros(3), "count": np.zeros(3)}, path, metadata)
        with pytest.raises(UserError, match="is not a spelling model"):
            SpellingModel.read(path)
    SpellingModel.train(["ab"]).write(path)
    content = path.read_bytes()
    for seed in range(100):  # a hash elsewhere tells of the rest
        path.write_bytes(damaged(content, seed))
        with contextlib.suppress(UserError):
            SpellingModel.read(path)
