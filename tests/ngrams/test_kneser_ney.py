"""The n-gram estimator: equal to the definition, summing to one after every history, as KenLM reads it."""

from __future__ import annotations

import collections
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from bnce import Normaliser, UserError
from bnce.ngrams.arpa import AS_IT_STANDS, write_arpa
from bnce.ngrams.kneser_ney import Order, estimate, needed_bytes
from bnce.scoring.ngram import open_ngram

WORDS = ["</s>", "<unk>", "a", "b", "c", "never"]
START = len(WORDS)
kenlm = pytest.importorskip("kenlm")

Ngram = tuple[int, ...]


def text(num_sentences: int, seed: int = 1) -> np.ndarray:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 7, num_sentences)
    # Numbers that grow are likelier to go on growing: something for contexts to learn.
    return np.concatenate(
        [[*np.sort(generator.choice([1, 2, 3, 4], length, p=[0.1, 0.4, 0.3, 0.2])), 0] for length in lengths]
    )


def sentences(ids: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids, np.flatnonzero(ids == 0) + 1)[:-1]]


def by_definition(ids: np.ndarray, order: int, prune: list[int], discounts: list[tuple[float, ...]]):
    """Give p(word | history) as Chen and Goodman write it, by dictionaries: slow, and all of its own."""
    seen: collections.Counter[Ngram] = collections.Counter()
    for sentence in sentences(ids):
        padded = [START, *sentence]
        for length in range(1, order + 1):
            seen.update(tuple(padded[i : i + length]) for i in range(len(padded) - length + 1))
    before = collections.defaultdict(set)
    for ngram in seen:
        before[ngram[1:]].add(ngram[0])

    def count(ngram: Ngram) -> int:
        if len(ngram) == order or ngram[0] == START:
            return seen[ngram] if ngram != (START,) else 0
        return len(before[ngram])

    followers = collections.defaultdict(list)
    for ngram in seen:
        followers[ngram[:-1]].append(ngram)

    def prob(history: Ngram, word: int) -> float:
        if history and not followers[history]:
            return prob(history[1:], word)
        lower = prob(history[1:], word) if history else 1 / len(WORDS)
        total = sum(map(count, followers[history]))
        number = len(history) + 1

        def off(ngram: Ngram) -> float:
            if number > 1 and seen[ngram] <= prune[number - 1]:
                return count(ngram)
            return [0.0, *discounts[number - 1]][min(count(ngram), 3)]

        left = sum(map(off, followers[history])) / total
        ngram = (*history, word)
        own = count(ngram) - off(ngram) if ngram in seen else 0
        return own / total + left * lower

    return prob


def log10_after(model, history: Ngram, word: str) -> float:
    state, after = kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    for number in history:
        model.BaseScore(state, WORDS[number], after)
        state, after = after, kenlm.State()
    return model.BaseScore(state, word, after)


@pytest.mark.parametrize(("order", "prune"), [(2, [0]), (3, [0]), (4, [0, 0, 1]), (5, [0, 1, 2, 2, 3]), (3, [1])])
@pytest.mark.parametrize("num_sentences", [1, 3, 400])
def test_kenlm_reads_what_the_definition_says(tmp_path: Path, order: int, prune: list[int], num_sentences: int) -> None:
    path = tmp_path / "small.arpa"
    ids = text(num_sentences)
    orders = estimate(ids, len(WORDS), order, prune)
    write_arpa(path, WORDS, orders)
    model = open_ngram(path).model
    assert model.order == order
    # With one number it stands for all orders but the first.
    filled = [0, *prune * (order - 1)] if len(prune) == 1 else [*prune, *prune[-1:] * (order - len(prune))]
    prob = by_definition(ids, order, filled, [one.discounts for one in orders])
    generator = np.random.default_rng(2)
    histories = [tuple(generator.integers(1, len(WORDS), length).tolist()) for length in range(5) for _ in range(5)]
    for history in [(), *histories, *(tuple(part[:-1]) for part in sentences(ids)[:10])]:
        context = (START, *history)[-(order - 1) :]
        found = [10 ** log10_after(model, history, word) for word in WORDS]
        assert sum(found) == pytest.approx(1, abs=1e-4), history
        expected = [prob(context, word) for word in range(len(WORDS))]
        np.testing.assert_allclose(found, expected, rtol=2e-5, err_msg=str(history))


def test_counts_by_hand() -> None:
    """Three sentences, `a b`, `a b` and `a c`: bigrams keep their counts, unigrams count their contexts."""
    ids = np.array([2, 3, 0, 2, 3, 0, 2, 4, 0])
    unigrams, bigrams = estimate(ids, len(WORDS), 2)
    # Contexts: a after <s>; b after a; c after a; </s> after b and c.
    discount = {1: 0.5, 2: 1.0}
    left = (3 * discount[1] + discount[2]) / 5
    expected = [(2 - discount[2]) / 5, 0, 0.5 / 5, 0.5 / 5, 0.5 / 5, 0]
    np.testing.assert_allclose(unigrams.prob_N[:-1], np.array(expected) + left / len(WORDS))
    a_b = bigrams.prob_N[np.searchsorted(bigrams.key_N, 2 * (len(WORDS) + 1) + 3)]
    assert a_b == pytest.approx((2 - 1.0) / 3 + (1.0 + 0.5) / 3 * unigrams.prob_N[3])
    assert unigrams.backoff_N[2] == pytest.approx((1.0 + 0.5) / 3)
    assert unigrams.is_fallback
    assert bigrams.is_fallback


def test_contexts_help(tmp_path: Path) -> None:
    """A higher order is better on text of the same kind; words with a discount of their own count as estimated."""
    perplexities = []
    for order in (2, 3):
        path = tmp_path / f"{order}.arpa"
        orders = estimate(text(2000), len(WORDS), order)
        write_arpa(path, WORDS, orders)
        held_out = [[WORDS[i] for i in part[:-1]] for part in sentences(text(500, seed=2))]
        scores = open_ngram(path).score_words(held_out)
        perplexities.append(math.exp(-np.concatenate([one.log_probs for one in scores]).mean()))
    assert perplexities[0] > perplexities[1]


def test_pruning_leaves_out_what_is_rare() -> None:
    def kept(orders: list[Order]) -> list[int]:
        return [one.num_kept for one in orders]

    ids = text(400)
    whole, pruned = estimate(ids, len(WORDS), 3), estimate(ids, len(WORDS), 3, [0, 0, 2])
    assert kept(whole) == [len(one.key_N) for one in whole]
    assert kept(pruned)[:2] == kept(whole)[:2]
    trigrams = collections.Counter(
        triple for one in sentences(ids) for triple in zip([START, *one], one, one[1:], strict=False)
    )
    assert kept(pruned)[2] == sum(count > 2 for count in trigrams.values()) < kept(whole)[2]


def test_large_vocabularies_do_not_overflow(tmp_path: Path) -> None:
    """Six of so many words do not fit into one number of 64 bits; a context and a word do."""
    vocab_size = 2000
    assert vocab_size**6 > 2**63
    ids = np.array([vocab_size - 1, vocab_size - 2, vocab_size - 3] * 20 + [0], dtype=np.int32)
    orders = estimate(ids, vocab_size, 6)
    assert [len(one.key_N) for one in orders] == [vocab_size + 1, 5, 5, 5, 5, 5]
    words = ["</s>", "<unk>", *(f"w{number}" for number in range(2, vocab_size))]
    path = tmp_path / "large.arpa"
    write_arpa(path, words, orders)
    assert " ".join(f"w{vocab_size - 1 - place % 3}" for place in range(6)) in path.read_text(encoding="utf-8")


def test_what_the_file_says_of_its_text(tmp_path: Path) -> None:
    path = tmp_path / "small.arpa"
    orders = estimate(text(10), len(WORDS), 2)
    write_arpa(path, WORDS, orders)
    assert open_ngram(path).normaliser == AS_IT_STANDS
    normaliser = Normaliser(numbers="zero")
    write_arpa(path, WORDS, orders, normaliser)
    found = open_ngram(path)
    assert found.normaliser == normaliser
    assert found.words("A b7, C.") == ["a", "b", "0", ",", "c", "."]
    content = path.read_text(encoding="utf-8")
    for bad in ('{"tokens": 3}', "[]", "{", '{"other": 1}'):
        path.write_text(content.replace(content.splitlines()[0], f"# bnce normaliser: {bad}"), encoding="utf-8")
        with pytest.raises(UserError, match="does not say how its text was cut into words"):
            open_ngram(path)


@pytest.mark.parametrize(
    ("order", "prune", "told"),
    [
        (1, [0], "The order is 1: it must be from 2 to 6"),
        (7, [0], "The order is 7"),
        (3, [], "one number for each of the 3 orders"),
        (2, [0, 0, 1], "'0,0,1': give one number for each of the 2 orders"),
        (3, [1, 1], "'1,1': they must start with 0"),
        (3, [0, 2, 1], "no number may be smaller than the one before it"),
        (3, [-1], "The pruned counts are '-1'"),
    ],
)
def test_refusals(order: int, prune: list[int], told: str) -> None:
    with pytest.raises(UserError, match=told):
        estimate(text(3), len(WORDS), order, prune)


def test_no_text() -> None:
    with pytest.raises(UserError, match="There is no text"):
        estimate(np.zeros(0, dtype=np.int64), len(WORDS), 2)
    assert needed_bytes(10, 3) < needed_bytes(10, 4)
    assert list(itertools.accumulate([needed_bytes(1, 2)] * 3)) == [needed_bytes(n, 2) for n in (1, 2, 3)]
