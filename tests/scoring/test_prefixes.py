"""Sequences that share prefixes: the same numbers as alone, each distinct prefix computed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import END, VOCAB_SIZE, random_ids, small_model

from bnce import Scorer, UserError
from bnce.scoring import prefixes
from bnce.scoring.prefixes import flatten, levels, score_prefixes, split

from .plain import BODIES, model_of, plain_log_probs

HYPOTHESES = [
    [4, 5, 6, 7, END],
    [4, 5, 6, 8, END],
    [4, 5, END],
    [4, 5, 6, 7, END],  # the same again
    [],
    [9, END],
    [4, 5, 6, 7, 7, 7],  # has no end
    [END],
]


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_equals_each_sequence_alone(body: str, normalised: bool) -> None:
    model, start = model_of(body), random_ids(30).tolist()
    sequences = [*HYPOTHESES, *([*start, *random_ids(10, seed=seed).tolist()] for seed in (2, 3))]
    found = score_prefixes(Scorer(model), sequences, normalised)
    for scores, sequence in zip(found, sequences, strict=True):
        np.testing.assert_allclose(scores, plain_log_probs(model, sequence, normalised), atol=1e-5)


def test_each_distinct_prefix_goes_through_the_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("lstm")
    scorer = Scorer(model)
    scorer.start()
    widths: list[int] = []
    normalised: list[int] = []
    branch, log_normaliser = scorer.branch_states, model.output.log_normaliser

    def watch(states: Any, parent_B: Any, word_B: Any, entered: Any) -> Any:
        widths.append(len(word_B))
        return branch(states, parent_B, word_B, entered)

    def count(hidden_ND: Any) -> Any:
        normalised.append(len(hidden_ND))
        return log_normaliser(hidden_ND)

    monkeypatch.setattr(scorer, "branch_states", watch)
    monkeypatch.setattr(model.output, "log_normaliser", count)
    score_prefixes(scorer, HYPOTHESES, normalised=True)
    # 4 and 9 go on; 4 5; 4 5 6; 4 5 6 7 and 4 5 6 8; 4 5 6 7 7.
    assert widths == [2, 1, 1, 2, 1]
    assert normalised == [1, 2, 1, 1, 2, 1]
    # Words after those: 4 9 end; 5 end; 6 end; 7 8; end end 7; 7.
    assert num_prefixes(HYPOTHESES) == 3 + 2 + 2 + 2 + 3 + 1


def test_trees_are_cut_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("relu-rnn")
    whole = score_prefixes(Scorer(model), HYPOTHESES)
    monkeypatch.setattr(prefixes, "TREE_SEQUENCES", 3)
    for one, other in zip(score_prefixes(Scorer(model), HYPOTHESES), whole, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_large_states_make_small_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("transformer 2")
    scorer = Scorer(model)
    whole = score_prefixes(scorer, HYPOTHESES)
    widths: list[int] = []
    branch = scorer.branch_states
    monkeypatch.setattr(scorer, "branch_states", lambda *given: widths.append(len(given[2])) or branch(*given))
    keys_and_values = 2 * 2 * model.body.context * 8
    monkeypatch.setattr("bnce.scoring.engine.STATE_NUMBERS", 2 * keys_and_values - 1)
    for one, other in zip(score_prefixes(scorer, HYPOTHESES), whole, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert set(widths) == {1}, "two states have more numbers"


def num_prefixes(sequences: list[list[int]]) -> int:
    """Count the words that are scored."""
    word_N, length_S = flatten(sequences)
    return sum(len(level.word_B) for level in levels(word_N, length_S, np.zeros_like(length_S)))


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=12))
def test_prefixes_are_counted_as_a_set_counts_them(sequences: list[list[int]]) -> None:
    distinct = {tuple(sequence[: place + 1]) for sequence in sequences for place in range(len(sequence))}
    assert num_prefixes(sequences) == len(distinct)


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=12))
def test_sequences_are_cut_apart_as_they_were_joined(sequences: list[list[int]]) -> None:
    assert [part.tolist() for part in split(*flatten(sequences))] == sequences


def test_nothing_to_score() -> None:
    scorer = Scorer(small_model("lstm"))
    assert score_prefixes(scorer, []) == []
    (empty,) = score_prefixes(scorer, [[]])
    assert empty.shape == (0,)


def test_ids_of_no_words_are_refused() -> None:
    scorer = Scorer(small_model("lstm"))
    for wrong in (-1, VOCAB_SIZE):
        with pytest.raises(UserError, match=f"but the vocabulary has ids from 0 to {VOCAB_SIZE - 1}"):
            score_prefixes(scorer, [[3, END], [3, wrong, END]])
