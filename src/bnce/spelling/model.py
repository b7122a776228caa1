"""The spelling model: p(word) of every string outside the vocabulary, learnt from the words that `<unk>` stands for.

`<unk>` never stands for a word of the vocabulary, nor for no letters at all. What the n-grams give to these strings is
shared by all others: log_prob(word) = ln p(word) − ln(1 − Σ p(word of the vocabulary) − p("")). So the probabilities of
all other strings of bytes sum to one, and p(<unk> | context) · p(word) is the probability of the word itself.

DIR/spelling.safetensors   `ngram` and `count`: the longest n-grams, from which all others follow; in the metadata the
                           order, and the logarithm of what is outside the vocabulary
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bnce.errors import UserError
from bnce.files import atomic_file
from bnce.spelling.levels import Floats, Ints, Level, add_up, find_ngrams, make_levels, probabilities

SPELLING_FILE = "spelling.safetensors"
# Bits per unknown token of Wikipedia, V = 80,000: 29.2 with order 4, 27.0 with 5, 25.2 with 6, 24.4 with 7, the most
# that 64 bits hold; with Witten-Bell smoothing 25.6, and with every word counted once 25.0.
ORDER = 7
_FORMAT, _VERSION = "bnce-spelling", 1
_BLOCK_WORDS, _BLOCK_LETTERS = 2**16, 2**20
_BLOCKS_JOINED = 8
_MAX_COUNT = 2**32 - 1  # what the file holds


class SpellingModel:
    """Probabilities of words as strings of bytes; those of the vocabulary are left out."""

    def __init__(self, ngram_N: Ints, count_N: Ints, order: int = ORDER, log_outside: float = 0.0) -> None:
        self.ngram_N, self.count_N, self.order, self.log_outside = ngram_N, count_N, order, log_outside

    @classmethod
    def train(cls, words: Sequence[str], counts: Ints | None = None, order: int = ORDER) -> SpellingModel:
        """Count the n-grams of words, as often as `counts` says; no vocabulary is left out yet."""
        times_W = np.ones(len(words), dtype=np.int64) if counts is None else np.minimum(counts, _MAX_COUNT)
        sums = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))]
        for begin, end in _blocks(words):
            ngram_P, begin_W = find_ngrams(words[begin:end], order)
            sums.append(add_up(ngram_P, np.repeat(times_W[begin:end], np.diff(begin_W, append=len(ngram_P)))))
            if len(sums) > _BLOCKS_JOINED:
                sums = [_join(sums)]
        ngram_N, count_N = _join(sums)
        return cls(ngram_N, np.minimum(count_N, _MAX_COUNT), order)

    def leaving_out(self, vocabulary: Sequence[str]) -> SpellingModel:
        """Give the model of the words that are not among these."""
        every = SpellingModel(self.ngram_N, self.count_N, self.order)
        inside = math.fsum(np.exp(every.log_probs(["", *vocabulary])).tolist())
        every.log_outside = math.log1p(-inside)
        return every

    def log_probs(self, words: Sequence[str]) -> Floats:
        """Compute ln p of words that are not in the vocabulary."""
        parts = [np.zeros(0)]
        for begin, end in _blocks(words):
            ngram_P, begin_W = find_ngrams(words[begin:end], self.order)
            parts.append(np.add.reduceat(np.log(probabilities(self._levels, ngram_P)), begin_W))
        return np.concatenate(parts) - self.log_outside

    @functools.cached_property
    def _levels(self) -> list[Level]:
        return make_levels(self.ngram_N, self.count_N, self.order)

    def write(self, path: Path) -> None:
        """Write the file that `read` reads."""
        about = {"format": _FORMAT, "version": _VERSION, "order": self.order, "log_outside": self.log_outside}
        tensors = {"ngram": self.ngram_N.astype("<i8"), "count": self.count_N.astype("<u4")}
        # In one entry, since safetensors writes several in any order, and equal texts must give equal bytes.
        with atomic_file(path) as partial:
            partial.write_bytes(save(tensors, {"about": json.dumps(about)}))

    @classmethod
    def read(cls, path: Path) -> SpellingModel:
        """Read the file that `write` makes; whoever wrote it keeps its hash."""
        try:
            with safe_open(path, framework="np") as file:
                about = json.loads((file.metadata() or {}).get("about", "{}"))
                if about["format"] != _FORMAT or about["version"] != _VERSION:
                    raise ValueError(f"it is {about['format']} of version {about['version']}, not {_FORMAT} {_VERSION}")
                ngram_N, count_N = file.get_tensor("ngram"), file.get_tensor("count").astype(np.int64)
                return cls(ngram_N, count_N, int(about["order"]), float(about["log_outside"]))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"'{path}' is not a spelling model ({error}): restore the file, or prepare the corpus again."
            ) from error

    @classmethod
    def of_run(cls, run: Path) -> SpellingModel | None:
        """Read the spelling model of a run, if it has one."""
        path = run / SPELLING_FILE
        return cls.read(path) if path.is_file() else None


def _blocks(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Cut words into ranges that take little memory, also where some words are very long."""
    begin = num_letters = 0
    for place, word in enumerate(words, 1):
        num_letters += len(word)
        if place - begin == _BLOCK_WORDS or num_letters >= _BLOCK_LETTERS:
            yield begin, place
            begin, num_letters = place, 0
    if begin < len(words):
        yield begin, len(words)


def _join(sums: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    return add_up(np.concatenate([one for one, _ in sums]), np.concatenate([one for _, one in sums]))
