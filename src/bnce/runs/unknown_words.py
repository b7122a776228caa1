"""Words outside the vocabulary, sharing the probability of `<unk>`: p(word) = p(<unk>) · share(word).

RUN/unknown_words.tsv   a word and its weight a line; the first line is `<unk>`, the share that is left for words
                        that are not listed, and how many such words that share is for
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from bnce.errors import UserError
from bnce.files import write_text
from bnce.text.normalise import UNKNOWN_WORD
from bnce.text.sources import read_lines

UNKNOWN_WORDS_FILE = "unknown_words.tsv"


class UnknownWords:
    """Shares of `<unk>`'s probability: 1 − `rest` by weight for listed words, `rest` evenly for `num_rest` others."""

    def __init__(self, weights: Mapping[str, float], rest: float = 0.0, num_rest: int | None = None) -> None:
        self.weights = dict(weights)
        self.rest = rest
        self.num_rest = len(self.weights) if num_rest is None else num_rest
        if not 0 <= rest < 1:
            raise UserError(
                f"The share left for words that are not listed is {rest:g}: it must be at least 0 and below 1."
            )
        if rest and self.num_rest < 1:
            raise UserError(f"The share left for words that are not listed is for {num_rest} words: give 1 or more.")
        for word, weight in self.weights.items():
            if not 0 < weight < math.inf:
                raise UserError(f"The weight of '{word}' is {weight:g}: it must be a number above 0.")
        # Weights of any size: their sum may be beyond what a number holds, their logarithms are not.
        largest = max(self.weights.values(), default=1.0)
        log_total = math.log(largest) + math.log(math.fsum(value / largest for value in self.weights.values()) or 1.0)
        self._log_shares = {
            word: math.log(weight) - log_total + math.log1p(-rest) for word, weight in self.weights.items()
        }
        self._log_rest = math.log(rest) - math.log(self.num_rest) if rest else None

    def __len__(self) -> int:
        return len(self.weights)

    def log_share(self, word: str) -> float | None:
        """Give ln share(word) of a word that is not in the vocabulary; None where no share is left for it.

        `<unk>` itself, in a text that holds it, stands for any unknown word and has the whole.
        """
        if word == UNKNOWN_WORD:
            return 0.0
        return self._log_shares.get(word, self._log_rest)

    @classmethod
    def of_run(cls, run: str | Path) -> UnknownWords | None:
        """Read the list that is attached to a run, if one is."""
        path = Path(run) / UNKNOWN_WORDS_FILE
        return cls.read(path) if path.is_file() else None

    @classmethod
    def read(cls, path: str | Path) -> UnknownWords:
        """Read the file that `write` makes."""
        try:
            first, *lines = [line.split("\t") for line in read_lines(str(path))]
            mark, rest, num_rest = first
            weights = {word: float(weight) for word, weight in lines}
            if mark != UNKNOWN_WORD or len(weights) != len(lines):
                raise ValueError
            return cls(weights, float(rest), int(num_rest))
        except ValueError as error:
            detail = f" ({error})" if isinstance(error, UserError) else ""
            raise UserError(
                f"'{path}' is not a list of unknown words from 'bnce vocab'{detail}: make it again."
            ) from error

    def write(self, path: str | Path) -> None:
        """Write the file that `read` reads, to the last digit."""
        lines = [f"{UNKNOWN_WORD}\t{self.rest!r}\t{self.num_rest}\n"]
        lines += [f"{word}\t{weight!r}\n" for word, weight in self.weights.items()]
        write_text(Path(path), "".join(lines))
