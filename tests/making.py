"""Records and output layers by name, for tests of all losses, models or optimisers: each takes the settings it has."""

from __future__ import annotations

from typing import Any

from bnce import LOSSES, MODELS, OPTIMISERS, Loss, OutputLayer
from bnce.registry import ModelConfig, OptimiserConfig

SIZES = ("embedding_size", "hidden_size", "bottleneck_size")
OF_A_LOSS = {key for kind in LOSSES.values() for key in kind.__struct_fields__}


def draws_all(loss: str) -> bool:
    """Tell whether all noise words of a loss are drawn."""
    return "num_noise" in LOSSES[loss].__struct_fields__ and LOSSES[loss].batch_noise == "none"


def loss_of(name: str = "bnce", **settings: Any) -> Loss:
    """Make the record of a loss; 0 noise words are as many as it usually has."""
    if not settings.get("num_noise", 1):
        del settings["num_noise"]
    return LOSSES[name](**settings)


def model_of(name: str, *sizes: int, **settings: Any) -> ModelConfig:
    """Make the record of a model, of the sizes that it has; 0 layers are as many as it usually has."""
    given = dict(zip(SIZES, sizes, strict=False)) | settings
    if not given.get("num_layers", 1):
        del given["num_layers"]
    return MODELS[name](**{key: value for key, value in given.items() if key in MODELS[name].__struct_fields__})


def optimiser_of(name: str = "sgd", **settings: Any) -> OptimiserConfig:
    """Make the record of an optimiser, with the rates that it has."""
    known = OPTIMISERS[name].__struct_fields__
    return OPTIMISERS[name](**{key: value for key, value in settings.items() if key in known})


def layer_of(
    hidden_size: int, vocab_size: int, noise: Any, loss: str = "bnce", *, most: int | None = None, **options: Any
) -> OutputLayer:
    """Make an output layer; `options` are its own and those of its loss, `most` different targets are in a chunk."""
    settings = {key: options.pop(key) for key in OF_A_LOSS.intersection(options)}
    layer = OutputLayer(hidden_size, vocab_size, noise, loss_of(loss, **settings), **options)
    layer.configure(max_distinct_targets=most)
    return layer
