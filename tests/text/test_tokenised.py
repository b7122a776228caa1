"""Tokenised text: noticed by its signs, and read as the plain text that it was."""

from __future__ import annotations

import pytest

from bnce import Normaliser
from bnce.text.tokenised import MAX_WORDS_SEEN, TokenisedNormaliser, TokenisedSigns, for_tokenised

PAIRS = [
    ("a <unk> word", "a {unk} word"),
    ("state @-@ of @-@ the @-@ art", "state-of-the-art"),
    ("1 @,@ 000 @.@ 5 tons", "1,000.5 tons"),
    ("she said : &quot; I do n't &quot; .", 'she said: "I don\'t".'),
    ("the dog &apos;s tail", "the dog's tail"),
    ("the dog 's tail , they 're", "the dog's tail, they're"),
    ("-LRB- a -RRB- &#91; b &#93;", "(a) [b]"),
    ("<s> the end . </s>", "the end."),
    ("a &amp; b &bar; c", "a & b | c"),
    ("one &lt;unk&gt; two", "one <unk> two"),
]


@pytest.mark.parametrize(("tokenised", "plain"), PAIRS)
@pytest.mark.parametrize("sentences", ["split", "lines"])
def test_reads_what_the_plain_text_gives(tokenised: str, plain: str, sentences: str) -> None:
    normaliser = Normaliser(sentences=sentences)
    expected = [
        ["<unk>" if word == "qqq" else word for word in words] for words in normaliser(plain.replace("{unk}", "qqq"))
    ]
    reader = for_tokenised(normaliser)
    assert reader(tokenised) == expected
    # Many lines at once, as evaluate reads them.
    spaced = reader.spaced(f"{tokenised}\nx\n{tokenised}")
    found = [line.split() for line in spaced.split("\n") if line.split()]
    assert found == [*expected, ["x"], *expected]


def test_text_that_is_cut_at_blanks_is_taken_as_it_stands() -> None:
    normaliser = Normaliser(tokens="whitespace")
    assert for_tokenised(normaliser) is normaliser
    signs = TokenisedSigns(normaliser)
    signs.look("a <unk> b")
    assert signs.notice("It") is None


def test_signs_are_noticed_by_their_share() -> None:
    for text, noticed in (
        ("a <unk> b", True),
        ("x @,@ y", True),
        ("do n't", True),
        ("an e-mail to a@b.c, x<unk>y and <b>", False),
        ("word " * 5000 + "<unk>", False),
        ("word " * 500 + "<unk>", True),
    ):
        signs = TokenisedSigns(Normaliser())
        signs.look(text)
        assert (signs.notice("The text") is not None) == noticed, text
    signs = TokenisedSigns(for_tokenised(Normaliser()))
    signs.look("a <unk> b")
    assert signs.notice("It") is None
    assert isinstance(for_tokenised(Normaliser()), TokenisedNormaliser)


def test_only_the_first_words_are_looked_at() -> None:
    signs = TokenisedSigns(Normaliser())
    assert list(signs.watch([["word " * MAX_WORDS_SEEN], ["<unk> " * MAX_WORDS_SEEN]]))
    assert signs.notice("It") is None
