"""Perplexity at its edges, and where a text is hard, against plain loops: by rank, by position, the worst sentences.

Legend: N tokens.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import pytest
from small_corpus import END, UNK, VOCAB_SIZE, random_ids, small_model

from bnce.evaluation.breakdown import (
    MAX_SHOWN_WORDS,
    MIN_WORDS,
    NUM_WORST,
    Detail,
    WordCounts,
    find_detail,
    perplexity,
    places,
    worst_sentences,
)
from bnce.evaluation.evaluate import CONTEXT, WINDOW, evaluate

WORDS = [f"w{number}" for number in range(VOCAB_SIZE)]
COUNTS = np.random.default_rng(2).permutation(VOCAB_SIZE).astype(np.int64) * 3


def test_natural_logarithms_and_those_to_the_base_ten() -> None:
    assert perplexity(-6 * math.log(8), 6) == pytest.approx(8)
    assert perplexity(np.float64(-12.0), 6, log10=True) == pytest.approx(100)


@pytest.mark.parametrize("log10", [False, True])
def test_at_the_edges(log10: bool) -> None:
    assert perplexity(0.0, 0, log10=log10) is None
    assert perplexity(-1.0, -1, log10=log10) is None
    assert perplexity(-1e9, 2, log10=log10) == math.inf
    assert perplexity(-math.inf, 2, log10=log10) == math.inf
    assert math.isnan(perplexity(math.nan, 2, log10=log10) or 0.0)


def plain_places(ids: list[int]) -> list[int]:
    found, place = [], 0
    for word in ids:
        place += 1
        found.append(place)
        if word == END:
            place = 0
    return found


@pytest.mark.parametrize("ids", [[5], [END], [END, END, 4], [4, 4, END, 4, END, 4], [4] * 50, random_ids(500).tolist()])
def test_places_in_the_sentence(ids: list[int]) -> None:
    assert places(np.array(ids)).tolist() == plain_places(ids)


def test_groups_hold_every_token_once_and_their_perplexities() -> None:
    ids = random_ids(3000, seed=5)
    generator = np.random.default_rng(1)
    log_prob_f_N, log_prob_n_N = -generator.gamma(4, 1, 3000), -generator.gamma(5, 1, 3000)
    detail = find_detail(ids, log_prob_f_N, log_prob_n_N, WordCounts(WORDS, COUNTS))
    ranked = [word for word in np.argsort(-COUNTS, kind="stable").tolist() if word != UNK]
    names = {word: "1-10" if place < 10 else "11-100" for place, word in enumerate(ranked)} | {UNK: "<unk>"}
    assert [group.name for group in detail.by_frequency] == ["1-10", "11-100", "<unk>"]
    position_names = [
        str(place) if place <= 20 else "21-40" if place <= 40 else "41+" for place in plain_places(ids.tolist())
    ]
    assert [group.name for group in detail.by_position] == [*map(str, range(1, 21)), "21-40", "41+"]
    for groups, name_N in ((detail.by_frequency, [names[word] for word in ids.tolist()]),
                           (detail.by_position, position_names)):  # fmt: skip
        assert sum(group.num_tokens for group in groups) == 3000
        for group in groups:
            inside_N = np.array([name == group.name for name in name_N])
            assert group.num_tokens == inside_N.sum()
            assert group.ppl_f == pytest.approx(math.exp(-log_prob_f_N[inside_N].mean()), rel=1e-12)
            assert group.ppl_n == pytest.approx(math.exp(-log_prob_n_N[inside_N].mean()), rel=1e-12)


def test_the_worst_sentences_are_those_of_a_plain_search() -> None:
    ids = random_ids(4000, seed=9)
    loss_N = np.random.default_rng(3).gamma(4, 1, 4000)
    sentences, start = [], 0
    for place, word in enumerate(ids.tolist()):
        if word == END or place == 3999:
            num_words = place + 1 - start - (word == END)
            if num_words >= MIN_WORDS:
                sentences.append((loss_N[start : place + 1].mean(), start, place + 1))
            start = place + 1
    found = worst_sentences(ids, loss_N, WORDS)
    assert len(found) == NUM_WORST
    for sentence, (mean, begin, end) in zip(found, sorted(sentences, reverse=True), strict=False):
        assert (sentence.first_token, sentence.num_tokens) == (begin, end - begin)
        assert sentence.mean_loss_nats == pytest.approx(mean, rel=1e-12)
        assert sentence.words == [WORDS[word] for word in ids[begin:end]]
        assert sentence.losses_nats == pytest.approx(loss_N[begin:end].tolist(), abs=1e-4)


def test_odd_texts() -> None:
    known = WordCounts(WORDS, COUNTS)
    one = find_detail(np.array([UNK]), np.array([-2.0]), None, known)
    assert [(group.name, group.ppl_n) for group in one.by_frequency] == [("<unk>", None)]
    assert [group.name for group in one.by_position] == ["1"]
    assert one.worst_sentences == []
    # Four words and </s> are too few, five without </s> are not.
    assert worst_sentences(np.array([3, 3, 3, 3, END]), np.ones(5), WORDS) == []
    assert len(worst_sentences(np.array([3, 3, 3, 3, 3]), np.ones(5), WORDS)) == 1
    (endless,) = worst_sentences(np.full(5000, 7), np.ones(5000), WORDS)
    assert (endless.num_tokens, len(endless.words), len(endless.losses_nats)) == (5000, *[MAX_SHOWN_WORDS] * 2)
    blown_up = find_detail(np.array([3] * 6), np.full(6, -1000.0), np.full(6, np.nan), known)
    assert blown_up.by_position[0].ppl_f == math.inf
    assert math.isnan(blown_up.by_position[0].ppl_n or 0)


def test_eight_million_tokens_take_seconds() -> None:
    ids = np.random.default_rng(1).integers(0, 100_000, 8_000_000)
    ids[::20] = END
    log_prob_N = np.full(len(ids), -5.0)
    started = time.process_time()
    find_detail(ids, log_prob_N, log_prob_N, WordCounts(["w"] * 100_000, np.arange(100_000)))
    assert time.process_time() - started < 8


@pytest.mark.parametrize("body", ["lstm", "ffnn"])
@pytest.mark.parametrize("num_parallel", [1, 3])
def test_an_evaluation_puts_its_windows_back_into_the_text(body: str, num_parallel: int) -> None:
    """A model that knows only the last word gives each pair of words one loss, wherever it stands in a window."""
    model, num_tokens = small_model(body, order=2).eval(), CONTEXT + 3 * WINDOW + 17
    ids = random_ids(num_tokens)
    if body == "ffnn":
        once = evaluate(model, ids, num_parallel=1, known=WordCounts(WORDS, COUNTS)).detail
        pairs = {}
        for sentence in once.worst_sentences if once else []:
            begin = sentence.first_token
            for place, loss in enumerate(sentence.losses_nats, begin):
                pair = (int(ids[place - 1]) if place else END, int(ids[place]))
                assert pairs.setdefault(pair, loss) == pytest.approx(loss, abs=2e-4)
        assert len(pairs) > 20
    result = evaluate(model, ids, num_parallel=num_parallel, known=WordCounts(WORDS, COUNTS))
    assert isinstance(result.detail, Detail)
    total = sum(group.num_tokens * math.log(group.ppl_f) for group in result.detail.by_position)
    assert math.exp(total / num_tokens) == pytest.approx(result.ppl_f, rel=1e-9)
    for sentence in result.detail.worst_sentences:
        spelt = [WORDS[word] for word in ids[sentence.first_token :][: len(sentence.words)]]
        assert sentence.words == spelt
    without = evaluate(model, ids, num_parallel=num_parallel)
    assert dataclasses.replace(result, detail=None) == without
    assert "detail" not in without.to_dict()


def test_softmax_has_no_perplexity_with_the_constant() -> None:
    result = evaluate(small_model(loss="softmax"), random_ids(200), known=WordCounts(WORDS, COUNTS))
    assert result.detail is not None
    assert all(group.ppl_n is None for group in result.detail.by_frequency + result.detail.by_position)
