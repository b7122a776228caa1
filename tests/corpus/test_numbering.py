"""Numbers before ids: a block's words by first occurrence, its sentences and its documents."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnce import Normaliser
from bnce.corpus.numbering import MARKS, NumberedBlock, cut_words, number_block
from bnce.text.blocks import Cut, gather

TOKENISED = Normaliser(lowercase=False, tokens="whitespace", sentences="lines")
ALL_TRAIN = Cut(0, {})


def number(
    documents: list[list[str]], normaliser: Normaliser = TOKENISED, split: str | None = "train"
) -> NumberedBlock:
    (block,) = gather(documents, split)
    return number_block(block, normaliser, ALL_TRAIN)


def spelt(numbered: NumberedBlock, split: str = "train") -> str:
    words = numbered.words.to_pylist()
    return " ".join(words[number] for number in numbered.splits[split].numbers).replace("\n", "|")


def test_block_numbers_its_words_by_first_occurrence() -> None:
    numbered = number([["b a b", "<unk> a"], ["c"]], split="valid")
    assert numbered.words.to_pylist() == [*MARKS, "b", "a", "c"]
    part = numbered.splits["valid"]
    assert part.numbers.tolist() == [4, 5, 4, 0, 2, 5, 0, 6, 0]
    assert part.numbers.dtype == np.uint16
    assert (part.sentence_lengths.sum(), part.num_documents) == (3, 2)


def test_blanks_and_empty_lines_make_no_words() -> None:
    assert spelt(number([["  a \t b  ", "", " ", "\u3000c\x85d\xa0"]])) == "a b | c d |"


def test_document_without_words_does_not_count() -> None:
    numbered = number([["</s>"], ["a </s>", "</s>"], ["</s>"]])
    assert numbered.splits["train"].num_documents == 1
    assert spelt(numbered) == "a |"
    assert number([["</s>"]]).splits == {}


def test_text_cannot_forge_a_sentence_end() -> None:
    for text in ("a </s> b", "a </S> b"):
        folded = Normaliser(tokens="whitespace", sentences="lines")
        assert spelt(number([[text]], folded)) == "a <unk> b |"


def test_sentence_lengths_are_counted_by_their_bounds() -> None:
    lines = ["w " * length for length in (1, 5, 6, 100, 101, 3000)]
    assert number([lines]).splits["train"].sentence_lengths.tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]


def test_many_words_need_wider_numbers() -> None:
    numbered = number([[" ".join(map(str, range(70_000)))]])
    numbers = numbered.splits["train"].numbers
    assert numbers.dtype == np.int32
    assert numbers[:-1].tolist() == list(range(len(MARKS), len(MARKS) + 70_000))


def test_documents_are_drawn_by_their_index_in_the_text() -> None:
    cut = Cut(3, {"valid": 0.3, "test": 0.3})
    (whole,) = gather([[f"word{index}"] for index in range(50)], None)
    numbered = number_block(whole, TOKENISED, cut)
    for split in ("train", "valid", "test"):
        drawn = [f"word{index} |" for index in range(50) if cut(index) == split]
        assert spelt(numbered, split) == " ".join(drawn)
        assert numbered.splits[split].num_documents == len(drawn)
    late = number_block(whole._replace(first_document=20), TOKENISED, cut)
    assert spelt(late) == " ".join(f"word{index} |" for index in range(50) if cut(index + 20) == "train")


def test_words_are_cut_before_blanks() -> None:
    words = cut_words("a  bc\nd\0").to_pylist()
    assert words[len(MARKS) :] == [" a", " ", " bc", " \n", " d", " \0", " "]


TEXT = st.text(st.sampled_from("aBü.!?'’5, \t\r\x0b\x1c\x85\u2028\u3000\ufeff<unk></s>_-\n"))


@settings(deadline=None, max_examples=200)
@given(
    documents=st.lists(st.lists(TEXT.map(lambda text: text.replace("\n", " ")), min_size=1), min_size=1),
    lowercase=st.booleans(),
    tokens=st.sampled_from(["words", "whitespace"]),
    sentences=st.sampled_from(["split", "lines"]),
)
def test_counts_add_up(documents: list[list[str]], lowercase: bool, tokens: str, sentences: str) -> None:
    """What is numbered all at once is what the normaliser gives line by line, word for word."""
    normaliser = Normaliser(lowercase, tokens, sentences)
    by_document = [[words for line in document for words in normaliser(line)] for document in documents]
    expected = [[*words, "\n"] for found in by_document for words in found]
    numbered = number(documents, normaliser)
    if not expected:
        assert numbered.splits == {}
        return
    part = numbered.splits["train"]
    words = numbered.words.to_pylist()
    assert Counter(words[number] for number in part.numbers) == Counter(word for words in expected for word in words)
    assert [words[number] for number in part.numbers] == [word for sentence in expected for word in sentence]
    assert part.sentence_lengths.sum() == len(expected)
    assert part.num_documents == sum(map(bool, by_document))


@pytest.mark.parametrize("split", ["train", None])
def test_empty_documents_keep_their_index(split: str | None) -> None:
    numbered = number([["</s>"], ["a"], ["</s>"], ["b"]], split=split)
    assert spelt(numbered) == "a | b |"
    assert numbered.splits["train"].num_documents == 2
