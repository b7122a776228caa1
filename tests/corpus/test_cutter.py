"""Texts become words and ids in one place: every way to cut, what is counted beside, and parts of what was cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnce import Normaliser, UserError
from bnce.corpus.cutter import Cutter, Tokens
from bnce.corpus.vocabulary import Vocabulary

WORDS = Vocabulary(["</s>", "<unk>", "a", "b", "."])


def test_one_sentence_or_several() -> None:
    cutter = Cutter(Normaliser())
    one = cutter.cut(["A b. B\nzebra", "", "a b"])
    assert list(one) == [["a", "b", ".", "b", "zebra", "</s>"], ["</s>"], ["a", "b", "</s>"]]
    ids = one.encoded(WORDS).ids
    assert ids is not None
    assert ids.tolist() == [2, 3, 4, 3, 1, 0, 0, 2, 3, 0]
    assert (one.num_changed, one.num_several) == (1, 1)
    split = cutter.cut(["A b. B\nzebra", "", "a b"], "split")
    assert list(split) == [["a", "b", ".", "</s>"], ["b", "</s>"], ["zebra", "</s>"], ["a", "b", "</s>"]]
    assert split.num_sequences_T.tolist() == [3, 0, 1]
    assert list(cutter.cut([""], "split", keep_empty=True)) == [["</s>"]]
    assert list(split.first(2)) == list(split)[:2]
    assert list(split.joined()) == [split.words]


@given(texts=st.lists(st.text(st.sampled_from("aB. \t\n!é1"), max_size=12), max_size=6))
@pytest.mark.parametrize("tokens", ["words", "whitespace", "spoken"])
def test_sentences_together_are_those_of_each_alone(tokens: str, texts: list[str]) -> None:
    normaliser = Normaliser(tokens=tokens)
    cut = Cutter(normaliser).cut(texts, "split")
    expected = [words for text in texts for line in text.split("\n") for words in normaliser(line)]
    assert [words[:-1] for words in cut] == expected
    assert cut.ids is None
    assert cut.num_words_S.sum() == len(cut.words)
    changed = sum(
        text.split() != [word for line in text.split("\n") for words in normaliser(line) for word in words]
        for text in texts
    )
    assert cut.num_changed == changed


def test_blocks_are_bounded_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bnce.corpus.cutter.BLOCK_CHARACTERS", 128)
    texts = [f"a {number}" for number in range(5)]
    blocks = list(Cutter(Normaliser()).cut_in_blocks(texts))
    assert [len(block) for block in blocks] == [2, 2, 1]
    assert [words[1] for block in blocks for words in block] == ["0", "1", "2", "3", "4"]


def test_words_that_are_cut_already() -> None:
    text = Tokens.of([["a", "zebra"], []]).encoded(WORDS)
    np.testing.assert_array_equal(text.sequences[0], [2, 1, 0])
    assert list(Tokens.of([["a"], ["b"]], end=False)) == [["a"], ["b"]]
    for wrong in ("a b", ["a b"]):
        with pytest.raises(UserError, match="The words are one string, 'a b': give a list of words"):
            Tokens.of(wrong)
