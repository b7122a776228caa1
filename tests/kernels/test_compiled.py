"""Every kernel of a training step, compiled for a Hopper GPU without one: Triton's interpreter accepts more than that.

A program of its own computes steps on a CPU in which kernels are compiled and not started. What they would have written
is whatever is in memory, so nothing is said of results here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from bnce import kernels
from bnce.config import LossConfig, ModelConfig, OptimiserConfig
from bnce.corpus.streams import Chunk
from bnce.language_model import LanguageModel
from bnce.noise import Noise
from bnce.optimisers import build_optimiser
from bnce.training.step import TrainingStep

class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

driver.set_active(Hopper())
run, compiled = JITFunction.run, {}

def only_compile(self, *args, grid, warmup, **kwargs):
    for tensor in args:
        # What the kernels before were to write there, must at least be words.
        if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.int64:
            tensor.data.remainder_(V)
    kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
    compiled[self.fn.__name__] = len(kernel.asm["cubin"])
    return kernel

JITFunction.run = only_compile
kernels._IS_INTERPRETED = True
V, B, T = 64, 12, 5
for model, loss, optimiser in json.loads(sys.argv[1]):
    sizes = {"embedding_size": 12, "hidden_size": 20, "bottleneck_size": 12}
    network = LanguageModel(ModelConfig(name=model, **sizes), LossConfig(name=loss), Noise(torch.ones(V)))
    step = TrainingStep(
        network, build_optimiser(network, OptimiserConfig(name=optimiser)), B, T, gradient="streams", precision="bf16"
    )
    words = torch.randint(V, (T + network.num_context, B))
    step(Chunk(words, words[network.num_context :], None), 1.0)
print(json.dumps(compiled))
"""
STEPS = [("relu-lstm", "bnce", "rowwise"), ("rnn", "chunk-bnce", "rowwise-adam"), ("relu-rnn", "chunk-softmax", "sgd")]


def test_kernels_of_a_step_compile_for_a_gpu() -> None:
    pytest.importorskip("triton.backends.nvidia")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(STEPS)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = json.loads(done.stdout)
    assert all(compiled.values())
    assert {"_widen", "_pad_rows", "_lstm_forward", "_columns", "_scale", "_claim", "_squares"} <= set(compiled)
