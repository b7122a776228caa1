"""Words per second of whole training steps on this machine: body, loss, backward, clip, row updates.

The words are drawn from Zipf's law, so that rows repeat as they do in text. Every configuration is timed in turn, the
whole round several times over, and the medians are compared: a machine that slows down for a while slows all of them.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from bnce.config import RunConfig
from bnce.corpus.streams import open_streams
from bnce.errors import UserError
from bnce.kinds.losses import LOSSES, BatchShape
from bnce.language_model import LanguageModel, count_parameters
from bnce.losses import softmax_forms
from bnce.machine.devices import describe_device, synchronize
from bnce.machine.memory import held_gpu_memory_bytes, peak_memory_bytes, reset_peak_memory, total_memory_bytes
from bnce.machine.world import World
from bnce.noise import make_noise, unigram
from bnce.training.network import Network
from bnce.training.step import NUM_EAGER_STEPS
from bnce.version import __version__

MIN_STEPS = NUM_EAGER_STEPS + 1  # the first round gets past what a step does only once
NUM_CHUNKS = 8  # different chunks that the steps go through


@dataclass(frozen=True)
class Measurement:
    """The speed of one configuration; `spread` is half the range of its rounds over their median."""

    model: str
    loss: str
    num_noise: int
    vocab_size: int
    batch_size: int
    num_steps: int
    words_per_second: float
    spread: float
    step_seconds: float
    peak_memory_bytes: int | None  # of PyTorch on a GPU, what was there before not counted
    teraflops: float  # of matrix products that the step is made of, a second
    matmul_share: float | None = None  # of the rate one large matrix product reaches here
    speedup_over_softmax: float | None = None
    speedup_over_paper: float | None = None
    softmax: str | None = None  # the form of the softmax that was timed, where that is the loss


def bench(
    configs: Sequence[tuple[RunConfig, int]],
    device: torch.device,
    *,
    num_rounds: int = 5,
    round_seconds: float = 0.5,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Time training steps of several (config, vocabulary size) pairs, in turns."""
    _check_memory(configs, device)
    timed: list[list[float]] = [[] for _ in configs]
    runners = [_Runner(config, vocab_size, device) for config, vocab_size in configs]
    for number in range(num_rounds):
        for place, runner in enumerate(runners):
            timed[place].append(runner.run(round_seconds))
            progress(number * len(runners) + place + 1, num_rounds * len(runners))
    measured = [_measurement(runner, seconds) for runner, seconds in zip(runners, timed, strict=True)]
    ceiling = matmul_teraflops(device) if device.type == "cuda" else None
    if ceiling is not None:
        measured = [replace(item, matmul_share=item.teraflops / ceiling) for item in measured]
    return {
        **conditions(device, num_rounds, round_seconds),
        "matmul_teraflops": ceiling,
        "measurements": [asdict(item) for item in _compare(measured)],
    }


def _check_memory(configs: Sequence[tuple[RunConfig, int]], device: torch.device) -> None:
    """Refuse sizes that cannot fit, whatever else is there: a machine that swaps would go on for hours."""
    num_numbers = 0
    for config, vocab_size in configs:
        words = config.training.groups * config.training.batch_size * config.training.num_steps
        sizes = config.model.embedding_size + config.model.hidden_size
        num_numbers += sum(count_parameters(config.model, vocab_size, config.loss).values()) + words * (
            sizes + NUM_CHUNKS
        )
    num_bytes = 4 * num_numbers
    place, total_bytes = "the GPU" if device.type == "cuda" else "this machine", total_memory_bytes(device)
    if num_bytes > total_bytes:
        raise UserError(
            f"The benchmark needs at least {num_bytes / 2**30:,.0f} GiB of memory, but {place} has "
            f"{total_bytes / 2**30:,.0f} GiB: give smaller vocabularies, smaller sizes, or fewer models and losses."
        )


def conditions(device: torch.device, num_rounds: int, round_seconds: float) -> dict[str, Any]:
    """Say what a figure was taken with."""
    return {
        "device": describe_device(device),
        "torch": torch.__version__,
        "bnce": __version__,
        "num_rounds": num_rounds,
        "round_seconds": round_seconds,
    }


def matmul_teraflops(device: torch.device) -> float:
    """Measure what one large bf16 matrix product reaches on a GPU: the ceiling that steps are held against."""
    size = 8192
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(8):
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(5):
            torch.mm(left, right)
        synchronize(device)
        seconds.append((time.perf_counter() - begin) / 5)
    return 2 * size**3 / statistics.median(seconds) / 1e12


class _Runner:
    """A model at its start, with chunks to train it on."""

    def __init__(self, config: RunConfig, vocab_size: int, device: torch.device, world: World | None = None) -> None:
        torch.manual_seed(config.training.seed)
        self.config, self.vocab_size, self.device = config, vocab_size, device
        on_gpu = device.type == "cuda"
        before_bytes = held_gpu_memory_bytes(device) if on_gpu else 0
        if on_gpu:
            reset_peak_memory(device)
        weights = 1.0 / np.arange(1, vocab_size + 1)
        noise = make_noise(config.loss.noise, weights, config.loss.noise_power).to(device)
        with torch.device(device):
            self.model = LanguageModel(config.model, config.loss, noise)
        network, training = Network(self.model, config, device, world or World()), config.training
        self.step = network.step
        self.num_streams = num_streams = network.num_groups * training.batch_size
        text = network.noise if network.noise.bent is None else unigram(weights).to(device)
        words = text.sample((NUM_CHUNKS * training.num_steps * num_streams,)).cpu().numpy()
        streams = open_streams(words, num_streams, training.num_steps, self.model.num_context, device)
        loss = LOSSES.find(config.loss.name)
        if loss.merges_targets:
            self.model.output.set_form(max_distinct_targets=streams.max_distinct_targets(network.num_groups))
        structure = self.model.output.structure
        if structure is not None and structure.places_CV is not None and on_gpu:
            self.model.output.set_form(room=streams.max_places(structure.places_CV, network.num_groups))
        self.softmax = self._choose_softmax() if loss.has_forms else None
        self.chunks = itertools.cycle([*streams.chunks()])
        self.run(0.0)  # the first steps allocate, compile and settle
        self.peak_memory_bytes = peak_memory_bytes(device) - before_bytes if on_gpu else None

    def _choose_softmax(self) -> str:
        """Take the form of the softmax that the settings name, or measure which is the fastest."""
        output, training, name = self.model.output, self.config.training, self.config.loss.softmax
        if name == "auto":
            num_positions, dtype = training.batch_size * training.num_steps, self.step.autocast_dtype
            name, _ = softmax_forms.fastest(output.weight, output.bias, num_positions, dtype=dtype)
        softmax_forms.get_form(name, self.device)
        output.set_form(softmax=name)
        return name

    def run(self, seconds: float) -> float:
        """Train for about so long, a few steps at least; returns the seconds of one step."""
        begin = time.perf_counter()
        num_steps = 0
        while num_steps < MIN_STEPS or time.perf_counter() - begin < seconds:
            self.step(next(self.chunks), 1.0)
            if num_steps % 10 == 0:
                synchronize(self.device)
            num_steps += 1
        synchronize(self.device)
        return (time.perf_counter() - begin) / num_steps


def _measurement(runner: _Runner, seconds: Sequence[float]) -> Measurement:
    config, median = runner.config, statistics.median(seconds)
    num_words = runner.num_streams * config.training.num_steps
    return Measurement(
        model=config.model.name,
        loss=config.loss.name,
        softmax=runner.softmax,
        num_noise=config.loss.num_noise,
        vocab_size=runner.vocab_size,
        batch_size=config.training.batch_size,
        num_steps=config.training.num_steps,
        words_per_second=num_words / median,
        spread=(max(seconds) - min(seconds)) / 2 / median,
        step_seconds=median,
        peak_memory_bytes=runner.peak_memory_bytes,
        teraflops=flops_per_word(runner.model, config) * num_words / median / 1e12,
    )


def flops_per_word(model: LanguageModel, config: RunConfig) -> float:
    """Count the operations of the matrix products that a word's forward and backward pass needs, padding left out."""
    training = config.training
    body = model.body.products_per_word(training.num_steps)
    shape = BatchShape(
        vocab_size=model.output.vocab_size,
        batch_size=training.batch_size,
        num_steps=training.num_steps,
        num_noise=config.loss.num_noise,
        num_distinct=model.output.max_distinct_targets or training.batch_size * training.num_steps,
    )
    if (structure := model.output.structure) is not None:
        return 6.0 * (body + structure.products_per_word)
    columns = LOSSES.find(config.loss.name).columns(shape)
    # Two operations a multiply-add; forward once, backward twice.
    return 6.0 * (body + columns * model.output.hidden_size)


def _compare(measured: Sequence[Measurement]) -> list[Measurement]:
    def shape(item: Measurement) -> tuple[str, int, int, int]:
        return item.model, item.vocab_size, item.batch_size, item.num_steps

    softmax = {shape(item): item.words_per_second for item in measured if LOSSES.find(item.loss).is_baseline}
    return [
        replace(item, speedup_over_softmax=item.words_per_second / softmax[shape(item)])
        if shape(item) in softmax
        else item
        for item in measured
    ]
