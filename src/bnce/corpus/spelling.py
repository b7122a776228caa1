"""The spelling model: p(word) of every string outside the vocabulary, learnt from the words that `<unk>` stands for.

It has n-grams of bytes by interpolated modified Kneser-Ney smoothing, down to every byte alike: no string is
impossible.

    p_n(byte | context) = (count − discount) / total(context) + left(context) · p_{n−1}(byte | shorter context)
    p_0 = 1 / 257: 256 bytes, and the end of a word

Discounts and counts are as for n-grams of words (`ngrams.kneser_ney`): the longest n-grams count how often words have
them, shorter ones after how many different bytes, except those at the start of a word. A context that no word has
leaves all to the shorter one. So each p_n sums to one, and so do the probabilities of all strings.

`<unk>` never stands for a word of the vocabulary, nor for no letters at all. What the n-grams give to these strings is
shared by all others: log_prob(word) = ln p(word) − ln(1 − Σ p(word of the vocabulary) − p("")). So the probabilities of
all other strings of bytes sum to one, and p(<unk> | context) · p(word) is the probability of the word itself.

DIR/spelling.safetensors   `ngram` and `count`: the longest n-grams, from which all others follow; in the metadata the
                           order, and the logarithm of what is outside the vocabulary

An n-gram is one number of 9 bits per symbol, the oldest in the highest bits: 0 for nothing, which is before the start
of a word, 1 for the start, 2 for the end, and the bytes. What is before the start is no context, so that the first
bytes of a word have the contexts that there are.

Legend: P places of some words, N n-grams of one order, C contexts of one order, Q n-grams that are asked for.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bnce.errors import UserError
from bnce.files import atomic_file

SPELLING_FILE = "spelling.safetensors"
# Bits per unknown token of Wikipedia, V = 80,000: 29.2 with order 4, 27.0 with 5, 25.2 with 6, 24.4 with 7, the most
# that 64 bits hold; with Witten-Bell smoothing 25.6, and with every word counted once 25.0.
ORDER = 7
_FORMAT, _VERSION = "bnce-spelling", 1
_BLOCK_WORDS, _BLOCK_LETTERS = 2**16, 2**20
_BLOCKS_JOINED = 8
_MAX_COUNT = 2**32 - 1  # what the file holds
START, END, FIRST_BYTE = 1, 2, 3
NUM_OUTCOMES = 257
BITS = 9
MAX_ORDER = 7  # what 63 bits hold
# For texts so small that some count of counts is zero: those that KenLM's lmplz falls back to.
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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


def find_ngrams(words: Sequence[str], order: int) -> tuple[Ints, Ints]:
    """Give the n-gram that ends at every byte and every end of words, and where each word's n-grams begin."""
    # Half of a surrogate pair is no character, but a text that was read with errors may have one.
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    size_W = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)) + 2
    end_W = np.cumsum(size_W)
    symbol_P = np.zeros(int(size_W.sum()), dtype=np.int64)
    symbol_P[end_W - size_W] = START
    symbol_P[end_W - 1] = END
    symbol_P[symbol_P == 0] = np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.int64) + FIRST_BYTE
    since_start_P = np.arange(len(symbol_P)) - np.repeat(end_W - size_W, size_W)
    ngram_P = symbol_P.copy()
    for distance in range(1, order):
        before_P = np.where(since_start_P[distance:] >= distance, symbol_P[:-distance], 0)
        ngram_P[distance:] |= before_P << (BITS * distance)
    return ngram_P[symbol_P != START], end_W - size_W - np.arange(len(words))


def add_up(ngram_N: Ints, count_N: Ints) -> tuple[Ints, Ints]:
    """Sort n-grams and add up the counts of equal ones."""
    order_N = np.argsort(ngram_N, kind="stable")
    ngram_N = ngram_N[order_N]
    first_N = np.flatnonzero(np.diff(ngram_N, prepend=-1))
    return ngram_N[first_N], np.add.reduceat(count_N[order_N], first_N) if len(first_N) else count_N[:0]


@dataclass(frozen=True)
class Level:
    """The n-grams of one order, sorted, with what is left of their counts; and what each context leaves to others."""

    ngram_N: Ints
    prob_N: Floats
    context_C: Ints
    left_C: Floats

    @classmethod
    def of(cls, ngram_N: Ints, count_N: Ints) -> Level:
        """Discount the counts of sorted n-grams."""
        context_N = ngram_N >> BITS
        begin_C = np.flatnonzero(np.diff(context_N, prepend=-1))
        off_N = np.array([0.0, *find_discounts(count_N)[0]])[np.minimum(count_N, 3)]
        total_C = np.add.reduceat(count_N, begin_C)
        size_C = np.diff(begin_C, append=len(ngram_N))
        left_C = np.add.reduceat(off_N, begin_C) / total_C
        return cls(ngram_N, (count_N - off_N) / np.repeat(total_C, size_C), context_N[begin_C], left_C)

    def mix(self, ngram_Q: Ints, lower_Q: Floats) -> Floats:
        """Add this order to what the lower orders say."""
        return _look_up(self.ngram_N, self.prob_N, ngram_Q, 0.0) + lower_Q * _look_up(
            self.context_C, self.left_C, ngram_Q >> BITS, 1.0
        )


def make_levels(ngram_N: Ints, count_N: Ints, order: int) -> list[Level]:
    """Make all orders, the lowest first, of the longest n-grams and their counts."""
    levels = []
    for number in range(order, 0, -1):
        has_all_N = ngram_N >> (BITS * (number - 1)) > 0  # others are of a lower order: before them a word begins
        if has_all_N.any():
            levels.append(Level.of(ngram_N[has_all_N], count_N[has_all_N]))
        if number > 1:
            ngram_N, place_N = np.unique(ngram_N & _low(number - 1), return_inverse=True)
            num_contexts_N = np.bincount(place_N)
            total_N = np.bincount(place_N, weights=count_N).astype(np.int64)
            is_at_start_N = ngram_N >> (BITS * (number - 2)) <= START
            count_N = np.where(is_at_start_N, total_N, num_contexts_N)
    return levels[::-1]


def probabilities(levels: Sequence[Level], ngram_Q: Ints) -> Floats:
    """Compute p(last symbol | the others) of n-grams."""
    if not levels:
        return np.full(len(ngram_Q), 1 / NUM_OUTCOMES)
    # Sorted and each once, they are found several times as fast.
    ngram_Q, place_Q = np.unique(ngram_Q & _low(len(levels)), return_inverse=True)
    lower_Q = probabilities(levels[:-1], ngram_Q)
    return levels[-1].mix(ngram_Q, lower_Q)[place_Q]


def find_discounts(count_N: Ints) -> tuple[tuple[float, float, float], bool]:
    """Find what to take off counts of 1, of 2, and of 3 or more; tell if there are too few to estimate it."""
    n1, n2, n3, n4 = (int((count_N == number).sum()) for number in (1, 2, 3, 4))
    if min(n1, n2, n3, n4) > 0:
        y = n1 / (n1 + 2 * n2)
        found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        if all(0 < value < number for number, value in enumerate(found, 1)):
            return found, False
    return FALLBACK_DISCOUNTS, True


def _look_up(key_N: Ints, value_N: Floats, key_Q: Ints, missing: float) -> Floats:
    place_Q = np.minimum(np.searchsorted(key_N, key_Q), len(key_N) - 1)
    return np.where(key_N[place_Q] == key_Q, value_N[place_Q], missing)


def _low(num_symbols: int) -> int:
    return (1 << (BITS * num_symbols)) - 1
