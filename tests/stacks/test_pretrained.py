"""A model of transformers with the layer in it, saved and loaded again.

`from_pretrained` builds the model on the meta device and puts empty memory in the place of every buffer that is not in
the state_dict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from making import draws_all, layer_of
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

import bnce
from tests.stacks.small import COUNTS, D, K, V, drawn_alike, hidden_and_targets


class Config(PretrainedConfig):
    """The loss, and whether its noise is counted on the way."""

    model_type = "bnce-test"

    def __init__(self, loss: str = "bnce", running: bool = False, **options: Any) -> None:
        self.loss, self.running = loss, running
        super().__init__(**options)


class Model(PreTrainedModel):
    """Hidden states go straight to the layer."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(V, D)
        num_noise = K if draws_all(config.loss) else 0
        noise = bnce.noise.Running(V) if config.running else COUNTS
        self.head = layer_of(D, V, noise, config.loss, num_noise=num_noise)
        self.post_init()

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = self.head(hidden, targets)
        return loss


@pytest.mark.parametrize(
    ("loss", "running"), [(name, False) for name in bnce.LOSSES] + [("bnce", True), ("snce", True)]
)
def test_a_loaded_model_has_its_noise_and_its_order_of_words(loss: str, running: bool, tmp_path: Path) -> None:
    model = Model(Config(loss, running))
    hidden, targets = hidden_and_targets()
    model(hidden, targets).backward()
    model.eval().save_pretrained(tmp_path)
    torch.use_deterministic_algorithms(True)  # fills empty memory, which by chance might hold the same numbers
    try:
        loaded = Model.from_pretrained(tmp_path).eval()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(drawn_alike(loaded, hidden, targets), drawn_alike(model, hidden, targets))
    words = torch.arange(V).expand(len(hidden), hidden.shape[1], V)
    assert torch.equal(loaded.head.log_probs(hidden, words), model.head.log_probs(hidden, words))
    for name, buffer in model.head.named_buffers():
        assert torch.equal(loaded.head.get_buffer(name), buffer), name
