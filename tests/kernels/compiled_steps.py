"""Compile every kernel for a Hopper GPU without one: a program of its own, which `test_compiled.py` starts.

It computes steps on a CPU in which kernels are compiled and not started. What they would have written is whatever is in
memory, so nothing is said of results here. It prints which kernels there are, and how often each was compiled anew.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Sequence
from typing import Any

import torch
from making import draws_all, layer_of, loss_of, model_of, optimiser_of
from test_rules import Block
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from bnce import LOSSES, Noise, kernels
from bnce.corpus.streams import Chunk
from bnce.kernels import batch_nce, chunk, columns, distinct, log_normaliser, sampled_softmax, softmax, target_scores
from bnce.language_model import LanguageModel
from bnce.machine.processes import World
from bnce.recipes import load_recipe
from bnce.registry import Loss, ModelConfig, OptimiserConfig
from bnce.settings import RunConfig, TrainingConfig
from bnce.training.step import TrainingStep

V, B, T = 64, 12, 5
SMALL = model_of(name="relu-lstm", embedding_size=12, hidden_size=20, bottleneck_size=12)
# Time steps of a recipe's chunk that are computed: kernels do not depend on their number, and a CPU takes its time.
RECIPES = {"ltcb": 2, "obwb": 1, "wiki": 2, "transformer": 8}


class Hopper:
    """A driver that has a GPU to compile for, and none to run on."""

    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)


start_kernel = JITFunction.run
compiled: dict[str, set[str]] = {}


def only_compile(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    for tensor in args:
        # What the kernels before were to write there, must at least be words.
        if isinstance(tensor, Tensor) and tensor.dtype in (torch.int64, torch.int32) and 0 not in tensor.stride():
            tensor.data.remainder_(V)
    kernel = start_kernel(self, *args, grid=grid, warmup=True, **kwargs)
    assert kernel.asm["cubin"]
    compiled.setdefault(f"{self.fn.__module__}.{self.fn.__name__}", set()).add(kernel.hash)
    return kernel


def train(
    model: ModelConfig, loss: Loss, optimiser: OptimiserConfig, num_streams: int, num_steps: int, precision: str
) -> None:
    network = LanguageModel(model, loss, Noise(torch.ones(V)))
    output = network.output
    if output.structure is not None and output.structure.places_CV is not None:
        output.configure(capacities=[num_streams * num_steps] * len(output.structure.places_CV))
    training = TrainingConfig(batch_size=num_streams, num_steps=num_steps, precision=precision)
    config = RunConfig(model=model, loss=loss, optimiser=optimiser, training=training)
    step = TrainingStep(network, config, World(), torch.device("cpu"))
    words = torch.randint(V, (num_steps + network.num_context, num_streams))
    for max_distinct in (None, V) if loss.batch_noise == "streams" else (None,):
        output.configure(max_distinct_targets=max_distinct)
        for reset in (None, words == 1) if model.name in ("lstm", "rnn") else (None,):
            step(Chunk(words, words[network.num_context :], reset), 1.0, 0)


def steps_of_recipes() -> None:
    for name, num_steps in RECIPES.items():
        config: RunConfig = load_recipe(name)
        train(config.model, config.loss, config.optimiser, config.training.batch_size, num_steps, "bf16")


def steps_of_losses() -> None:
    for name in LOSSES:
        loss = loss_of(name, num_noise=7 if draws_all(name) else 0)
        for precision in ("bf16", "float32"):
            train(SMALL, loss, optimiser_of(name="rowwise"), B, T, precision)


def steps_of_bodies() -> None:
    for body in ("lstm", "rnn", "relu-rnn", "ffnn"):
        for optimiser in ("sgd", "rowwise", "rowwise-adam"):
            train(model_of(body, 12, 20, 12), loss_of(name="bnce"), optimiser_of(name=optimiser), B, T, "bf16")


def calls_of_a_layer() -> None:
    """Compute with masks, drawn words beside those of the batch, and all types of parameters."""
    target = torch.randint(V, (T, B))
    for dtype in (torch.float32, torch.bfloat16):
        for loss in ("bnce", "chunk-bnce", "chunk-softmax"):
            for num_noise in (0, 7) if loss == "bnce" else (0,):
                layer = layer_of(20, V, torch.ones(V), loss, num_noise=num_noise, most=V).to(dtype)
                hidden = torch.randn(T, B, 20, dtype=dtype, requires_grad=True)
                layer(hidden, target, target > 3).backward()


def what_only_a_gpu_does(sizes: Sequence[int] = (20, 400, 600)) -> None:
    """Call what is chosen on a GPU alone."""
    words_N, bias_V = torch.randint(V, (B,)), torch.randn(V)
    log_normaliser.log_sum_exp(torch.randn(B, V), bias_V)
    for D in sizes:
        for dtype in (torch.float32, torch.bfloat16):
            rows_ND = torch.randn(B, D, dtype=dtype)
            target_scores.score_targets(rows_ND, torch.randn(V, D), bias_V, words_N)


def rules() -> None:
    """Call the rules on blocks of products, of one problem or several, with all that there may be beside them."""
    column_TB = distinct.distinct_words(torch.randint(V, (T, B)), V, V, torch.ones(T, B, dtype=torch.bool))[1]
    distinct.distinct_words(torch.randint(V, (T, B)), V, V)
    log_noise_V, drawn_TK = torch.randn(V), torch.randint(V, (T, 7))
    for valid_TB in (None, torch.ones(T, B, dtype=torch.bool)):
        columns.step_columns(torch.randint(V, (T, B)), valid_TB, None, log_noise_V)
        columns.step_columns(torch.randint(V, (T, B)), valid_TB, drawn_TK, log_noise_V, torch.randn(V))
    for dtype in (torch.float32, torch.bfloat16):
        tables = torch.randn(V, 20), torch.randn(V)
        columns.gather(drawn_TK, torch.randn(T, 7), *tables, torch.zeros(()), dtype, width=24, num_columns=8)
        columns.gather(drawn_TK, None, *tables, None, dtype, width=24, num_columns=8)
    for dtype in (torch.float32, torch.bfloat16):
        for extra in (None, torch.ones(1, B)):
            product_PRM, offset_PM = torch.randn(1, B, 1040, dtype=dtype), torch.randn(1, 1040)
            row_1B = torch.arange(B).view(1, B)
            block = Block(product_PRM, product_PRM, offset_PM, extra, torch.randn(1, B), (row_1B,))
            batch_nce.classification(block)
            softmax.cross_entropies(block, penalty=0.0)
            softmax.cross_entropies(block, penalty=0.1)
            sampled_softmax.ranking(block)
            sampled_softmax.ranking(block, torch.randint(V, (1033,)))
            shifts, count_U = (() if extra is None else (extra,)), torch.ones(1033, dtype=torch.int32)
            block = block._replace(rows=(row_1B.int(), row_1B, *shifts))
            stream_TB = torch.arange(B).expand(T, B)
            for beta in (0.0, 0.5, 1.0):
                for own in (column_TB, None):
                    chunk.classification_or_ranking(block, count_U, own, stream_TB, beta=beta, penalty=0.1)


def started_kernels() -> list[str]:
    """Name what is started: all kernels but those that others call."""
    names, called = {}, set()
    for module in pkgutil.walk_packages(kernels.__path__, "bnce.kernels."):
        if module.name.startswith("bnce.kernels.waiting"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, JITFunction) and value.fn.__module__ == module.name:
                names[f"{module.name}.{name}"] = name
                _, _, body = value.src.partition("(")
                called |= set(re.findall(r"\b\w+(?=\()", body))
    return [place for place, name in names.items() if name not in called]


if __name__ == "__main__":
    driver.set_active(Hopper())
    JITFunction.run = only_compile
    kernels._IS_INTERPRETED = True
    for part in (steps_of_recipes, steps_of_losses, steps_of_bodies, calls_of_a_layer, what_only_a_gpu_does, rules):
        part()
    print(json.dumps({name: len(compiled.get(name, ())) for name in started_kernels()}))
