"""English text in the form that recognisers write: what is said, and where sentences end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnce import Normaliser, UserError
from tests.text.test_normalise import TEXT, cut_spaced

SPOKEN = Normaliser(tokens="spoken", sentences="lines")
SPLIT = Normaliser(tokens="spoken")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Hello, World--again!", "hello world again"),
        ("Don't 'quote' rock'n'roll, dogs' 'tis", "don't quote rock'n'roll dogs tis"),
        ("the dog’s “café”, naïve œuvre", "the dog's cafe naive oeuvre"),
        ("well-known snake_case a/b (c) [d] <unk> </s>", "well known snake case a b c d unk s"),
        ("AT&T", "at and t"),
        ("Mr. and Mrs. Smith, Dr Jones", "mister and missus smith doctor jones"),
        ("St. Paul's, Gen. Lee, 5th St.", "saint paul's general lee fifth st"),
        ("i ate no. 5 of them, no. not me", "i ate number five of them no not me"),
        ("vol. ii, Chap. IV, Book I, World War II", "volume ii chapter four book one world war two"),
        ("Henry VIII, George V., MIX, I, VI", "henry the eighth george the fifth mix i vi"),
        ("the U.S. Army, e.g. J. R. Smith, Jr., etc.", "the u s army e g j r smith junior et cetera"),
        ("Жизнь, 東京 हिन्दी", "жизнь 東京 हिन्दी"),
        ("mrsmith drmr", "mrsmith drmr"),
    ],
)
def test_words(line: str, said: str) -> None:
    assert SPOKEN(line) == [said.split()]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("0", "zero"),
        ("21", "twenty one"),
        ("110", "one hundred ten"),
        ("1,234", "one thousand two hundred thirty four"),
        ("1,000,001", "one million one"),
        ("4000", "four thousand"),
        ("1848", "eighteen forty eight"),
        ("1900", "nineteen hundred"),
        ("1905", "nineteen oh five"),
        ("2005", "two thousand five"),
        ("2015", "twenty fifteen"),
        ("1,848", "one thousand eight hundred forty eight"),
        ("1848 km", "one thousand eight hundred forty eight kilometers"),
        ("1920s", "nineteen twenties"),
        ("the 60's", "the sixties"),
        ("1st 2nd 3d 12th 20th 101st", "first second third twelfth twentieth one hundred first"),
        ("3.14", "three point one four"),
        ("007", "zero zero seven"),
        ("5551234567", "five five five one two three four five six seven"),
        ("3:05 10:30 4:00", "three oh five ten thirty four"),
        (
            "$1 $5 $2.50 $1.01 £3",
            "one dollar five dollars two dollars and fifty cents one dollar and one cent three pounds",
        ),
        ("$3 million, $1.5 billion", "three million dollars one point five billion dollars"),
        ("5% 25°C 1 lb 6 ft. tall", "five percent twenty five degrees celsius one pound six feet tall"),
        ("1/2 3/4 ½ 9/11", "one half three quarters one half nine eleven"),
        ("1,2,3", "one two three"),
        ("x86 B52", "x eighty six b fifty two"),
        ("$ € £", ""),
    ],
)
def test_numbers(number: str, said: str) -> None:
    assert SPOKEN(number) == ([said.split()] if said else [])


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("One. Two! Three? Four", ["one", "two", "three", "four"]),
        ('"What?" he said. "Go!" She went.', ["what he said", "go", "she went"]),
        ("Oh! what a day... and then... It rained.", ["oh what a day and then", "it rained"]),
        ("Mr. Smith met J. Jones. M. de Guise left.", ["mister smith met j jones", "m de guise left"]),
        (
            "It was I. He came at 5 p.m. She left at 3 a.m. again.",
            ["it was i", "he came at five p m", "she left at three a m again"],
        ),
        ("Apples, etc. The end, etc. of it.", ["apples et cetera", "the end et cetera of it"]),
        ("It is 3.5 m. wide. No. 5 is not.", ["it is three point five m wide", "number five is not"]),
        ("hello there. how are you", ["hello there", "how are you"]),
        ("(He left.) [She stayed.] It ended", ["he left", "she stayed", "it ended"]),
        ("...", []),
    ],
)
def test_sentences(line: str, sentences: list[str]) -> None:
    assert [" ".join(words) for words in SPLIT(line)] == sentences
    whole = [word for words in sentences for word in words.split()]
    assert SPOKEN(line) == ([whole] if whole else [])


@given(
    TEXT.map(lambda text: text.replace("\0", "")) | st.text(st.sampled_from("Mr. IVX,5$'s\"?! \n1/2%°½é-pm")),
    st.booleans(),
)
def test_many_lines_at_once_are_the_same(text: str, split: bool) -> None:
    normaliser = SPLIT if split else SPOKEN
    found = cut_spaced(normaliser.spaced(text))
    assert found == [words for line in text.split("\n") for words in normaliser(line)]
    for word in (word for words in found for word in words):
        assert word == word.lower()
        assert word[0] != "'" != word[-1]
        assert not any(sign.isascii() and not sign.isalpha() and sign != "'" for sign in word)
        assert not any(map(str.isdigit, word))


@given(st.text(st.sampled_from("abcMr mrs dr. I'VX 15$%,.!?\"")))
def test_what_is_spoken_stays_as_it_is(text: str) -> None:
    said = " ".join(word for words in SPOKEN(text) for word in words)
    assert SPOKEN(said) == ([said.split()] if said else [])


def test_document_ends_stay() -> None:
    assert SPLIT.spaced("One. Two.\n\0\nThree.\n\0\n").split() == ["one", "two", "\0", "three", "\0"]
    assert SPLIT("a\0b") == [["a", "b"]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"lowercase": False}, "no capitals, so case cannot be kept"), ({"numbers": "zero"}, "numbers cannot be 'zero'")],
)
def test_settings_that_spoken_text_has_no_use_for(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Normaliser.from_dict({"tokens": "spoken", **settings})
    assert Normaliser.from_dict(SPOKEN.to_dict()) == SPOKEN


def test_the_examples_of_the_manual() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "usage.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+)` \| ([a-z' ]+) \|$", manual.partition("| written | spoken |")[2][:900], re.MULTILINE)
    assert len(rows) == 3
    for written, said in rows:
        assert SPOKEN(written) == [said.split()]
