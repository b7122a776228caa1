"""Text that a tokeniser has been at: noticed by its signs, and read as if it had not been.

Cutting words from marks takes `<unk>`, `@-@` and `&apos;s` apart, into words that training never saw so. Corpora are
prepared of such text with tokens="whitespace". A model of plain text reads it with the signs undone: `<unk>` is the
unknown word, ` @-@ ` is the sign without blanks around it, `&apos;` and `-LRB-` are the marks they stand for, and
`do n't` is `don't`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from bnce.text.normalise import UNKNOWN_WORD, Normaliser
from bnce.text.sources import Document
from bnce.text.spoken import PLACEHOLDER

# Words that are looked at, and how often signs must be among them: plain text has an entity here and there.
MAX_WORDS_SEEN = 200_000
MIN_SHARE = 1 / 1000

_ENTITY = r"&(?:apos|quot|amp|lt|gt|bar|#(?:39|34|91|93|124));"
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_BRACKET = "|".join(_BRACKETS)
_UNKNOWN = r"<unk>|<UNK>|</?s>"
_SIGN = re.compile(rf"(?<!\S)(?:{_UNKNOWN}|@[^\s\w]@|{_ENTITY}\S*|{_BRACKET}|n't)(?!\S)")

_SENTENCE_MARKS = re.compile(r"^[^\S\n]*<s>(?!\S)|(?<!\S)</s>[^\S\n]*$", re.MULTILINE)
_UNKNOWN_WORDS = re.compile(rf"(?<!\S)(?:{_UNKNOWN})(?!\S)")
_JOINED = re.compile(r"[^\S\n]@([^\s\w])@[^\S\n]")
_ESCAPED = re.compile(_ENTITY)
_BRACKET_WORDS = re.compile(rf"(?<!\S)(?:{_BRACKET})(?!\S)")
_APART = re.compile(r"(?<=\w)[^\S\n](n't|['’](?:s|re|ve|ll|d|m))(?!\S)", re.IGNORECASE)


@dataclass(frozen=True)
class TokenisedNormaliser(Normaliser):
    """Cuts tokenised text into the words that the plain text would have given."""

    def __call__(self, line: str) -> list[list[str]]:
        """Cut a line into sentences and words."""
        found = super().__call__(_undo(line))
        return [[UNKNOWN_WORD if word == PLACEHOLDER else word for word in words] for words in found]

    def spaced(self, text: str) -> str:
        """Do the same to many lines at once."""
        return super().spaced(_undo(text)).replace(PLACEHOLDER, UNKNOWN_WORD)


def for_tokenised(normaliser: Normaliser) -> Normaliser:
    """Make of a normaliser one for tokenised text; one that cuts at blanks alone takes such text as it stands."""
    return normaliser if normaliser.tokens == "whitespace" else TokenisedNormaliser(**asdict(normaliser))


class TokenisedSigns:
    """Looks through a text for signs that it was tokenised; where they are read rightly there is nothing to notice."""

    def __init__(self, normaliser: Normaliser) -> None:
        self.num_words = self.num_signs = 0
        self._examples: dict[str, None] = {}
        self._is_watching = normaliser.tokens != "whitespace" and not isinstance(normaliser, TokenisedNormaliser)

    @property
    def are_clear(self) -> bool:
        """Whether enough was seen."""
        return not self._is_watching or self.num_words >= MAX_WORDS_SEEN

    def look(self, text: str, num_words: int | None = None) -> None:
        """Look at some text, unless enough was seen; who has counted its words between blanks says how many."""
        if self.are_clear:
            return
        self.num_words += len(text.split()) if num_words is None else num_words
        signs = _SIGN.findall(text)
        self.num_signs += len(signs)
        if len(self._examples) < 3:
            self._examples.update(dict.fromkeys(signs))

    def watch(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Look at documents as they come by."""
        for document in documents:
            for line in document:
                self.look(line)
            yield document

    def notice(self, name: str) -> str | None:
        """Say in one sentence that a text looks tokenised, if it does."""
        if not self.num_signs or self.num_signs < MIN_SHARE * self.num_words:
            return None
        examples = ", ".join(f"'{sign}'" for sign in list(self._examples)[:3])
        return (
            f"{name} looks tokenised: {self.num_signs:,} of the {self.num_words:,} checked words are signs such as "
            f"{examples}, which would be cut into punctuation marks."
        )


def _undo(text: str) -> str:
    text = _UNKNOWN_WORDS.sub(PLACEHOLDER, _SENTENCE_MARKS.sub("", text))
    text = _ESCAPED.sub(lambda found: html.unescape(found[0].replace("&bar;", "|")), _JOINED.sub(r"\1", text))
    return _APART.sub(r"\1", _BRACKET_WORDS.sub(lambda found: _BRACKETS[found[0]], text))
