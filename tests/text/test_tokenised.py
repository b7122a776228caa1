"""Tokenised text is noticed by its signs."""

from __future__ import annotations

from bnce import Normaliser
from bnce.text.tokenised import MAX_WORDS_SEEN, TokenisedSigns


def test_text_that_is_cut_at_blanks_is_taken_as_it_stands() -> None:
    signs = TokenisedSigns(Normaliser(tokens="whitespace"))
    signs.look("a <unk> b")
    assert signs.notice("It") is None


def test_signs_are_noticed_by_their_share() -> None:
    for text, noticed in (
        ("a <unk> b", True),
        ("x @,@ y", True),
        ("do n't", True),
        ("-LRB- a -RCB-", True),
        ("the dog &apos;s tail", True),
        ("an e-mail to a@b.c, x<unk>y and <b>", False),
        ("word " * 5000 + "<unk>", False),
        ("word " * 500 + "<unk>", True),
    ):
        signs = TokenisedSigns(Normaliser())
        signs.look(text)
        assert (signs.notice("The text") is not None) == noticed, text


def test_only_the_first_words_are_looked_at() -> None:
    signs = TokenisedSigns(Normaliser())
    assert list(signs.watch([["word " * MAX_WORDS_SEEN], ["<unk> " * MAX_WORDS_SEEN]]))
    assert signs.notice("It") is None
