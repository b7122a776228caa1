"""Resets: after one, a stream goes on exactly as the scoring of a sentence begins, and learns nothing from before it.

Legend: T time steps, B streams, C context words, L = C + T, D last hidden layer.
"""

from __future__ import annotations

import pytest
import torch
from small_corpus import END
from torch import Tensor

from bnce import BODIES, noise
from bnce.config import LossConfig, ModelConfig
from bnce.language_model import LanguageModel
from bnce.models.body import State

V, T, B = 11, 9, 4
# By stream: none; one inside; the first and the last place; neighbours.
RESETS = {1: [4], 2: [0, T - 1], 3: [2, 3, 6]}
every_body = pytest.mark.parametrize("name", BODIES.names)


def make_model(name: str) -> LanguageModel:
    torch.manual_seed(3)
    layers = 2 if "num_layers" in BODIES.find(name).sizes else 0
    config = ModelConfig(name, 6, 8, 5, order=4, num_layers=layers, num_heads=2 * BODIES.find(name).attends, context=T)
    model = LanguageModel(config, LossConfig(), noise.unigram(torch.ones(V))).double()
    for parameter in model.body.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def make_chunk(num_context: int) -> tuple[Tensor, Tensor]:
    """Make words and the places of resets, where `</s>` stands; other places have it, too."""
    words_LB = torch.randint(V, (num_context + T, B), generator=torch.Generator().manual_seed(4))
    reset_LB = torch.zeros(num_context + T, B, dtype=torch.bool)
    for stream, places in RESETS.items():
        for place in places:
            reset_LB[num_context + place, stream] = True
    words_LB[reset_LB] = END
    return words_LB, reset_LB


def before_the_chunk(model: LanguageModel) -> State:
    return tuple(torch.randn_like(part) for part in model.initial_state(B))


def apart(model: LanguageModel, words_LB: Tensor, state: State) -> tuple[Tensor, list[State]]:
    """Run every stream piece by piece, each piece but a stream's first from the start of a text."""
    C, columns, lasts = model.num_context, [], []
    for stream in range(B):
        cuts = RESETS.get(stream, [])
        pieces, last = [], tuple(part[:, stream : stream + 1] for part in state)
        for begin, end in zip([0, *cuts], [*cuts, T], strict=True):
            piece_L1 = words_LB[begin : C + end, stream : stream + 1].clone()
            if begin in cuts:
                piece_L1[:C] = END
                last = model.initial_state(1)
            if end > begin:
                hidden_T1D, last = model(piece_L1, last)
                pieces.append(hidden_T1D)
        columns.append(torch.cat(pieces))
        lasts.append(last)
    return torch.cat(columns, 1), lasts


@every_body
def test_after_a_reset_a_text_begins(name: str) -> None:
    model = make_model(name)
    words_LB, reset_LB = make_chunk(model.num_context)
    state = before_the_chunk(model)
    found_TBD, after = model(words_LB, state, reset_LB)
    expected_TBD, lasts = apart(model, words_LB, state)
    torch.testing.assert_close(found_TBD, expected_TBD)
    for place, part in enumerate(after):
        torch.testing.assert_close(part, torch.cat([last[place] for last in lasts], 1))
        assert not part.requires_grad
    carried_TBD, _ = model(words_LB, state)
    changed_B = (carried_TBD - found_TBD).abs().amax((0, 2)) > 1e-6
    assert changed_B.tolist() == [False, True, True, True], "resets do matter"


@every_body
def test_gradients_stop_at_a_reset(name: str) -> None:
    """The gradients are those of the pieces, added up."""
    model = make_model(name)
    model.sparse = False
    words_LB, reset_LB = make_chunk(model.num_context)
    state = before_the_chunk(model)
    weight_TBD = torch.randn(T, B, model.body.output_size, dtype=torch.float64)
    parameters = [model.embedding, *model.body.parameters()]
    found = torch.autograd.grad((model(words_LB, state, reset_LB)[0] * weight_TBD).sum(), parameters)
    expected = torch.autograd.grad((apart(model, words_LB, state)[0] * weight_TBD).sum(), parameters)
    for part, expected_part in zip(found, expected, strict=True):
        torch.testing.assert_close(part, expected_part)


@every_body
def test_it_is_what_scoring_begins_with(name: str) -> None:
    """Out of training, from `</s>` and what stands before any text."""
    model = make_model(name)
    words_LB, reset_LB = make_chunk(model.num_context)
    found_TBD, _ = model(words_LB, before_the_chunk(model), reset_LB)
    model.eval()
    sentence_L1 = torch.cat([torch.full((model.num_context, 1), END), words_LB[model.num_context + 4 :, 1:2]])
    scored_TBD, _ = model(sentence_L1, model.initial_state(1))
    torch.testing.assert_close(found_TBD[4:, 1:2], scored_TBD)


@every_body
def test_no_reset_changes_nothing(name: str) -> None:
    model = make_model(name)
    words_LB, reset_LB = make_chunk(model.num_context)
    state = before_the_chunk(model)
    torch.testing.assert_close(model(words_LB, state, torch.zeros_like(reset_LB))[0], model(words_LB, state)[0])
