"""What a beam search calls: batches equal single steps in float64, no state changes, nothing is normalised twice.

Legend: V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scoring.plain import BODIES, model_of, plain_log_probs, plain_scores
from small_corpus import END, VOCAB_SIZE, random_ids, small_model

from bnce import UserError
from bnce.engine.beam import Scorer
from bnce.engine.packer import score_to_end
from bnce.engine.torch_network import TorchNetwork

TOLERANCE = 1e-5  # float32 sums of a few numbers of size ten


def walk(scorer: Scorer, words: list[int]) -> Any:
    """Go from the start through some words, one at a time."""
    state = scorer.start()
    for word in words:
        (state,) = scorer.advance([state], [word])
    return state


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_equals_the_whole_history_read_anew(body: str, normalised: bool) -> None:
    model = model_of(body)
    scorer = Scorer(TorchNetwork(model))
    histories = [[], [5, 7], [3, 3, 9, 2, 11, 4], random_ids(40).tolist()]
    states = [walk(scorer, history) for history in histories]
    words = [4, 5, END, 1]
    found = scorer.score(states, words, "normalised" if normalised else None)
    expected = [
        plain_log_probs(model, [word], normalised, before)[0] for word, before in zip(words, histories, strict=True)
    ]
    np.testing.assert_allclose(found.numpy(), expected, atol=TOLERANCE)


@pytest.mark.parametrize("body", ["ffnn", "lstm"])
def test_several_words_a_state(body: str) -> None:
    model = small_model(body, order=3)
    scorer = Scorer(TorchNetwork(model))
    state = walk(scorer, [6, 2])
    found = scorer.score([state, scorer.start()], [[1, 2, 3], [4, 4, 0]], mode="normalised")
    assert found.shape == (2, 3)
    for row, history in zip(found, ([6, 2], []), strict=True):
        expected_V = torch.log_softmax(plain_scores(model, history), 0)
        wanted = [1, 2, 3] if history else [4, 4, 0]
        np.testing.assert_allclose(row.numpy(), expected_V[wanted].numpy(), atol=TOLERANCE)


def test_normalised_probabilities_sum_to_one() -> None:
    scorer = Scorer(TorchNetwork(small_model("relu-lstm")))
    state = walk(scorer, [8, 3])
    assert scorer.score([state], [list(range(VOCAB_SIZE))], mode="normalised").exp().sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("body", ["ffnn", "relu-rnn", "lstm", "relu-lstm 2", "transformer 2"])
def test_states_from_anywhere_move_on_together(body: str) -> None:
    """Hypotheses of different ages, some of them the same state twice, in an order of their own."""
    model = model_of(body)
    scorer = Scorer(TorchNetwork(model))
    young, old = walk(scorer, [2]), walk(scorer, [2, 9, 4, 4])
    pair = scorer.advance([young, old], [5, 6])
    mixed = [pair[1], scorer.start(), pair[0], pair[1], old]
    moved = scorer.advance(mixed, [7, 8, 9, 10, 11])
    histories = [[2, 9, 4, 4, 6, 7], [8], [2, 5, 9], [2, 9, 4, 4, 6, 10], [2, 9, 4, 4, 11]]
    found = scorer.score(moved, [3] * 5)
    expected = [plain_log_probs(model, [3], before=history)[0] for history in histories]
    np.testing.assert_allclose(found.numpy(), expected, atol=TOLERANCE)


@pytest.mark.parametrize("body", ["ffnn", "lstm"])
def test_a_state_is_never_changed(body: str) -> None:
    scorer = Scorer(TorchNetwork(small_model(body)))
    state = walk(scorer, [4, 5])
    before = scorer.score([state], [[6, 7]]).clone()
    scorer.advance([state, state], [6, 7])
    scorer.score([state], [6], mode="normalised")
    assert torch.equal(scorer.score([state], [[6, 7]]), before)


def test_a_state_is_normalised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("lstm")
    scorer = Scorer(TorchNetwork(model))
    num_normalised: list[int] = []
    plain = model.output.log_normaliser

    def count(hidden_ND: torch.Tensor) -> torch.Tensor:
        num_normalised.append(len(hidden_ND))
        return plain(hidden_ND)

    monkeypatch.setattr(model.output, "log_normaliser", count)
    one, two = scorer.advance([scorer.start(), scorer.start()], [3, 4])
    alone = [float(scorer.score([state], [5], mode="normalised")) for state in (one, two)]
    together = scorer.score([two, one, one, two], [5, 5, 5, 5], mode="normalised")
    assert num_normalised == [1, 1, 2]
    np.testing.assert_allclose(together, [alone[place] for place in (1, 0, 0, 1)], atol=TOLERANCE)


def test_unnormalised_reads_no_other_rows() -> None:
    """Rows that are not asked for may hold anything."""
    model = small_model("lstm")
    with torch.no_grad():
        model.output.weight[10:] = torch.nan
        model.output.bias[10:] = torch.nan
    scorer = Scorer(TorchNetwork(model))
    assert scorer.score([scorer.start()], [[1, 9]]).isfinite().all()


def test_no_states_at_all() -> None:
    scorer = Scorer(TorchNetwork(small_model("lstm")))
    assert scorer.advance([], []) == []
    assert scorer.score([], []).shape == (0,)


def test_what_cannot_be_is_refused() -> None:
    scorer = Scorer(TorchNetwork(small_model("lstm")))
    start = scorer.start()
    with pytest.raises(UserError, match=r"1 states and words of shape \(2,\) do not fit: give ids \(1,\)\."):
        scorer.advance([start], [1, 2])
    with pytest.raises(UserError, match=r"give ids \(1,\) or \(1, k\)\."):
        scorer.score([start], [1, 2])
    with pytest.raises(UserError, match="do not fit"):
        scorer.score([start], torch.tensor([0.5]))
    for words in ([VOCAB_SIZE], [-1]):
        with pytest.raises(UserError, match=f"but the vocabulary has ids from 0 to {VOCAB_SIZE - 1}"):
            scorer.advance([start], words)
    for words in ([[1], [2, 3]], [["the"], ["cat"]]):
        with pytest.raises(UserError, match=r"The words are not a table of ids \(.*\): give ids \(2,\) or \(2, k\)\."):
            scorer.score([start, start], words)  # type: ignore[arg-type]
    small = np.array([3], dtype=np.uint16)  # a type with which torch can do little
    assert torch.equal(scorer.score([start], torch.from_numpy(small)), scorer.score([start], [3]))


def test_a_softmax_model_has_no_constant() -> None:
    scorer = Scorer(TorchNetwork(small_model("lstm", loss="softmax")))
    with pytest.raises(UserError, match="trained with the loss softmax and has no constant Z"):
        scorer.score([scorer.start()], [3], mode="unnormalised")
    assert scorer.score([scorer.start()], [3]) < 0


@pytest.mark.parametrize("body", ["relu-lstm", "transformer 2"])
def test_a_long_beam_stays_itself(body: str) -> None:
    """Forty steps of a beam that reorders itself: each hypothesis is scored as it would be alone."""
    model = model_of(body)
    scorer = Scorer(TorchNetwork(model))
    generator = np.random.default_rng(1)
    beam: list[tuple[list[int], Any]] = [([], scorer.start())]
    for step in range(40):
        chosen = [beam[place] for place in generator.integers(0, len(beam), 4)]
        words = random_ids(4, seed=step).tolist()
        moved = scorer.advance([state for _, state in chosen], words)
        beam = [([*history, word], state) for (history, _), word, state in zip(chosen, words, moved, strict=True)]
    found = scorer.score([state for _, state in beam], [3] * 4)
    expected = [plain_log_probs(model, [3], before=history)[0] for history, _ in beam]
    np.testing.assert_allclose(found.numpy(), expected, atol=TOLERANCE)


@pytest.mark.parametrize("body", BODIES)
def test_sequences_are_read_at_once_like_word_by_word(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(body)
    scorer = Scorer(TorchNetwork(model))
    monkeypatch.setattr(scorer.network, "max_positions", 9)
    sequences = [np.array(words, dtype=np.int64) for words in ([5, 7], [3, 3, 9, 2, 11, 4, 8], [], [6, 2, 6, 2, 1])]
    begin = walk(scorer, [8])
    passes: list[int] = []
    handle = model.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0]) - model.num_context))
    _, found = score_to_end(scorer.network, sequences, None, [begin] * 4)
    handle.remove()
    assert passes == [2, 3, 2], "up to where a sequence ends"
    expected = [walk(scorer, [8, *sequence.tolist()]) for sequence in sequences]
    words = [4, 5, END, 1]
    np.testing.assert_allclose(scorer.score(found, words), scorer.score(expected, words), atol=TOLERANCE)
    # And they go on alike.
    moved = [scorer.score(scorer.advance(states, words), words) for states in (found, expected)]
    np.testing.assert_allclose(*moved, atol=TOLERANCE)
