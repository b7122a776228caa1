"""What a word is, and what a sentence."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnce import Normaliser, UserError
from bnce.text.normalise import _word_pattern
from bnce.text.spacing import combining_marks


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Hello, World", "hello , world"),
        ("don't 'quote' rock'n'roll", "don't ' quote ' rock'n ' roll"),
        ("the dog’s l’homme", "the dog’s l’homme"),
        ("1,234.5 and 3.14, v2 x86", "1,234.5 and 3.14 , v 2 x 86"),
        ("snake_case __init__", "snake _ case __ init __"),
        ("a--b (c) <unk> </s>", "a - - b ( c ) < unk > < / s >"),
        ("Größe ÉCOLE ЖИЗНЬ 東京", "größe école жизнь 東京"),
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("cafe\u0301s resume\u0301,", "cafe\u0301s resume\u0301 ,"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\u0301 x", "\u0301 x"),
        ("İstanbul", "i\u0307stanbul"),
        ("tab\tand\u00a0nbsp\u2028sep", "tab and nbsp sep"),
    ],
)
def test_words(line: str, words: str) -> None:
    assert Normaliser(sentences="lines")(line) == [words.split(" ")]


def test_case_is_kept_on_request() -> None:
    assert Normaliser(lowercase=False)("The USA") == [["The", "USA"]]


@pytest.mark.parametrize("tokens", ["words", "whitespace"])
def test_sentences(tokens: str) -> None:
    line = "one . two ! three ?  four.five .\n"
    split = Normaliser(tokens=tokens)(line)
    whole = Normaliser(tokens=tokens, sentences="lines")(line)
    assert [sentence[0] for sentence in split] == ["one", "two", "three", split[3][0]]
    assert len(split) == 4
    assert [[word for sentence in split for word in sentence]] == whole


@pytest.mark.parametrize("normaliser", [Normaliser(), Normaliser(tokens="whitespace", sentences="lines")])
@pytest.mark.parametrize("line", ["", " ", "\t\u2028"])
def test_nothing_is_no_sentence(normaliser: Normaliser, line: str) -> None:
    assert normaliser(line) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("A <unk> b", ["a", "<unk>", "b"]),
        ("a b </s>", ["a", "b"]),
        ("a </s> b </S>", ["a", "<unk>", "b"]),
        ("</s> a", ["<unk>", "a"]),
        ("don't a,b", ["don't", "a,b"]),
    ],
)
def test_special_words_in_tokenised_text(line: str, words: list[str]) -> None:
    assert Normaliser(tokens="whitespace", sentences="lines")(line) == [words]


def test_sentence_end_alone_is_no_sentence() -> None:
    assert Normaliser(tokens="whitespace", sentences="lines")("</s>") == []


@given(st.text(), st.booleans())
def test_no_character_is_lost(text: str, lowercase: bool) -> None:
    expected = text.lower() if lowercase else text
    words = [word for sentence in Normaliser(lowercase)(text) for word in sentence]
    assert "".join(words) == "".join(expected.split())
    assert all(word.split() == [word] for word in words)


@given(st.text(st.sampled_from("ab'’é\u0301 ,._-1ñ\u200d")))
def test_the_short_way_changes_nothing(text: str) -> None:
    pattern = _word_pattern().pattern
    short, plain = pattern.split("|", 1)
    assert short == "[A-Za-z]+(?=[ ,.])"
    assert _word_pattern().findall(text) == re.findall(plain, text)


def test_marks_are_those_of_the_scripts() -> None:
    marks = re.compile(f"[{combining_marks()}]")
    assert all(marks.match(mark) for mark in "\u0300\u036f\u093f\u0e34\u200d\u1cf4")
    assert not any(marks.match(other) for other in "aé '1-_\u2019क")


def test_settings_come_back() -> None:
    normaliser = Normaliser(lowercase=False, tokens="whitespace", sentences="lines")
    assert Normaliser.from_dict(normaliser.to_dict()) == normaliser
    assert Normaliser.from_dict({}) == Normaliser()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": "word"}, "Did you mean 'words'"),
        ({"sentences": "paragraphs"}, "choose one of split, lines"),
        ({"lowercase": "yes"}, "true or false"),
        ({"lower": True}, "Did you mean 'lowercase'"),
        ({"tokens": None}, "'None'"),
    ],
)
def test_unknown_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Normaliser.from_dict(settings)


SETTINGS = st.builds(
    Normaliser,
    lowercase=st.booleans(),
    tokens=st.sampled_from(["words", "whitespace"]),
    sentences=st.sampled_from(["split", "lines"]),
    numbers=st.sampled_from(["keep", "zero", "word"]),
)
# Signs that decide what a word is, among anything else that is no half of a character.
TEXT = st.text(
    st.sampled_from("aB1 2.,!?'’_-\n\t\r\x1c\x85\u00a0\u2028\u0301\u200c²½٣Ⅷ東İßﬁ<>/\0")
    | st.characters(exclude_categories=["Cs"]),
    max_size=60,
)


def cut_spaced(spaced: str) -> list[list[str]]:
    sentences = ([word for word in line.split(" ") if word] for line in spaced.split("\n"))
    return [words for words in sentences if words]


@given(SETTINGS, TEXT)
def test_many_lines_at_once_are_the_same(normaliser: Normaliser, text: str) -> None:
    """The fast way and the plain one agree on every text: RE2 and Python find the same words."""
    assert cut_spaced(normaliser.spaced(text)) == [words for line in text.split("\n") for words in normaliser(line)]


@pytest.mark.parametrize("line", ["a </s> b </s>", "</s>", "x <unk> 5 </s> y.", "The </S> end. </s>\nNext </s>"])
def test_many_lines_at_once_with_special_words(line: str) -> None:
    for sentences in ("split", "lines"):
        normaliser = Normaliser(tokens="whitespace", sentences=sentences)
        expected = [words for part in line.split("\n") for words in normaliser(part)]
        assert cut_spaced(normaliser.spaced(line)) == expected


def test_every_character_is_the_same() -> None:
    """Each character alone, after a letter, between letters and after a digit: in RE2's eyes as in Python's."""
    normaliser = Normaliser(sentences="lines")
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    # Alphabets one by one; of the characters of the Far East, and of what is not assigned, a sample.
    codes = [code for code in codes if code < 0x3000 or (code < 0x33480 and code % 7 == 0) or code % 97 == 0]
    text = "\n".join(f"{chr(code)} a{chr(code)} a{chr(code)}b 1{chr(code)}" for code in codes if chr(code) != "\n")
    assert cut_spaced(normaliser.spaced(text)) == [words for line in text.split("\n") for words in normaliser(line)]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [("keep", "in 1,999.5 x 86 ٣"), ("zero", "in 0,000.0 x 00 0"), ("word", "in <num> x <num> <num>")],
)
def test_numbers(numbers: str, words: str) -> None:
    normaliser = Normaliser(sentences="lines", numbers=numbers)
    assert normaliser("in 1,999.5 x86 ٣") == [words.split()] == cut_spaced(normaliser.spaced("in 1,999.5 x86 ٣"))


def test_numbers_between_blanks() -> None:
    normaliser = Normaliser(tokens="whitespace", sentences="lines", numbers="word")
    assert normaliser("1 2 v2 1,000 3rd -5 6.") == [["<num>", "<num>", "v2", "<num>", "3rd", "-5", "6."]]
    assert cut_spaced(normaliser.spaced("1 2 v2 1,000\n3")) == [["<num>", "<num>", "v2", "<num>"], ["<num>"]]


def test_number_word_cannot_be_spelled() -> None:
    assert Normaliser(numbers="word")("<num> 5") == [["<", "num", ">", "<num>"]]


def test_settings_of_before_are_read() -> None:
    """A corpus that was made before there was a choice about numbers keeps them."""
    assert Normaliser.from_dict({"lowercase": True, "tokens": "words", "sentences": "split"}) == Normaliser()
    with pytest.raises(UserError, match="value of numbers 'spell': choose one of keep, zero, word"):
        Normaliser(numbers="spell")
