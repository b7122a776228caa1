"""Words found in many lines at once by RE2: what `normalise` does with Python's patterns, four times as fast.

Only what is not a plain word needs a match of its own (a mark, a number, a word with an apostrophe) and gets
blanks around it; plain words stay as they are. RE2 knows other versions of Unicode than Python does, so the
classes of characters are written out from Python's own.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any

# Zero-width characters that Persian and Indic scripts write inside words.
_JOINERS = (0x200C, 0x200D)
# Unicode puts no letter, digit or blank beyond its first four planes.
_PLANES_END = 0x40000


def space(text: str, *, end_sentences: bool, cut_words: bool, number_word: str | None) -> str:
    """Put spaces between words, a newline after . ! or ? before a blank, and one word for every number, as is asked."""
    import pyarrow  # here: a model that scores single lines does without

    # One after the other on Arrow's side, so that the text is turned to UTF-8 and back only once.
    spaced = pyarrow.array([text])
    digits, blanks, odd_blanks = character_class(r"\d"), character_class(r"\s"), character_class(r"[^\S \n]")
    if end_sentences:
        spaced = _replace(spaced, rf"([.!?])[{blanks}]+", "\\1\n")
    spaced = _replace(spaced, rf"[{odd_blanks}]", " ")
    if cut_words:
        spaced = _replace(spaced, _word_pattern(), r" \0 ")
    if number_word is not None:
        # A match takes the blanks on both sides, so that neighbours need a pair each.
        spaced = _replace(spaced, "[ \n]|^|$", r" \0 ")
        spaced = _replace(spaced, rf" [{digits}]+(?:[.,][{digits}]+)* ", f" {number_word} ")
    return str(spaced[0].as_py())


def combining_marks() -> str:
    """List the characters that belong to the letter before them, as ranges of a regular expression."""
    ranges: list[list[int]] = []
    for code in range(0x300, 0x1F000):
        if unicodedata.category(chr(code))[0] == "M" or code in _JOINERS:
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


@functools.cache
def _word_pattern() -> str:
    """Write the pattern of a word for RE2: whatever `normalise` would not leave as a run of letters."""
    letter, digit, blank = character_class(r"[^\W\d_]"), character_class(r"\d"), character_class(r"\s")
    mark = character_class(rf"[{combining_marks()}]")
    letters = f"[{letter}]+(?:[{mark}]+[{letter}]*)*"
    return (
        f"{letters}['’]{letters}|[{letter}]+(?:[{mark}]+[{letter}]*)+"
        f"|[{digit}]+(?:[.,][{digit}]+)*|_+|[^{letter}{digit}_{blank}]"
    )


@functools.cache
def character_class(character: str) -> str:
    """Write the characters that match a pattern as the ranges of a class."""
    runs = re.finditer(f"{character}+", _every_character())
    return "".join(rf"\x{{{run.start():x}}}-\x{{{run.end() - 1:x}}}" for run in runs)


@functools.cache
def _every_character() -> str:
    return "".join(map(chr, range(_PLANES_END)))


def _replace(text: Any, pattern: str, replacement: str) -> Any:
    import pyarrow.compute

    return pyarrow.compute.replace_substring_regex(text, pattern=pattern, replacement=replacement)
