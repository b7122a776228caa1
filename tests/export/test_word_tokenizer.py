"""The exported tokenizer against the run's own normaliser: the same ids, for every setting and in many scripts."""

from __future__ import annotations

import itertools

import pytest
from small_corpus import END, SPECIALS, UNK

from bnce import Normaliser
from bnce.corpus.vocabulary import Vocabulary
from bnce.export.word_tokenizer import build_tokenizer
from bnce.text.normalise import NUMBERS, SENTENCES, TOKENS

LINES = [
    "The cat sat on the mat.",
    "Don't stop! It's 5 o'clock, isn’t it? Yes... 'quoted' rock'n'roll",
    "In 1,234.5 of 3 cases (e.g. 1.2.3), x2 and 3D cost $5.00; U.S.A. a.b c . d",
    "snake_case __init__ _ 12:30 a/b e-mail@example.org — “x” … ﬁ x² ½ Ⅷ ٣٤",
    "हिन्दी में लिखा है। ภาษาไทย e\u0301te\u0301 \u0301 نمی\u200cخواهم",
    "中文字符 测试。 日本語 😀👍🏽",
    "ΟΔΟΣ ΣΟΦΟΣ Σ ΑΣΑ İstanbul ŞIŞLI ẞ",
    "a\u00a0b\u3000c\x1cd\x85e \t f  ",
    "  leading and trailing.  ",
    "",
    "   ",
    "?",
    "word " * 300,
]
# Spoken text has a test of its own: its tokenizer takes what is spoken already.
WRITTEN = [tokens for tokens in TOKENS if tokens != "spoken"]
SETTINGS = [Normaliser(*values) for values in itertools.product((True, False), WRITTEN, SENTENCES, NUMBERS)]


def expected_ids(text: str, normaliser: Normaliser, vocabulary: Vocabulary) -> list[int]:
    """Read a text as a corpus is read: `</s>` before it and between sentences."""
    ids: list[int] = []
    for line in text.split("\n"):
        for sentence in normaliser(line):
            ids += [END, *vocabulary.encode(sentence).tolist()]
    return ids or [END]


@pytest.mark.parametrize("normaliser", SETTINGS, ids=lambda each: "-".join(map(str, each.to_dict().values())))
def test_gives_the_ids_that_the_run_gives(normaliser: Normaliser) -> None:
    words = dict.fromkeys(word for line in LINES for sentence in normaliser(line) for word in sentence)
    # Every seventh word is unknown.
    known = [word for number, word in enumerate(words) if number % 7]
    vocabulary = Vocabulary([*SPECIALS, *known])
    tokenizer = build_tokenizer(vocabulary, normaliser)
    for text in (*LINES, "\n".join(LINES), "one.\n\n\ntwo", "\none\n"):
        assert tokenizer.encode(text).ids == expected_ids(text, normaliser, vocabulary), repr(text)
        without = tokenizer.encode(text, add_special_tokens=False).ids
        assert without == expected_ids(text, normaliser, vocabulary)[1:], repr(text)


def test_spoken_text_is_taken_as_it_is_spoken() -> None:
    vocabulary = Vocabulary([*SPECIALS, "it's", "mister", "five"])
    tokenizer = build_tokenizer(vocabulary, Normaliser(tokens="spoken"))
    assert tokenizer.encode("it's mister\nfive o'clock").ids == [END, 2, 3, END, 4, UNK]


def test_special_words_are_what_they_are_called() -> None:
    tokenizer = build_tokenizer(Vocabulary([*SPECIALS, "a", "<", "/", "s", ">"]), Normaliser())
    assert tokenizer.encode("a </s> a <unk> xyzzy").ids == [END, 2, END, 2, UNK, UNK]


def test_what_is_decoded_can_stand_behind_its_prompt() -> None:
    tokenizer = build_tokenizer(Vocabulary([*SPECIALS, "the", "cat", "."]), Normaliser())
    assert tokenizer.decode([2, 3, 4, END]) == " the cat ."
    assert tokenizer.decode([2, END], skip_special_tokens=False) == " the </s>"
    assert tokenizer.decode([]) == ""
