"""An n-gram model of a prepared corpus, as an ARPA file: interpolated modified Kneser-Ney, over the corpus's own words.

    python benchmarks/arpa.py CORPUS OUT.arpa --order 3

The `kenlm` package reads such files and builds none. This estimator is for corpora that fit into memory and for orders
2 and 3; for more use KenLM's `lmplz`. The discounts are those of Chen and Goodman (1998), Section 3: counts of the
highest order are those of the text, and a lower order counts in how many contexts a word was seen. `<unk>` is a word
like any other, so that the model knows exactly the words that a run of the same corpus knows.

Legend: N distinct n-grams of one order, W words with `<s>` among them. An n-gram is one number, its words' digits to
the base W, so that contexts and shorter n-grams come by division.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.store import Corpus
from bnce.corpus.vocabulary import END
from bnce.files import atomic_file

MIN_ORDER, MAX_ORDER = 2, 3  # KenLM takes no unigram model
# For texts so small that some count of counts is zero.
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
LOG10_ZERO = -99.0  # how ARPA files write the probability of <s>, which is never predicted

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Order:
    """The n-grams of one order: sorted keys, interpolated probabilities, and as contexts their back-off weights."""

    key_N: Ints
    prob_N: Floats
    backoff_N: Floats


def estimate(ids: Ints, vocab_size: int, order: int) -> list[Order]:
    """Estimate a model of sentences that end in `</s>`; the digit of `<s>` is `vocab_size`."""
    if not MIN_ORDER <= order <= MAX_ORDER:
        raise ValueError(f"The order is {order}: it must be {MIN_ORDER} or {MAX_ORDER}.")
    base = vocab_size + 1
    counted = _count(ids, base, order)
    prob_W = np.full(base, 1 / vocab_size)  # what unigrams back off to: every word alike
    prob_W[vocab_size] = 0
    lower_key, lower_prob = np.arange(base), prob_W
    orders: list[Order] = []
    for number, (key_N, count_N) in enumerate(counted, 1):
        discount_N = _discounts(count_N)
        context_N = key_N // base
        context_C, place_N = np.unique(context_N, return_inverse=True)
        total_C = np.bincount(place_N, weights=count_N)
        left_C = np.bincount(place_N, weights=discount_N) / total_C
        suffix_N = key_N % base ** max(1, number - 1)
        lower_N = lower_prob[np.searchsorted(lower_key, suffix_N)]
        prob_N = (count_N - discount_N) / total_C[place_N] + left_C[place_N] * lower_N
        if number == 1:
            # Words that were never seen have what is left, and <s> has an entry, too.
            unigram_W = left_C[0] * prob_W
            unigram_W[key_N] = prob_N
            key_N, prob_N = np.arange(base), unigram_W
        else:
            before = orders[-1]
            before.backoff_N[np.searchsorted(before.key_N, context_C)] = left_C
        orders.append(Order(key_N, prob_N, np.ones(len(key_N))))
        lower_key, lower_prob = key_N, prob_N
    return orders


def _count(ids: Ints, base: int, order: int) -> list[tuple[Ints, Ints]]:
    """Count n-grams of each order: keys and counts, those of lower orders by the contexts they were seen in."""
    start = base - 1
    ids = np.asarray(ids, dtype=np.int64)
    is_first = np.concatenate([[True], ids[:-1] == END])
    # Before a sentence's first word stands <s>, once.
    place = np.arange(len(ids)) + np.cumsum(is_first)
    text = np.full(len(ids) + int(is_first.sum()), start, dtype=np.int64)
    text[place] = ids
    inside = np.arange(len(text)) - np.maximum.accumulate(np.where(text == start, np.arange(len(text)), 0))
    counted: list[tuple[Ints, Ints]] = []
    for number in range(order, 0, -1):
        (end,) = np.nonzero(inside >= max(1, number - 1))
        key = np.zeros(len(end), dtype=np.int64)
        for back in range(number - 1, -1, -1):
            key = key * base + text[end - back]
        key_N, count_N = np.unique(key, return_counts=True)
        if counted:
            # Every n-gram inside a sentence has one longer n-gram for each word seen before it; none is before <s>.
            longer_key = counted[-1][0]
            suffix, num_contexts = np.unique(longer_key % base**number, return_counts=True)
            found = np.minimum(np.searchsorted(suffix, key_N), len(suffix) - 1)
            at_start = key_N // base ** (number - 1) == start if number > 1 else np.zeros(len(key_N), dtype=bool)
            count_N = np.where(at_start, count_N, num_contexts[found])
        counted.append((key_N, count_N))
    return counted[::-1]


def _discounts(count_N: Ints) -> Floats:
    """Give what is taken off each count: more off counts of three and more than off those of one."""
    n1, n2, n3, n4 = (int((count_N == number).sum()) for number in (1, 2, 3, 4))
    discounts = FALLBACK_DISCOUNTS
    if min(n1, n2, n3, n4) > 0:
        y = n1 / (n1 + 2 * n2)
        found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        if all(0 < value < number for number, value in enumerate(found, 1)):
            discounts = found
    return np.array([0.0, *discounts])[np.minimum(count_N, 3)]


def write_arpa(path: Path, words: list[str], orders: list[Order]) -> None:
    """Write a model where KenLM can read it."""
    spelt = [*words, "<s>"]
    base = len(spelt)
    with atomic_file(path) as partial, open(partial, "w", encoding="utf-8") as file:
        file.write("\\data\\\n")
        file.writelines(f"ngram {number}={len(one.key_N)}\n" for number, one in enumerate(orders, 1))
        for number, one in enumerate(orders, 1):
            file.write(f"\n\\{number}-grams:\n")
            with np.errstate(divide="ignore"):
                log10_N = np.maximum(np.log10(one.prob_N), LOG10_ZERO).tolist()
                backoff_N = np.log10(one.backoff_N).tolist()
            digits = [(one.key_N // base**power % base).tolist() for power in range(number - 1, -1, -1)]
            for log10_prob, log10_backoff, *places in zip(log10_N, backoff_N, *digits, strict=True):
                ngram = " ".join(spelt[place] for place in places)
                tail = f"\t{log10_backoff:.6f}" if number < len(orders) else ""
                file.write(f"{log10_prob:.6f}\t{ngram}{tail}\n")
        file.write("\n\\end\\\n")


def main() -> None:
    """Estimate a model of a corpus's training text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="a directory that 'bnce prepare' made")
    parser.add_argument("out", type=Path, help="the ARPA file")
    parser.add_argument("--order", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=0, help="use the first words alone; 0 for all")
    options = parser.parse_args()
    corpus = Corpus.open(options.corpus)
    ids = corpus.split("train")
    ids = np.asarray(ids[: options.max_tokens] if options.max_tokens else ids, dtype=np.int64)
    orders = estimate(ids, len(corpus.vocabulary), options.order)
    write_arpa(options.out, corpus.vocabulary.words, orders)
    print(f"{options.out}: {', '.join(f'{len(one.key_N):,}' for one in orders)} n-grams of {len(ids):,} tokens")


if __name__ == "__main__":
    main()
