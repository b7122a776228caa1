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
from bnce.engine.network import Query
from bnce.engine.packer import score, score_to_end

from .networks import COMPUTED_BY, at_once, by_beam, by_rows, network_of

# Words are few, so that texts begin alike.
TEXTS = st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=18)
LENGTHS = [3, 0, 11, 1, 7, 7, 2, 40, 25]


def texts_of(lengths: list[int] = LENGTHS) -> list[np.ndarray]:
    """Make texts of these many words, and an end each."""
    return [np.append(random_ids(length, seed=length + place), END) for place, length in enumerate(lengths)]


@settings(max_examples=8, phases=(Phase.explicit, Phase.generate))
@given(texts=TEXTS)
@pytest.mark.parametrize("body", BODIES)
def test_every_layout_gives_the_same(body: str, texts: list[list[int]]) -> None:
    """From the start, and from where others have ended, which rows have read."""
    # The weights of the Transformer are twenty times as large as after training, and so are the steps of its sums.
    rounding = 1e-5 if body == "transformer 2" else 1e-6
    ids, beginnings = [np.array(text, dtype=np.int64) for text in texts], []
    for computed_by, tolerance in zip(COMPUTED_BY, (rounding, 10 * rounding), strict=True):
        network = network_of(body, computed_by)
        _, states = score_to_end(network, ids, None)
        for after in (None, states[::-1]):
            expected = by_beam(network, ids, after)
            found = [by_rows(network, ids, after), *(at_once(network, ids, after, share) for share in (False, True))]
            for one in found:
                for own, other in zip(one, expected, strict=True):
                    np.testing.assert_allclose(own, other, atol=tolerance, rtol=tolerance)
            beginnings.append(np.concatenate(expected))
    np.testing.assert_allclose(beginnings[:2], beginnings[2:], atol=10 * rounding)


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
    (whole,) = at_once(network, [text])
    found, states = [], None
    for part in np.split(text, [1, 2, 2, 9, 20]):
        values, states = score_to_end(network, [part], Query(), states)
        found.append(values.log_probs(network.log_z))
    np.testing.assert_allclose(np.concatenate(found), whole, atol=1e-5)


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
    monkeypatch.setattr(packer, "score_tree", lambda *given: (seen.append(len(given[2])), plain(*given))[1])
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
    assert score_to_end(network, [], Query())[1] == []
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
