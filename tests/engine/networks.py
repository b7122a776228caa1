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
from bnce.engine.network import Ints, Network, Query
from bnce.engine.packer import score, score_to_end
from bnce.engine.states import State
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


def split(log_prob_N: np.ndarray, texts: Sequence[Ints]) -> list[np.ndarray]:
    """Give each text what is its own."""
    return np.split(log_prob_N, np.cumsum([len(text) for text in texts])[:-1])


def by_rows(network: Network, texts: Sequence[Ints], after: Sequence[State] | None = None) -> list[np.ndarray]:
    """Score texts side by side, and keep the states after them."""
    values, _ = score_to_end(network, texts, Query(), after)
    return split(values.log_probs(network.log_z), texts)


def at_once(
    network: Network, texts: Sequence[Ints], after: Sequence[State] | None = None, share: bool = False
) -> list[np.ndarray]:
    """Score texts as the network prefers it."""
    return split(score(network, texts, Query(), after=after, share=share).log_probs(network.log_z), texts)


def by_beam(network: Network, texts: Sequence[Ints], after: Sequence[State] | None = None) -> list[np.ndarray]:
    """Score texts word by word, each after its state."""
    scorer, found = Scorer(network), []
    for place, text in enumerate(texts):
        now, own = scorer.start() if after is None else after[place], []
        for word in text:
            own.append(float(scorer.score([now], [word])[0]))
            (now,) = scorer.advance([now], [word])
        found.append(np.array(own))
    return found
