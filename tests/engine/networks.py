"""The same weights computed by PyTorch and by NumPy; and the ways in which a text can go through a network."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scoring.plain import model_of
from small_corpus import small_run

from bnce.engine.beam import Scorer
from bnce.engine.network import Ints, Network, Query, State
from bnce.engine.packer import Passage, score, score_rows
from bnce.engine.torch_network import TorchNetwork
from bnce.runs.directory import Run
from bnce.runs.model_file import open_network, save_weights

COMPUTED_BY = ["torch", "numpy"]


@functools.cache
def network_of(body: str, computed_by: str = "torch", loss: str = "bnce") -> Network:
    """Make the network of one of the bodies, a number behind the name is that of its layers; rows are few."""
    model, network = model_of(body), None
    if computed_by == "torch":
        network = TorchNetwork(model)
    else:
        name, _, num_layers = body.partition(" ")
        with TemporaryDirectory() as directory:
            path = small_run(Path(directory) / "run", name, loss, order=4, num_layers=int(num_layers or 0), num_heads=2)
            (path / "model.safetensors").unlink()
            save_weights(Run.open(path), model.state_dict(), step=1)
            network = open_network(Run.open(path))
            assert not isinstance(network, TorchNetwork)
    network.max_rows, network.max_positions = 3, 50
    return network


def by_rows(
    network: Network, texts: Sequence[Ints], after: Sequence[State | None], *, refill: bool, keep_states: bool
) -> list[np.ndarray]:
    """Score texts side by side."""
    passages = [Passage(text, state=state) for text, state in zip(texts, after, strict=True)]
    scored = score_rows(network, passages, Query(), refill=refill, keep_states=keep_states)
    values = {one.number: one.values for one in scored}
    return [values[number].log_probs(network.log_z) for number in range(len(texts))]


def at_once(network: Network, texts: Sequence[Ints], after: Sequence[State | None], share: bool) -> list[np.ndarray]:
    """Score texts as the network prefers it."""
    start = Scorer(network).start()
    states = None if all(state is None for state in after) else [state or start for state in after]
    values = score(network, texts, Query(), after=states, share=share)
    return np.split(values.log_probs(network.log_z), np.cumsum([len(text) for text in texts])[:-1])


def by_beam(network: Network, texts: Sequence[Ints], after: Sequence[State | None]) -> list[np.ndarray]:
    """Score texts word by word, each after its state."""
    scorer, found = Scorer(network), []
    for text, state in zip(texts, after, strict=True):
        now, own = state or scorer.start(), []
        for word in text:
            own.append(float(scorer.score([now], [word])[0]))
            (now,) = scorer.advance([now], [word])
        found.append(np.array(own))
    return found
