"""What a word is, and what a sentence."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnce.corpus.normalise import Normaliser, _combining_marks, _word_pattern
from bnce.errors import UserError


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
    marks = re.compile(f"[{_combining_marks()}]")
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
