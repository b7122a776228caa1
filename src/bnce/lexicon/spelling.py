"""Words of like spelling, found fast among a million: cosine over hashed letter groups, marked where a word ends.

A word is the set of its groups of 3 to 5 letters, its boundaries counted as letters: `<cat>` has `<ca`, `cat`, `at>`,
`<cat`, … A group weighs ln(V / number of words that have it), so that `ing>` says less than `quart`.

Legend: V words searched, G letter groups of all words, P (group, word) pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

GROUP_LENGTHS = (3, 4, 5)
NUM_BUCKETS = 2**20  # two groups in one bucket are rare, and harm little
_FIRST, _LAST = "\x02", "\x03"  # boundaries that no word holds
_HASH_START, _HASH_FACTOR = np.uint64(1469598103934665603), np.uint64(1099511628211)  # FNV-1a

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def nearest_words(words: Sequence[str], queries: Sequence[str], num_nearest: int) -> Iterator[tuple[Ints, Floats]]:
    """Give for each query the places of the words nearest to it and their cosines, the nearest first; all above 0."""
    query_pairs = [np.unique(_buckets([query])[1]) for query in queries]
    bucket_P, word_P = _pairs(words)
    num_words_G = np.bincount(bucket_P, minlength=NUM_BUCKETS)
    weight_G = np.log(max(2, len(words)) / np.maximum(num_words_G, 1)) ** 2
    norm_V = np.sqrt(np.bincount(word_P, weights=weight_G[bucket_P], minlength=len(words)))
    asked_G = np.zeros(NUM_BUCKETS, dtype=bool)
    for bucket_Q in query_pairs:
        asked_G[bucket_Q] = True
    # The pairs are sorted by bucket: those of one bucket stand together.
    word_P = word_P[asked_G[bucket_P]]
    end_G = np.cumsum(np.where(asked_G, num_words_G, 0))
    for bucket_Q in query_pairs:
        lists = [word_P[end_G[bucket] - num_words_G[bucket] : end_G[bucket]] for bucket in bucket_Q]
        weights = np.repeat(weight_G[bucket_Q], num_words_G[bucket_Q])
        product_V = np.bincount(np.concatenate(lists), weights=weights, minlength=len(words))
        found = np.flatnonzero(product_V)
        norm = np.sqrt(weight_G[bucket_Q].sum())
        cosine = product_V[found] / (norm_V[found] * norm)
        if len(found) > num_nearest:
            kept = np.argpartition(-cosine, num_nearest)[:num_nearest]
            found, cosine = found[kept], cosine[kept]
        order = np.lexsort((found, -cosine))
        yield found[order], cosine[order]


def _pairs(words: Sequence[str]) -> tuple[Ints, Ints]:
    """List which letter group is in which word, each pair once, sorted by group."""
    word_P, bucket_P = _buckets(words)
    key_P = np.sort(bucket_P * len(words) + word_P)
    key_P = key_P[np.diff(key_P, prepend=-1) != 0]  # np.unique takes five times as long
    return key_P // len(words), key_P % len(words)


def _buckets(words: Sequence[str]) -> tuple[Ints, Ints]:
    """List the letter groups of all words: the word's place and the group's bucket."""
    text = "".join(f"{_FIRST}{word}{_LAST}" for word in words)
    letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
    size_V = np.fromiter((len(word) + 2 for word in words), dtype=np.int64, count=len(words))
    word = np.repeat(np.arange(len(words)), size_V)
    end = np.repeat(np.cumsum(size_V), size_V)
    places, buckets = [], []
    for length in GROUP_LENGTHS:
        start = np.flatnonzero(np.arange(len(letters)) + length <= end)
        hashed = np.full(len(start), _HASH_START)
        for offset in range(length):
            hashed = (hashed ^ letters[start + offset]) * _HASH_FACTOR
        hashed ^= hashed >> np.uint64(29)
        places.append(word[start])
        buckets.append((hashed % np.uint64(NUM_BUCKETS)).astype(np.int64))
    return np.concatenate(places), np.concatenate(buckets)
