"""The same texts by rows, as a tree and word by word: the same numbers, whoever computes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scoring.plain import BODIES, model_of, plain_log_probs
from small_corpus import END, VOCAB_SIZE, random_ids

from bnce import UserError
from bnce.engine import packer
from bnce.engine.network import Query, State
from bnce.engine.packer import Passage, score, score_rows

from .networks import COMPUTED_BY, at_once, by_beam, by_rows, network_of

# Words are few, so that texts begin alike.
TEXTS = st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=18)
LENGTHS = [3, 0, 11, 1, 7, 7, 2, 40, 25]


def texts_of(lengths: list[int] = LENGTHS) -> list[np.ndarray]:
    """Make texts of these many words, and an end each."""
    return [np.append(random_ids(length, seed=length + place), END) for place, length in enumerate(lengths)]


@settings(max_examples=8, phases=(Phase.explicit, Phase.generate))
@given(texts=TEXTS, cut=st.integers(0, 8))
@pytest.mark.parametrize("body", BODIES)
def test_every_layout_gives_the_same(body: str, texts: list[list[int]], cut: int) -> None:
    """Some of the texts go on from where others have ended, which rows have read."""
    network = network_of(body)
    ids = [np.array(text, dtype=np.int64) for text in texts]
    states = {one.number: one.after for one in score_rows(network, map(Passage, ids), keep_states=True)}
    after: list[State | None] = [states[number] if number < cut else None for number in range(len(ids))]
    expected = by_beam(network, ids, after)
    found = [by_rows(network, ids, after, refill=refill, keep_states=kept) for refill in (0, 1) for kept in (0, 1)]
    found += [at_once(network, ids, after, share) for share in (False, True)]
    found += [by_rows(network_of(body, "numpy"), ids, [None] * len(ids), refill=True, keep_states=False)]
    # The weights of the Transformer are twenty times as large as after training, and so are the steps of its sums.
    tolerance = 1e-5 if body == "transformer 2" else 1e-6
    for number, own in enumerate(expected):
        for one in found[:-1]:
            np.testing.assert_allclose(one[number], own, atol=tolerance, rtol=tolerance)
        if after[number] is None:
            np.testing.assert_allclose(found[-1][number], own, atol=10 * tolerance)


@pytest.mark.parametrize("computed_by", COMPUTED_BY)
@pytest.mark.parametrize("body", BODIES)
def test_equals_each_text_alone_in_float64(body: str, computed_by: str) -> None:
    network, model, texts = network_of(body, computed_by), model_of(body), texts_of()
    values = score(network, texts, Query(log_z=True))
    for normalised in (False, True):
        expected = np.concatenate([plain_log_probs(model, text.tolist(), normalised) for text in texts])
        np.testing.assert_allclose(values.log_probs(None if normalised else network.log_z), expected, atol=1e-5)


@pytest.mark.parametrize("computed_by", COMPUTED_BY)
@pytest.mark.parametrize("body", BODIES)
def test_a_text_cut_anywhere_is_one_text(body: str, computed_by: str) -> None:
    network = network_of(body, computed_by)
    text = random_ids(30)
    (whole,) = by_rows(network, [text], [None], refill=True, keep_states=False)
    found, state = [], None
    for part in np.split(text, [1, 2, 2, 9, 20]):
        (scored,) = score_rows(network, [Passage(part, state=state)], keep_states=True)
        found.append(scored.values.log_probs(network.log_z))
        state = scored.after
    np.testing.assert_allclose(np.concatenate(found), whole, atol=1e-5)


@pytest.mark.parametrize("body", ["ffnn", "lstm", "relu-rnn", "rnn 2"])
def test_passes_of_fixed_steps(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: texts begin in the middle of a chunk, but for those after a state; idle rows fill the last."""
    network, texts = network_of(body), texts_of(2 * LENGTHS)
    states = {one.number: one.after for one in score_rows(network, map(Passage, texts), keep_states=True)}
    after = [states[number] if number % 3 == 0 else None for number in range(len(texts))]
    expected = by_rows(network, texts, after, refill=True, keep_states=False)
    monkeypatch.setattr(network, "fixed_steps", 5)
    monkeypatch.setattr("bnce.engine.torch_network.MIN_ROWS", 2)
    shapes: set[tuple[int, ...]] = set()
    forward = network.forward
    monkeypatch.setattr(network, "forward", lambda ids, *rest: (shapes.add(ids.shape), forward(ids, *rest))[1])
    for refill in (True, False):
        found = by_rows(network, texts, after, refill=refill, keep_states=False)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6, rtol=1e-6)
    assert {rows for _, rows in shapes} == {3}
    assert {steps - network.num_context for steps, _ in shapes} == {5}


@pytest.mark.parametrize("body", ["ffnn", "lstm", "transformer 2"])
def test_only_what_is_asked_for_is_answered(body: str) -> None:
    network, texts = network_of(body), texts_of()
    whole = by_rows(network, texts, [None] * len(texts), refill=True, keep_states=False)
    (start,) = (one.after for one in score_rows(network, [Passage(np.zeros(0, np.int64))], keep_states=True))
    for state in (None, start):
        passages = [Passage(text, 2, np.arange(len(text)) % 3 == 0, state) for text in texts]
        for scored in score_rows(network, passages, Query(log_z=True, entropy=True, hidden=True)):
            found, expected = scored.values, whole[scored.number][3::3]
            np.testing.assert_allclose(found.log_probs(network.log_z), expected, atol=1e-5)
            assert found.hidden_ND is None or len(found.hidden_ND) == len(expected)
            assert found.log_z_N is not None
            assert len(found.log_z_N) == len(expected)


def test_one_long_text_does_not_change_how_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of("transformer 2")
    steps: list[int] = []
    forward = network.forward
    monkeypatch.setattr(network, "forward", lambda ids, *rest: (steps.append(len(ids)), forward(ids, *rest))[1])
    score(network, [random_ids(length) for length in [600, 9, 9, 9, 9, 9, 9]], share=True)
    assert len(steps) < 60
    assert max(steps) <= network.max_positions


def test_a_tree_is_for_short_texts_of_recurrent_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plain = packer.score_tree
    monkeypatch.setattr(packer, "score_tree", lambda *given: (seen.append(len(given[1])), plain(*given))[1])
    monkeypatch.setattr(packer, "MIN_TREE_TEXTS", 4)
    short, long = texts_of([3, 2, 5, 4]), random_ids(65)
    score(network_of("lstm"), [*short, long])
    assert seen == [4]
    for body, texts, share in (("lstm", short[:3], False), ("ffnn", short, True), ("transformer 2", short, True)):
        score(network_of(body), texts, share=share)
    assert seen == [4]
    score(network_of("lstm"), [short[0], long], share=True)
    assert seen == [4, 2]


def test_nothing_to_score() -> None:
    network = network_of("lstm")
    assert list(score_rows(network, [])) == []
    assert len(score(network, [], Query(log_z=True)).log_probs()) == 0
    assert len(score(network, [np.zeros(0, np.int64)] * 20, share=True).log_probs(0.0)) == 0


@pytest.mark.parametrize("share", [False, True])
def test_ids_of_no_words_are_refused(share: bool) -> None:
    network = network_of("lstm")
    for wrong in (-1, VOCAB_SIZE):
        for place in (1, 2):
            text = np.insert([3, 4], place, wrong)
            with pytest.raises(UserError, match=f"but the vocabulary has ids from 0 to {VOCAB_SIZE - 1}"):
                score(network, [np.array([3, 4]), text], share=share)
