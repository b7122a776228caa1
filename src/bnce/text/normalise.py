"""From a line of text to sentences of words: the one place that decides what a word is."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from bnce.errors import UserError, argument, unknown_name
from bnce.text.spacing import combining_marks, space

END_WORD = "</s>"
UNKNOWN_WORD = "<unk>"
NUMBER_WORD = "<num>"

TOKENS = ("words", "whitespace", "spoken")
SENTENCES = ("split", "lines")
NUMBERS = ("keep", "zero", "word")

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_MAYBE_END = re.compile(r"[.!?]\s")  # found several times as fast, and most lines have none
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class Normaliser:
    """How text becomes words; it is stored with a corpus, so that other text is cut in the same way.

    tokens="words" cuts letters, numbers and single marks apart; text cannot contain a special word.
    tokens="whitespace" takes text that is tokenised already: `<unk>` in it is the unknown word, `</s>` at
    the end of a line adds no second sentence end, and `</s>` anywhere else
    is an unknown word.
    tokens="spoken" is for English text and a recogniser's form of it (`text/spoken.py`): lower case, no marks,
    apostrophes inside words, numbers and titles spelt out.
    sentences="split" ends a sentence after . ! or ? before a blank, and at a line's end; "lines" only at a line's end.
    numbers="keep" leaves them, "zero" makes every digit a 0, "word" makes every number the word `<num>`.
    """

    lowercase: bool = True
    tokens: str = "words"
    sentences: str = "split"
    numbers: str = "keep"

    def __post_init__(self) -> None:
        if not isinstance(self.lowercase, bool):
            raise UserError(f"The normaliser's lowercase is {self.lowercase!r}: it must be true or false.")
        for name, allowed in (("tokens", TOKENS), ("sentences", SENTENCES), ("numbers", NUMBERS)):
            if getattr(self, name) not in allowed:
                raise unknown_name(f"value of {argument(name)}", str(getattr(self, name)), allowed)
        if self.tokens == "spoken" and not self.lowercase:
            raise UserError(
                f"Spoken text has no capitals, so case cannot be kept: use {argument('lowercase', True)}, or other "
                f"{argument('tokens')} than spoken."
            )
        if self.tokens == "spoken" and self.numbers != "keep":
            raise UserError(
                f"Spoken text has its numbers spelled out, so {argument('numbers')} cannot be '{self.numbers}': "
                f"leave it out, or choose other {argument('tokens')} than spoken."
            )

    def __call__(self, line: str) -> list[list[str]]:
        """Cut a line into its sentences, and these into words; there are no empty ones."""
        if self.tokens == "spoken":
            spoken = self._speak(line.replace("\n", " ").replace("\0", " "))
            return [words for sentence in spoken.split("\n") if (words := sentence.split())]
        line = self._fold(line)
        if self.tokens == "whitespace":
            found = self._split_at_blanks(line)
        else:
            is_one = self.sentences == "lines" or _MAYBE_END.search(line) is None
            sentences = [line] if is_one else _SENTENCE_END.split(line)
            find_words = _word_pattern().findall
            found = [words for sentence in sentences if (words := find_words(sentence))]
        if self.numbers == "word":
            found = [[NUMBER_WORD if _NUMBER.fullmatch(word) else word for word in words] for words in found]
        return found

    def spaced(self, text: str) -> str:
        """Cut many lines at once: spaces between words, a newline after a sentence.

        There may be several spaces between two words, and newlines with no word between them.
        """
        if self.tokens == "spoken":
            return self._speak(text)
        text = self._fold(text)
        # After the fold, which can make it of </S>; to fold twice changes nothing.
        if self.tokens == "whitespace" and END_WORD in text:
            sentences = (words for line in text.split("\n") for words in self(line))
            return "\n".join(map(" ".join, sentences))
        return space(
            text,
            end_sentences=self.sentences == "split",
            cut_words=self.tokens == "words",
            number_word=NUMBER_WORD if self.numbers == "word" else None,
        )

    def _speak(self, text: str) -> str:
        from bnce.text.spoken import speak  # many patterns, which other text has no use for

        return speak(text, end_sentences=self.sentences == "split")

    def _fold(self, text: str) -> str:
        if self.lowercase:
            text = text.lower()
        return _DIGIT.sub("0", text) if self.numbers == "zero" else text

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
        if not isinstance(settings, Mapping):
            raise UserError(f"The normaliser is {settings!r:.40}: it must be a table of settings.")
        for name in settings:
            if name not in allowed:
                raise unknown_name("setting of the normaliser", name, allowed)
        return cls(**settings)


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Compile the pattern of a word: letters with at most one apostrophe inside, a number, or one mark."""
    # \w leaves out the vowel signs and accents that stand as characters of their own (Devanagari, Thai,
    # decomposed Latin): without them a word of such a script would fall into single letters.
    letters = rf"[^\W\d_]+(?:[{combining_marks()}]+[^\W\d_]*)*"
    # Before a blank, comma or full stop ASCII letters are a whole word: the short way for most words of a
    # Western text, which halves the time and changes nothing.
    plain = r"[A-Za-z]+(?=[ ,.])"
    return re.compile(rf"{plain}|{letters}(?:['’]{letters})?|{_NUMBER.pattern}|_+|[^\s\w]")


def tell_differences(found: Normaliser, wanted: Normaliser) -> str:
    """Name the settings in which a normaliser is not the one that is wanted, with both values."""
    have, want = found.to_dict(), wanted.to_dict()
    told = (f"{key} is {json.dumps(have[key])}, not {json.dumps(want[key])}" for key in want if have[key] != want[key])
    return ", ".join(told)
