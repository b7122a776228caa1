"""From a line of text to sentences of words: the one place that decides what a word is."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from bnce.errors import UserError, unknown_name

END_WORD = "</s>"
UNKNOWN_WORD = "<unk>"

TOKENS = ("words", "whitespace")
SENTENCES = ("split", "lines")

# Zero-width characters that Persian and Indic scripts write inside words.
_JOINERS = (0x200C, 0x200D)

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Normaliser:
    """How text becomes words; it is stored with a corpus, so that other text can be treated alike.

    tokens="words" cuts letters, numbers and single marks apart; no text can spell a special word there.
    tokens="whitespace" takes text that is tokenised already: `<unk>` in it is the unknown word, `</s>` at
    the end of a line is the sentence end that the line's end gives anyway, and `</s>` anywhere else
    is an unknown word, so that text cannot forge a sentence end.
    sentences="split" ends a sentence after . ! or ? before a blank, and at a line's end; "lines" only there.
    """

    lowercase: bool = True
    tokens: str = "words"
    sentences: str = "split"

    def __post_init__(self) -> None:
        if not isinstance(self.lowercase, bool):
            raise UserError(f"The normaliser's lowercase is {self.lowercase!r}: it must be true or false.")
        if self.tokens not in TOKENS:
            raise unknown_name("value of tokens", str(self.tokens), TOKENS)
        if self.sentences not in SENTENCES:
            raise unknown_name("value of sentences", str(self.sentences), SENTENCES)

    def __call__(self, line: str) -> list[list[str]]:
        """Cut a line into its sentences, and these into words; there are no empty ones."""
        if self.lowercase:
            line = line.lower()
        if self.tokens == "whitespace":
            return self._split_at_blanks(line)
        if self.sentences == "lines":
            sentences = [line]
        else:
            sentences = _SENTENCE_END.split(line)
        find_words = _word_pattern().findall
        return [words for sentence in sentences if (words := find_words(sentence))]

    def _split_at_blanks(self, line: str) -> list[list[str]]:
        words = line.split()
        if words and words[-1] == END_WORD:
            words.pop()
        if END_WORD in words:
            words = [UNKNOWN_WORD if word == END_WORD else word for word in words]
        if self.sentences == "lines":
            return [words] if words else []
        sentences: list[list[str]] = [[]]
        for word in words:
            sentences[-1].append(word)
            if word[-1] in ".!?":
                sentences.append([])
        return [sentence for sentence in sentences if sentence]

    def to_dict(self) -> dict[str, Any]:
        """Give the settings as plain values, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Normaliser:
        """Make a normaliser of the settings read from a file."""
        allowed = [field.name for field in fields(cls)]
        for name in settings:
            if name not in allowed:
                raise unknown_name("setting of the normaliser", name, allowed)
        return cls(**settings)


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Compile the pattern of a word: letters with at most one apostrophe inside, a number, or one mark."""
    # \w leaves out the vowel signs and accents that stand as characters of their own (Devanagari, Thai,
    # decomposed Latin): without them a word of such a script would fall into single letters.
    letters = rf"[^\W\d_]+(?:[{_combining_marks()}]+[^\W\d_]*)*"
    # Before a blank, comma or full stop ASCII letters are a whole word: the short way for most words of a
    # Western text, which halves the time and changes nothing.
    plain = r"[A-Za-z]+(?=[ ,.])"
    return re.compile(rf"{plain}|{letters}(?:['’]{letters})?|\d+(?:[.,]\d+)*|_+|[^\s\w]")


def _combining_marks() -> str:
    """List the characters that belong to the letter before them, as ranges of a regular expression."""
    ranges: list[list[int]] = []
    for code in range(0x300, 0x1F000):
        if unicodedata.category(chr(code))[0] == "M" or code in _JOINERS:
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
