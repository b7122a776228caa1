"""Words per second of whole training steps on this machine: body, loss, backward, clip, row updates.

python benchmarks/bench.py                                                  every loss, at V = 20,000 and 800,000
python benchmarks/bench.py ltcb --models all --losses softmax,bnce --vocab-sizes 80000 --json
python benchmarks/bench.py --suite paper --out benchmarks/results/h200      both of the paper's tables, on a GPU

The words are drawn from Zipf's law, so that rows repeat as they do in text. Every configuration is timed in turn, the
whole round several times over, and the medians are compared: a machine that slows down for a while slows all of them.
Losses that score all words are left out above 100,000 words. The suite of the paper takes about two minutes and 25 GiB
of memory on one H200. From Python, `bench` takes other settings, rounds and seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bnce import LOSSES, MODELS, UserError
from bnce.corpus.streams import open_streams
from bnce.language_model import LanguageModel
from bnce.losses.adaptive_softmax import AdaptiveSoftmax
from bnce.machine.devices import (
    choose_device,
    describe_device,
    peak_memory_bytes,
    release_memory,
    reset_peak_memory,
    synchronize,
)
from bnce.machine.processes import World
from bnce.machine.threads import use_threads
from bnce.noise import make_noise, unigram
from bnce.recipes import load_recipe
from bnce.registry import BASELINE, Loss, Softmax, find
from bnce.settings import RunConfig
from bnce.training.paper_tables import TABLE_LOSSES, TABLE_MODELS
from bnce.training.step import NUM_EAGER_STEPS, TrainingStep
from bnce.version import __version__

MIN_STEPS = NUM_EAGER_STEPS + 1  # the first round gets past what a step does only once
NUM_CHUNKS = 8  # different chunks that the steps go through
NUM_ROUNDS = 5
ROUND_SECONDS = 0.5
# At a larger vocabulary a step of softmax takes seconds on a CPU, and its logits gigabytes.
MAX_SOFTMAX_WORDS = 100_000

VOCAB_SIZES = {"ltcb": 80_000, "obwb": 793_471}
# Tables 2 and 4 of Oualil & Klakow (2017), column TS: words per second on a Titan X.
PAPER_WORDS_PER_SECOND = {
    "ltcb": {
        "ffnn": {"softmax": 8.4e3, "snce": 29.1e3, "bnce": 35.1e3},
        "rnn": {"softmax": 5.9e3, "snce": 37.8e3, "bnce": 43.7e3},
        "relu-rnn": {"softmax": 8.6e3, "snce": 30.9e3, "bnce": 36.7e3},
        "lstm": {"softmax": 8.9e3, "snce": 27.2e3, "bnce": 37.1e3},
        "relu-lstm": {"softmax": 8.2e3, "snce": 26.9e3, "bnce": 32.0e3},
    },
    "obwb": {
        "ffnn": {"snce": 12.3e3, "bnce": 13.4e3},
        "rnn": {"snce": 24.9e3, "bnce": 27.8e3},
        "relu-rnn": {"snce": 20.1e3, "bnce": 23.1e3},
        "lstm": {"snce": 12.0e3, "bnce": 13.1e3},
        "relu-lstm": {"snce": 13.0e3, "bnce": 14.7e3},
    },
}
# The paper's sizes with the row-wise optimiser, whose step costs more than that of SGD.
ROWWISE = ("optimiser.name=rowwise", "optimiser.learning_rate=0.2", "optimiser.gradient=tokens")
PAPER_ROUND_SECONDS = 0.3


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="demo", help="recipe or TOML file with the model sizes")
    parser.add_argument("--models", default="relu-lstm", help="models, separated by commas, or all")
    parser.add_argument("--losses", default="all", help="losses, separated by commas, or all")
    parser.add_argument(
        "--vocab-sizes",
        type=lambda text: [int(size) for size in text.split(",")],
        default="20000,800000",
        help="vocabulary sizes in words, separated by commas",
    )
    parser.add_argument("--suite", choices=["paper"], help="measure all rows of the paper's two tables instead")
    parser.add_argument("--out", type=Path, help="with --suite: directory for paper.json and paper.md")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.out is not None:
        if options.suite is None:
            parser.error("--out works only with --suite paper")
        options.out.mkdir(parents=True, exist_ok=True)  # before the minutes that the figures take
    use_threads(0)
    try:
        device = choose_device(options.device)
        if options.suite is None:
            configs = choose_configs(options)
            result = {"recipe": options.recipe, **bench(configs, device, NUM_ROUNDS, ROUND_SECONDS)}
        else:
            result = bench_paper(device)
    except UserError as error:
        parser.error(str(error))
    if options.out is not None:
        (options.out / "paper.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (options.out / "paper.md").write_text(to_markdown(result), encoding="utf-8")
    if options.json:
        print(json.dumps(result))
    elif options.suite is not None:
        print(to_markdown(result))
    else:
        print_table(result)


def choose_configs(options: argparse.Namespace) -> list[tuple[RunConfig, int]]:
    """Load the recipe for every model, size and loss that the options name."""
    models = MODELS if options.models == "all" else options.models.split(",")
    losses = LOSSES if options.losses == "all" else options.losses.split(",")
    return [
        (load_recipe(options.recipe, model=model, loss=loss), size)
        for model in models
        for size in options.vocab_sizes
        for loss in losses
        if not issubclass(find(Loss, loss), Softmax) or size <= MAX_SOFTMAX_WORDS
    ]


def bench(
    configs: Sequence[tuple[RunConfig, int]], device: torch.device, num_rounds: int, round_seconds: float
) -> dict[str, Any]:
    """Time training steps of several (config, vocabulary size) pairs, in turns."""
    runners = [Runner(config, vocab_size, device) for config, vocab_size in configs]
    timed = [[runner.run(round_seconds) for runner in runners] for _ in range(num_rounds)]
    measured = [
        _measurement(runner, seconds) for runner, seconds in zip(runners, zip(*timed, strict=True), strict=True)
    ]
    ceiling = matmul_teraflops(device) if device.type == "cuda" else None
    if ceiling is not None:
        measured = [replace(item, matmul_share=item.teraflops / ceiling) for item in measured]
    return {
        **conditions(device, num_rounds, round_seconds),
        "matmul_teraflops": ceiling,
        "measurements": [asdict(item) for item in _compare(measured)],
    }


def bench_paper(device: torch.device) -> dict[str, Any]:
    """Measure both tables, a model at a time: the losses of one model take turns, and then make room for the next."""
    if device.type != "cuda":
        raise UserError("The paper suite trains models of up to 1.6 billion parameters: it needs a CUDA GPU.")
    groups = [(table, model) for table in VOCAB_SIZES for model in TABLE_MODELS]
    rows, ceilings = [], []
    for table, model in groups:
        configs = [
            (load_recipe(table, model=model, loss=loss, settings=ROWWISE), VOCAB_SIZES[table]) for loss in TABLE_LOSSES
        ]
        result = bench(configs, device, NUM_ROUNDS, PAPER_ROUND_SECONDS)
        ceilings.append(result["matmul_teraflops"])
        for item in result["measurements"]:
            paper = PAPER_WORDS_PER_SECOND[table][model].get(item["loss"])
            item["table"] = table
            item["speedup_over_paper"] = item["words_per_second"] / paper if paper else None
            rows.append(item)
        release_memory(device)
    return {
        "suite": "paper",
        **conditions(device, NUM_ROUNDS, PAPER_ROUND_SECONDS),
        "matmul_teraflops": statistics.median(ceilings),
        "measurements": rows,
    }


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


class Runner:
    """A model at its start, with chunks to train it on."""

    def __init__(self, config: RunConfig, vocab_size: int, device: torch.device, world: World | None = None) -> None:
        torch.manual_seed(config.training.seed)
        self.config, self.vocab_size, self.device = config, vocab_size, device
        on_gpu = device.type == "cuda"
        before_bytes = torch.cuda.memory_allocated(device) if on_gpu else 0
        if on_gpu:
            reset_peak_memory(device)
        weights = 1.0 / np.arange(1, vocab_size + 1)
        noise = make_noise(config.loss, weights).to(device)
        with torch.device(device):
            self.model = LanguageModel(config.model, config.loss, noise)
        self.step, training = TrainingStep(self.model, config, world or World(), device), config.training
        self.num_streams = num_streams = self.step.num_groups * training.batch_size
        text = noise if noise.bent is None else unigram(weights).to(device)
        words = text.sample((NUM_CHUNKS * training.num_steps * num_streams,)).cpu().numpy()
        streams = open_streams(words, num_streams, training.num_steps, self.model.num_context, device)
        self.step.fit_to_text(streams)
        self.chunks, self.numbers = itertools.cycle([*streams.chunks()]), itertools.count()
        self.run(0.0)  # the first steps allocate, compile and settle
        self.peak_memory_bytes = peak_memory_bytes(device) - before_bytes if on_gpu else None

    def run(self, seconds: float) -> float:
        """Train for about so long, a few steps at least; returns the seconds of one step."""
        begin = time.perf_counter()
        num_steps = 0
        while num_steps < MIN_STEPS or time.perf_counter() - begin < seconds:
            self.step(next(self.chunks), 1.0, next(self.numbers))
            if num_steps % 10 == 0:
                synchronize(self.device)
            num_steps += 1
        synchronize(self.device)
        return (time.perf_counter() - begin) / num_steps


def _measurement(runner: Runner, seconds: Sequence[float]) -> Measurement:
    config, median = runner.config, statistics.median(seconds)
    num_words = runner.num_streams * config.training.num_steps
    return Measurement(
        model=config.model.name,
        loss=config.loss.name,
        num_noise=getattr(config.loss, "num_noise", 0),
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
    if (structure := model.output.structure) is not None:
        return 6.0 * (body + _products_per_word(structure))
    loss, num_noise = config.loss, getattr(config.loss, "num_noise", None)
    if loss.batch_noise == "streams":
        columns = model.output.max_distinct_targets or training.batch_size * training.num_steps
    elif loss.batch_noise == "step":
        columns = training.batch_size + (num_noise or 0)
    else:
        columns = model.output.vocab_size if num_noise is None else min(num_noise, model.output.vocab_size) + 1
    # Two operations a multiply-add; forward once, backward twice.
    return 6.0 * (body + columns * model.output.hidden_size)


def _products_per_word(structure: Any) -> float:
    """Count those of an exact layer: the head for every position, and a tail for the share of words that are in it."""
    if not isinstance(structure, AdaptiveSoftmax):
        return float(structure.products_per_word)
    hidden_size = structure.all_tails()[0].projection.shape[1]
    products = float(structure.num_rows * hidden_size)
    for tail, share in zip(structure.all_tails(), structure.shares, strict=True):
        products += share * len(tail.projection) * (hidden_size + tail.end - tail.begin)
    return products


def _compare(measured: Sequence[Measurement]) -> list[Measurement]:
    def shape(item: Measurement) -> tuple[str, int, int, int]:
        return item.model, item.vocab_size, item.batch_size, item.num_steps

    softmax = {shape(item): item.words_per_second for item in measured if item.loss == BASELINE}
    return [
        replace(item, speedup_over_softmax=item.words_per_second / softmax[shape(item)])
        if shape(item) in softmax
        else item
        for item in measured
    ]


def print_table(result: dict[str, Any]) -> None:
    """Print the measurements as a table with their conditions."""
    title = f"Training speed on {result['device']}, torch {result['torch']}, recipe {result['recipe']}"
    # So narrow that all columns fit into 80 characters: a name or number cut in half would mislead.
    table = Table(title=title, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    measured = result["measurements"]
    draws, ceiling = any(item["num_noise"] for item in measured), result["matmul_teraflops"]
    for name in ("model", "loss", *(["K"] if draws else []), "V", "B × T"):
        table.add_column(name, no_wrap=True)
    for name in ("words/s", "±", "ms/step", "×softmax", *([] if ceiling is None else ["matmul"])):
        table.add_column(name, justify="right", no_wrap=True)
    for item in measured:
        ratio = item["speedup_over_softmax"]
        table.add_row(
            item["model"],
            item["loss"],
            *([str(item["num_noise"])] if draws else []),
            f"{item['vocab_size']:,}",
            f"{item['batch_size']} × {item['num_steps']}",
            f"{item['words_per_second']:,.0f}",
            f"{100 * item['spread']:.0f}%",
            f"{1000 * item['step_seconds']:.1f}",
            "—" if ratio is None else f"{ratio:.1f}",
            *([] if ceiling is None else [f"{100 * item['matmul_share']:.0f}%"]),
        )
    console = Console(markup=False, highlight=False, soft_wrap=True, emoji=False)
    console.print(table)
    console.print(
        f"Median of {result['num_rounds']} rounds of {result['round_seconds']:g} s, ± half their range; a step is "
        "body, loss, backward, clip and update; words are drawn from Zipf's law."
    )
    if ceiling is not None:
        console.print(
            f"matmul: the matrix products of a step, as a share of the {ceiling:.0f} TFLOP/s that one large bf16 "
            "product reaches here."
        )


def to_markdown(result: dict[str, Any]) -> str:
    """Write the measurements as a Markdown table with their conditions."""
    lines = [
        "| table | model | loss | words/s | ± | ms per step | × softmax | × paper | share of matmul rate | peak memory "
        "|",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for item in result["measurements"]:
        memory = item["peak_memory_bytes"]
        lines.append(
            f"| {item['table']} | {item['model']} | {item['loss']} | {item['words_per_second'] / 1e6:.3f}M "
            f"| {100 * item['spread']:.1f}% | {1000 * item['step_seconds']:.3f} "
            f"| {_ratio(item['speedup_over_softmax'], 1)} | {_ratio(item['speedup_over_paper'], 0)} "
            f"| {_percent(item['matmul_share'])} | {'—' if memory is None else f'{memory / 2**30:.2f} GiB'} |"
        )
    ceiling = result["matmul_teraflops"]
    rate = "" if ceiling is None else f", matrix products reach {ceiling:.0f} TFLOP/s (bf16, 8192³)"
    lines += [
        "",
        f"{result['device']}, torch {result['torch']}, bnce {result['bnce']}{rate}. Median of {result['num_rounds']} "
        f"rounds of {result['round_seconds']:g} s, ± half their range. A step computes body, loss, backward pass, "
        "clipping and the update (row-wise Adagrad for the tables, Adam for the body), in bf16 with float32 parameters "
        "on a GPU. Words are drawn from Zipf's law. × paper is the speed divided by the paper's speed on a Titan X "
        "(Tables 2 and 4, column TS).",
    ]
    return "\n".join(lines) + "\n"


def _ratio(value: float | None, digits: int) -> str:
    return "—" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.0f}%"


if __name__ == "__main__":
    main()
