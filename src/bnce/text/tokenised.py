"""Text that a tokeniser has been at, noticed by its signs.

Cutting words from marks takes `<unk>`, `@-@` and `&apos;s` apart, into words that training never saw so. Corpora are
prepared of such text with tokens="whitespace".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from bnce.text.normalise import Normaliser
from bnce.text.sources import Document

# Words that are looked at, and how often signs must be among them: plain text has an entity here and there.
MAX_WORDS_SEEN = 200_000
MIN_SHARE = 1 / 1000

_ENTITY = r"&(?:apos|quot|amp|lt|gt|bar|#(?:39|34|91|93|124));"
_BRACKET = "-(?:LRB|RRB|LSB|RSB|LCB|RCB)-"
_SIGN = re.compile(rf"(?<!\S)(?:<unk>|<UNK>|</?s>|@[^\s\w]@|{_ENTITY}\S*|{_BRACKET}|n't)(?!\S)")


class TokenisedSigns:
    """Looks through a text for signs that it was tokenised; text that is cut at blanks may have them."""

    def __init__(self, normaliser: Normaliser) -> None:
        self.num_words = self.num_signs = 0
        self._examples: dict[str, None] = {}
        self._is_watching = normaliser.tokens != "whitespace"

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
