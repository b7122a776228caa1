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
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from bnce import LOSSES, Noise, kernels
from bnce.corpus.streams import Chunk
from bnce.kernels import chunk_nce, chunk_softmax, log_normaliser, rows, target_scores, targets, working_rows
from bnce.language_model import LanguageModel
from bnce.optimisers import build_optimiser
from bnce.recipes import load_recipe
from bnce.registry import Loss, ModelConfig, OptimiserConfig
from bnce.settings import RunConfig
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
        if isinstance(tensor, Tensor) and tensor.dtype in (torch.int64, torch.int32):
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
        output.configure(room=[num_streams * num_steps] * len(output.structure.places_CV))
    step = TrainingStep(
        network, build_optimiser(network, optimiser), num_streams, num_steps, gradient="tokens", precision=precision
    )
    words = torch.randint(V, (num_steps + network.num_context, num_streams))
    for max_distinct in (None, V) if loss.batch_noise == "streams" else (None,):
        output.configure(max_distinct_targets=max_distinct)
        for reset in (None, words == 1) if model.name in ("lstm", "rnn") else (None,):
            step(Chunk(words, words[network.num_context :], reset), 1.0)


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
    targets.known_words(words_N, V, None)
    by_position = torch.randn(B), torch.arange(B, dtype=torch.int32), torch.zeros(B), 0
    for dtype in (torch.float32, torch.bfloat16):
        chunk_nce.loss_and_gradient_(torch.randn(B, B, dtype=dtype), *by_position)
        chunk_softmax.loss_and_gradient_(torch.randn(B, B, dtype=dtype), *by_position, 0.1)
    for D in sizes:
        for dtype in (torch.float32, torch.bfloat16):
            rows_VD, rows_ND = torch.randn(V, D, dtype=dtype), torch.randn(B, D, dtype=dtype)
            target_scores.score_targets(rows_ND, torch.randn(V, D), bias_V, words_N)
            rows.copy_rows_(rows_ND, rows_VD, words_N)
            rows.add_rows_(torch.zeros(V, D), words_N, rows_ND)
    working_rows.number(words_N, V, V, torch.zeros((), dtype=torch.int64))


def started_kernels() -> list[str]:
    """Name what is started, and not only called by other kernels, from what stands before or after its name."""
    names = []
    for module in pkgutil.iter_modules(kernels.__path__):
        imported = importlib.import_module(f"bnce.kernels.{module.name}")
        with open(imported.__file__ or "", encoding="utf-8") as file:
            text = file.read()
        for name, value in vars(imported).items():
            is_own = isinstance(value, JITFunction) and value.fn.__module__ == imported.__name__
            if is_own and re.search(rf"\b{name}\[|\b_start\({name},", text):
                names.append(f"{imported.__name__}.{name}")
    return names


if __name__ == "__main__":
    driver.set_active(Hopper())
    JITFunction.run = only_compile
    kernels._IS_INTERPRETED = True
    for part in (steps_of_recipes, steps_of_losses, steps_of_bodies, calls_of_a_layer, what_only_a_gpu_does):
        part()
    print(json.dumps({name: len(compiled.get(name, ())) for name in started_kernels()}))
