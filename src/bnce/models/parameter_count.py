"""NoP, the paper's number of parameters, without allocating any: 1.6 billion of them are 6.4 GB."""

from __future__ import annotations

import torch

from bnce.config import ModelConfig
from bnce.models import build_body


def count_parameters(config: ModelConfig, vocab_size: int, *, learn_log_z: bool = False) -> dict[str, int]:
    """Count the parameters of each part: embedding, body, output weight, output bias."""
    with torch.device("meta"):
        body = build_body(config)
    counts = {
        "embedding": vocab_size * config.embedding_size,
        "body": sum(parameter.numel() for parameter in body.parameters()),
        "output_weight": vocab_size * body.output_size,
        "output_bias": vocab_size,
    }
    return counts | ({"log_z": 1} if learn_log_z else {})
