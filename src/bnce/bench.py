"""Words per second of whole training steps on this machine: body, loss, backward, clip, row updates.

The words are drawn from Zipf's law, so that rows repeat as they do in text. Every configuration is timed in turn, the
whole round several times over, and the medians are compared: a machine that slows down for a while slows all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from bnce.config import RunConfig
from bnce.corpus.batches import Chunk, Streams
from bnce.language_model import LanguageModel
from bnce.noise import make_noise
from bnce.optimiser import Optimiser
from bnce.run_directory import describe_device
from bnce.trainer import training_step
from bnce.version import __version__

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
    speedup_over_softmax: float | None = None


def bench(
    configs: Sequence[tuple[RunConfig, int]],
    device: torch.device,
    *,
    num_rounds: int = 5,
    round_seconds: float = 0.5,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Time training steps of several (config, vocabulary size) pairs, in turns."""
    timed: list[list[float]] = [[] for _ in configs]
    runners = [_Runner(config, vocab_size, device) for config, vocab_size in configs]
    for runner in runners:
        runner.run(0.0)  # the first steps allocate and settle
    for number in range(num_rounds):
        for place, runner in enumerate(runners):
            timed[place].append(runner.run(round_seconds))
            if progress is not None:
                progress(number * len(runners) + place + 1, num_rounds * len(runners))
    measured = [
        _measurement(config, vocab_size, seconds) for (config, vocab_size), seconds in zip(configs, timed, strict=True)
    ]
    return {
        "device": describe_device(device),
        "torch": torch.__version__,
        "bnce": __version__,
        "num_rounds": num_rounds,
        "round_seconds": round_seconds,
        "measurements": [asdict(item) for item in _with_speedups(measured)],
    }


class _Runner:
    """A model at its start, with chunks to train it on."""

    def __init__(self, config: RunConfig, vocab_size: int, device: torch.device) -> None:
        torch.manual_seed(config.training.seed)
        self.config, self.device = config, device
        weights = 1.0 / np.arange(1, vocab_size + 1)
        noise = make_noise(config.loss.noise, weights, config.loss.noise_power)
        self.model = LanguageModel(config.model, config.loss, noise).to(device)
        self.optimiser = Optimiser(self.model, config.optimiser)
        self.state = self.model.initial_state(config.training.batch_size)
        self.chunks = self._chunks(noise.sample((NUM_CHUNKS * config.training.num_steps * config.training.batch_size,)))

    def _chunks(self, words: torch.Tensor) -> Iterator[Chunk]:
        training = self.config.training
        streams = Streams(words.cpu().numpy(), training.batch_size, training.num_steps, self.model.num_context)
        while True:
            yield from streams.chunks()

    def run(self, seconds: float) -> float:
        """Train for about so long, two steps at least; returns the seconds of one step."""
        begin = time.perf_counter()
        num_steps = 0
        while num_steps < 2 or time.perf_counter() - begin < seconds:
            step = training_step(
                self.model, self.optimiser, next(self.chunks), self.state, self.config.optimiser.gradient
            )
            self.state = step.state
            self.optimiser.apply(step.gradients, 1.0)
            if self.device.type == "cuda" and num_steps % 10 == 0:
                torch.cuda.synchronize(self.device)
            num_steps += 1
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return (time.perf_counter() - begin) / num_steps


def _measurement(config: RunConfig, vocab_size: int, seconds: Sequence[float]) -> Measurement:
    training, median = config.training, statistics.median(seconds)
    return Measurement(
        model=config.model.name,
        loss=config.loss.name,
        num_noise=config.loss.num_noise,
        vocab_size=vocab_size,
        batch_size=training.batch_size,
        num_steps=training.num_steps,
        words_per_second=training.batch_size * training.num_steps / median,
        spread=(max(seconds) - min(seconds)) / 2 / median,
        step_seconds=median,
    )


def _with_speedups(measured: Sequence[Measurement]) -> list[Measurement]:
    def shape(item: Measurement) -> tuple[str, int, int, int]:
        return item.model, item.vocab_size, item.batch_size, item.num_steps

    softmax = {shape(item): item.words_per_second for item in measured if item.loss == "softmax"}
    return [
        replace(item, speedup_over_softmax=item.words_per_second / softmax[shape(item)])
        if shape(item) in softmax
        else item
        for item in measured
    ]
