"""The plain twin of all scoring: one sentence at a time, the whole of it anew for every word, in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from small_corpus import END, small_model

from bnce.engine.numpy_network import NumpyNetwork
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model

# A number behind a name is that of its layers.
BODIES = ["ffnn", "rnn", "relu-rnn", "lstm", "relu-lstm", "rnn 2", "relu-lstm 2", "transformer 2"]


def model_of(body: str) -> Any:
    """Make the model of one of the bodies; a Transformer attends to five words, and it is they that choose the next."""
    name, _, num_layers = body.partition(" ")
    model = small_model(name, order=4, num_layers=int(num_layers or 0), num_heads=2)
    with torch.no_grad():
        for block in model.body.blocks if name == "transformer" else ():
            block.found.weight *= 20
    return model


def in_float64(model: Any) -> Any:
    """Copy a model as it is now."""
    if isinstance(model, NumpyNetwork):
        model = load_model(Run.open(model.name.strip("'")))
    return copy.deepcopy(getattr(model, "model", model)).double().eval()


def plain_scores(model: Any, history: Sequence[int]) -> torch.Tensor:
    """Compute the raw scores (V,) of what comes after a history, in float64."""
    return _scores(in_float64(model), history)


def _scores(double: Any, history: Sequence[int]) -> torch.Tensor:
    context = [END] * (double.num_context + 1) + list(history)
    with torch.no_grad():
        hidden_TBD, _ = double(torch.tensor(context).unsqueeze(1), double.initial_state(1))
        return torch.nn.functional.linear(hidden_TBD[-1, 0], double.output.weight, double.output.bias)


def plain_log_probs(
    model: Any, sentence: Sequence[int], normalised: bool = False, before: Sequence[int] = ()
) -> np.ndarray:
    """Compute ln p of every word of a sentence, which may have words before it."""
    found = []
    double = in_float64(model)
    for place, word in enumerate(sentence):
        score_V = _scores(double, [*before, *sentence[:place]])
        constant = torch.logsumexp(score_V, 0) if normalised else double.output.log_z
        found.append(float(score_V[word] - constant))
    return np.array(found)
