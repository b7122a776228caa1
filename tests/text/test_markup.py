"""Markup off, text kept: each kind of it, whatever is unbalanced, and time that grows with the length alone."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnce import Normaliser
from bnce.text.markup import strip_markup


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("plain text, nothing else", "plain text, nothing else"),
        ("a {{t|x={{u|v}} [[w]]}} b", "a  b"),
        ("a {{{1|x}}} b", "a  b"),
        ("[[target]]s and [[target|text]]", "targets and text"),
        ("[[a|b|c]]", "b c"),
        ("[[Mercury (planet)|]], [[Paris, Texas|]], [[Help:Links|]]", "Mercury, Paris, Links"),
        ("x[[Image:a.jpg|thumb|see [[b]] and {{c}}]]y", "xy"),
        ("x[[File:a.jpg]][[ category : B|*]][[Media:c.ogg|d]]y", "xy"),
        ("[[:Category:B]] [[:Image:a.jpg|a]]", "Category:B a"),
        ("[[de:Haus]][[zh-min-nan:X]][[simple:X]] [[fr:Maison|house]]", " house"),
        ("[[Star Trek: Voyager]]", "Star Trek: Voyager"),
        ("[http://a.org/x?y=1 the text] and [http://b.org] and http://c.org/d.", "the text and  and "),
        ("[1] [not a link]", "[1] [not a link]"),
        ("''i'' '''b''' '''''x''''' don't", "i b x don't"),
        ("== Head ==\ntext\n====Deep====", "Head\ntext\nDeep"),
        ("a = b\n=", "a = b\n"),
        ("* one\n** two\n# three\n:four\n; five", "one\ntwo\nthree\nfour\nfive"),
        ("a<ref>x</ref>b<ref name=y/>c<REF name='z'>{{q}}</ref >d", "abcd"),
        ("a<!-- x\ny -->b<!-- never closed", "ab"),
        ("a<math>x<y</math>b<gallery>\nc\n</gallery>d", "abd"),
        ("H<sub>2</sub>O<br/>new <font color='red'>red</font>", "H2O\nnew red"),
        ("a < b and c > d", "a < b and c > d"),
        ("<nowiki>[[a]] '''b''' {{c}} <d> &amp;</nowiki>", "[[a]] '''b''' {{c}} <d> &amp;"),
        ("&ndash; &#233; &amp;eacute; &lt;b&gt; &unknown; &", "– é &eacute; <b> &unknown; &"),
        ("__NOTOC__text snake__case", "text snake__case"),
        ("a\n----\nb", "a\n\nb"),
        ("a\n{| class='x'\n|-\n| b || c\n{|\n| d\n|}\n|}\ne", "a\n\ne"),
        ("{{a|\n{|\n|}}}\nb", "\nb"),
        ("{|\n|-\n| never closed\n! row\ntext", "\n\n never closed\n row\ntext"),
        ("a {{ b", "a  b"),
        ("a }} b ]] c |} d", "a  b  c |} d"),
        ("[[ a {{ b ]] c }} d", " a  b  c  d"),
        ("{{ a [[ b }} c ]] d", " c  d"),
    ],
)
def test_each_kind(source: str, text: str) -> None:
    assert strip_markup(source) == text


OPENED = "{{ }} [[ ]] {{[[ [[a {{a| <ref> </ref> <!-- <nowiki> <nowiki>< < [http:// http:// = ' ''' & &# _ __A - [[a("
OPENED_AND_BLANK = ["[[Image:x|", "\n{|", "\n|}", "<ref ", "<a ", "[http://a ", "= ", "* ", "\n ", "\t"]


@pytest.mark.parametrize("source", [*OPENED.split(), *OPENED_AND_BLANK])
def test_time_grows_with_the_length_alone(source: str) -> None:
    for closing in ("", "]]", "</ref>x"):
        text = source * 100_000 + closing * 10_000
        begin = time.process_time()
        strip_markup(text)
        assert time.process_time() - begin < 1.0


def test_deep_nesting_is_no_recursion() -> None:
    assert strip_markup("x" + "{{a" * 100_000 + "}}" * 100_000 + "y") == "xy"
    assert strip_markup("x" + "[[a|" * 50_000 + "b" + "]]" * 50_000 + "y").replace("a|", "").strip() == "xby"


SIGNS = "{{ }} [[ ]] {| |} | <ref> </ref> <ref/> <!-- --> <nowiki> </nowiki> '' ''' == * &amp; &lt; < > ] Image: de:"
PIECES = st.lists(
    st.sampled_from([*SIGNS.split(), "[http://a.b ", "\n", " "])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
)


@given(PIECES)
def test_any_source_gives_text(pieces: list[str]) -> None:
    strip_markup("".join(pieces)).encode()


WORDS = st.lists(st.text("abcXYZ éß東", min_size=1).filter(str.strip), min_size=1)


@given(WORDS)
def test_text_without_markup_stays(words: list[str]) -> None:
    text = ", ".join(words) + ".\nNext line."
    assert strip_markup(text) == text


@given(WORDS, st.sampled_from(["{{", "[[", "<ref>", "}}", "]]", "</ref>", "'''", "\n{|", "<b>", "[http://x "]))
def test_a_lone_bracket_takes_no_word_with_it(words: list[str], bracket: str) -> None:
    """One sign without its partner, anywhere: every word before it and after it is there."""
    count = Normaliser(sentences="lines")
    for place in range(len(words) + 1):
        text = " w ".join([*words[:place], bracket, *words[place:]])
        kept = [word for line in strip_markup(text).split("\n") for found in count(line) for word in found]
        expected = [word for found in count(" w ".join(words)) for word in found]
        assert len([word for word in kept if word[0].isalpha()]) >= len(expected)


@given(WORDS)
def test_links_and_emphasis_keep_every_word(words: list[str]) -> None:
    count = Normaliser(sentences="lines")
    marked = " ".join(f"[[a|{word}]] '''{word}''' ''{word}'' [http://x {word}]" for word in words)
    plain = " ".join(f"{word} {word} {word} {word}" for word in words)
    assert count(strip_markup(marked)) == count(plain)
