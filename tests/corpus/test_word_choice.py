"""Which words make a vocabulary, where all of them would leave `<unk>` without a target; and which ones teach spelling:
those outside the vocabulary, and where there are few the rarest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from small_corpus import SPECIALS

from bnce import Normaliser, prepare
from bnce.corpus import tally as tally_module
from bnce.corpus import word_choice
from bnce.corpus.manifest import SplitStatistics
from bnce.corpus.tally import Tally
from bnce.corpus.vocabulary import Vocabulary
from bnce.corpus.word_choice import describe_untrained, train_spelling
from bnce.spelling.model import SpellingModel

TOKENISED = Normaliser(False, "whitespace", "lines")
COUNTS = {"the": 90, "of": 50, "zebra": 3, "été": 3, "yak": 2, "gnu": 1, "emu": 1}
VOCABULARY = Vocabulary([*SPECIALS, "the", "of", "never"])


def make(tmp_path: Path, train: str, **settings: object) -> tuple[list[str], int | None, list[str]]:
    for name, text in (("train", train), ("valid", "a z\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    notices: list[str] = []
    paths = [str(tmp_path / f"{name}.txt") for name in ("train", "valid")]
    options = {"valid": paths[1], "test_fraction": 0, "normaliser": TOKENISED, "notice": notices.append, **settings}
    corpus = prepare([paths[0]], tmp_path / "corpus", **options)  # type: ignore[arg-type]
    return corpus.vocabulary.words[2:], corpus.manifest.min_count, notices


@pytest.mark.parametrize(
    ("train", "settings", "words", "min_count", "is_warned"),
    [
        ("a a b b c\n", {}, "ab", 2, False),
        ("a a b b c\n", {"vocab_size": 5}, "ab", 2, False),
        ("a a b b c\n", {"vocab_size": 4}, "ab", 1, False),  # c is unknown by the size
        ("a a a b b c\n", {"vocab_size": 3}, "a", 1, False),
        ("a a b b c\n", {"min_count": 1}, "abc", 1, True),
        ("a a b b c <unk>\n", {}, "abc", 1, False),  # the text has unknown words of its own
        ("a b c\n", {}, "abc", 1, True),  # nothing would be left
        ("a a b b\n", {}, "ab", 1, True),  # there is nothing to leave out
    ],
)
def test_singletons_make_way_for_the_unknown_word(
    tmp_path: Path, train: str, settings: dict[str, int], words: str, min_count: int, is_warned: bool
) -> None:
    found, least, notices = make(tmp_path, train, **settings)
    assert (found, least) == (list(words), min_count)
    assert bool(notices) == is_warned
    if is_warned:
        assert "50.00% of the words of valid" in notices[0]


def test_a_text_without_unknown_words_anywhere_is_no_reason_to_warn() -> None:
    splits = {"train": SplitStatistics(9, 1, 1, 0), "valid": SplitStatistics(9, 1, 1, 0)}
    assert describe_untrained(splits) is None
    assert describe_untrained({**splits, "train": SplitStatistics(9, 1, 1, 2)}) is None
    assert "12.50% of the words of test" in str(describe_untrained({**splits, "test": SplitStatistics(9, 1, 1, 1)}))


@pytest.fixture(params=[0, 2**20], ids=["on disk", "in memory"])
def tally(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tally:
    """Count the words in two blocks; on disk one is merged with the other a few words at a time."""
    monkeypatch.setattr(tally_module, "_BATCH_ROWS", 2)
    monkeypatch.setattr(tally_module, "_LARGE_ROWS", 3)
    made = Tally(tmp_path, request.param)
    for part in (dict(list(COUNTS.items())[:4]), dict(list(COUNTS.items())[3:])):
        counts = [count if word != "été" else count - 1 if "the" in part else 1 for word, count in part.items()]
        made.add(pyarrow.array(list(part), pyarrow.string()), np.array(counts, dtype=np.int64))
    return made


def test_words_outside_the_most_frequent_first(tally: Tally) -> None:
    words, counts = tally.most_frequent_outside(VOCABULARY.words, 100)
    assert (words, counts.tolist()) == (["zebra", "été", "yak", "emu", "gnu"], [3, 3, 2, 1, 1])
    assert tally.most_frequent_outside(VOCABULARY.words, 2)[0] == ["zebra", "été"]
    assert tally.most_frequent_outside([*COUNTS], 5)[0] == []


def test_words_inside_the_rarest_first(tally: Tally) -> None:
    assert tally.rarest_inside(VOCABULARY.words, 100) == ["of", "the"]
    assert tally.rarest_inside([*COUNTS], 3) == ["emu", "gnu", "yak"]


def expect(model: SpellingModel, words: list[str], counts: list[int], vocabulary: Vocabulary) -> None:
    expected = SpellingModel.train(words, np.array(counts)).leaving_out(vocabulary.words)
    assert np.array_equal(model.ngram_N, expected.ngram_N)
    assert np.array_equal(model.count_N, expected.count_N)
    assert model.log_outside == expected.log_outside


def test_learns_from_words_outside_as_often_as_they_occur(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_choice, "MIN_TYPES", 3)
    words, counts = ["zebra", "été", "yak", "emu", "gnu"], [3, 3, 2, 1, 1]
    expect(train_spelling(tally, VOCABULARY), words, counts, VOCABULARY)
    monkeypatch.setattr(word_choice, "MAX_TYPES", 4)
    expect(train_spelling(tally, VOCABULARY), words[:4], counts[:4], VOCABULARY)


def test_learns_from_the_rarest_words_where_few_are_outside(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_choice, "MIN_TYPES", 6)
    words, counts = ["zebra", "été", "yak", "emu", "gnu", "of"], [3, 3, 2, 1, 1, 1]
    expect(train_spelling(tally, VOCABULARY), words, counts, VOCABULARY)
    whole = Vocabulary([*SPECIALS, *COUNTS])
    monkeypatch.setattr(word_choice, "MIN_TYPES", 3)
    expect(train_spelling(tally, whole), ["emu", "gnu", "yak"], [1, 1, 1], whole)
