"""Sequences as trees in one pass: the same numbers as alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import END

from bnce import Scorer
from bnce.scoring import token_trees, torch_engine
from bnce.scoring.prefixes import score_prefixes
from bnce.scoring.token_trees import cut, grow, score_trees

from .plain import model_of, plain_log_probs
from .test_prefixes import HYPOTHESES

SEQUENCES = st.lists(st.lists(st.integers(0, 5), max_size=7), max_size=40)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("body", ["transformer", "transformer 2"])
def test_equals_each_sequence_alone(body: str, normalised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(body)
    # Longer than the context, so that words see only the nearest of their ancestors.
    long = [[4, 5] * 20, [4, 5] * 10 + [6] * 20, [9] * 30]
    assert model.body.context < 30
    expected = [plain_log_probs(model, sequence, normalised) for sequence in [*HYPOTHESES, *long]]
    for sizes in ((16, 128, 2**11), (1, 3, 8)):
        for name, size in zip(("MIN_SEQUENCES", "MAX_SEQUENCES"), sizes, strict=False):
            monkeypatch.setattr(token_trees, name, size)
        monkeypatch.setitem(torch_engine.PASS_NODES, "cpu", sizes[2])
        found = score_trees(Scorer(model), [*HYPOTHESES, *long], normalised)
        for scores, alone in zip(found, expected, strict=True):
            np.testing.assert_allclose(scores, alone, atol=1e-5)


def test_long_sequences_go_word_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("transformer")
    whole = score_prefixes(Scorer(model), HYPOTHESES)
    monkeypatch.setattr(token_trees, "LONGEST", 5)
    monkeypatch.setattr(token_trees, "score_trees", None)
    for one, other in zip(score_prefixes(Scorer(model), HYPOTHESES), whole, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@given(SEQUENCES)
def test_sequences_are_cut_where_they_begin_differently(sequences: list[list[int]]) -> None:
    parts = list(cut(sequences))
    assert [one for part in parts for one in part] == sequences
    for part, after in itertools.pairwise(parts):
        assert len(part) >= token_trees.MIN_SEQUENCES
        assert len(part) == token_trees.MAX_SEQUENCES or part[-1][:1] != after[0][:1] or not part[-1] or not after[0]


@given(SEQUENCES)
def test_a_tree_has_every_prefix_once(sequences: list[list[int]]) -> None:
    tree = grow(sequences)
    going_on = {tuple(sequence[:end]) for sequence in sequences for end in range(len(sequence))}
    prefixes = {tuple(sequence[: place + 1]) for sequence in sequences for place in range(len(sequence))}
    assert len(tree.word_N) == len(going_on | {()})
    assert len(tree.word_P) == len(prefixes)
    assert tree.word_N[0] == END
    # A node sees as many as its depth says, and itself.
    assert (tree.is_seen_NN.sum(axis=1) == tree.depth_N + 1).all()
    words = np.split(tree.word_P[tree.position], np.cumsum(tree.length_S)[:-1]) if sequences else []
    assert [part.tolist() for part in words] == sequences
