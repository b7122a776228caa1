"""The output layer in a foreign loop: its time and memory beside what the trainer does, and beside nn.Linear.

python benchmarks/layer.py calls --out benchmarks/results      # layer(h, t), masked, loss_sum, the trainer's call
python benchmarks/layer.py linear --out benchmarks/results     # nn.Linear and cross entropy at V = 50K, 500K and 5M
python benchmarks/layer.py others --out benchmarks/results     # PyTorch's own layers and losses for many classes
python benchmarks/layer.py tables --out benchmarks/results     # a whole foreign step at V = 100K and 10M

Times are medians of rounds in which the ways take turns, forwards and backwards; ± is half the range of the rounds. A
ratio is the median of its rounds' ratios. On a GPU `calls` measures twice: launched by the host, as in a foreign loop,
and captured as CUDA graphs, as in the trainer. Memory is PyTorch's peak beyond parameters, optimiser state and inputs,
on a GPU alone. Targets are drawn from Zipf's law.

Legend: T time steps, B streams, D hidden, V words.
"""

from __future__ import annotations

import argparse
import functools
import gc
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from provenance import origin
from torch import Tensor, nn

import bnce
from bnce.version import __version__

MASKED = 0.3
ROUND_SECONDS = 0.05  # below that, what else runs on the machine decides


@dataclass
class Measured:
    """Seconds of every round, and peak memory beyond what was there."""

    seconds: list[float]
    extra_bytes: int | None

    @property
    def ms(self) -> float:
        """The median, in milliseconds."""
        return 1000 * statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the range of the rounds, relative to the median."""
        return (max(self.seconds) - min(self.seconds)) / 2 / statistics.median(self.seconds)

    def times(self, base: Measured) -> float:
        """The median of how many times as long this took as something else in the same round."""
        return statistics.median(one / other for one, other in zip(self.seconds, base.seconds, strict=True))


def zipf_counts(vocab_size: int) -> Tensor:
    """Count words as text would: the r-th one 1/r times as often as the first."""
    return (vocab_size / torch.arange(1, vocab_size + 1, dtype=torch.float64)).ceil()


def draw(counts_V: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Draw words by their counts."""
    edges_V = counts_V.cumsum(0)
    at = torch.rand(shape, dtype=torch.float64) * edges_V[-1]
    return torch.searchsorted(edges_V, at.flatten()).reshape(shape).to(device)


def measure(
    ways: dict[str, Callable[[], None]], device: torch.device, given: argparse.Namespace
) -> dict[str, Measured]:
    """Time every way in turns."""
    found = {name: Measured([], None) for name in ways}
    repeats = {}
    for name, way in ways.items():
        for _ in range(3):
            way()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            way()
            torch.cuda.synchronize(device)
            found[name].extra_bytes = torch.cuda.max_memory_allocated(device) - before
        repeats[name] = given.repeats or math.ceil(ROUND_SECONDS / _round(way, device, 3))
    for number in range(given.rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            found[name].seconds.append(_round(ways[name], device, repeats[name]))
    return found


def _round(way: Callable[[], None], device: torch.device, repeats: int) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    gc.collect()
    gc.disable()
    begin = time.perf_counter()
    for _ in range(repeats):
        way()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = (time.perf_counter() - begin) / repeats
    gc.enable()
    return seconds


def _capture(run: Callable[[], None]) -> Callable[[], None]:
    """Capture as a CUDA graph, so that the GPU's time is measured and not the host's."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def calls(given: argparse.Namespace, device: torch.device) -> list[str]:
    """Measure the ways to call the layer, forward and backward, beside the trainer's."""
    V, D, T, B = given.vocab_size, given.hidden_size, given.steps, given.streams
    counts_V = zipf_counts(V)
    hidden_TBD = torch.randn(T, B, D, device=device, requires_grad=True)
    target_TB = draw(counts_V, (T, B), device)
    masked_TB = target_TB.masked_fill(torch.rand(T, B, device=device) < MASKED, -100)
    # The trainer knows the most different words in any chunk of its text.
    largest = max(int(draw(counts_V, (T, B), device).unique().numel()) for _ in range(given.chunks))
    rows = []

    def way(of: bnce.OutputLayer, compute: Callable[[bnce.OutputLayer], Tensor]) -> Callable[[], None]:
        def run() -> None:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
                value = compute(of)
            value.backward()
            hidden_TBD.grad = None
            of.zero_grad(set_to_none=True)

        return run

    for loss in ("bnce", "chunk-bnce"):
        most = largest if loss == "chunk-bnce" else None
        layer = bnce.OutputLayer(D, V, counts_V.numpy(), loss=loss, sparse=True).to(device)
        known = bnce.OutputLayer(D, V, counts_V.numpy(), loss=loss, sparse=True).to(device)
        known.configure(max_distinct_targets=most)

        ways = {
            "trainer": way(known, lambda of: of.loss_sum(hidden_TBD, target_TB) / (T * B)),
            "layer.loss_sum(h, t)": way(layer, lambda of: of.loss_sum(hidden_TBD, target_TB)),
            "layer(h, t)": way(layer, lambda of: of(hidden_TBD, target_TB)),
            "layer(h, t), 30% masked": way(layer, lambda of: of(hidden_TBD, masked_TB)),
        }
        launched = measure(ways, device, given)
        captured = None
        if device.type == "cuda":
            captured = measure({name: _capture(run) for name, run in ways.items()}, device, given)
        for name, one in launched.items():
            base = launched["trainer"]
            alone = "– | – | –" if captured is None else _times(captured[name], captured["trainer"])
            memory = "– | –"
            if one.extra_bytes is not None and base.extra_bytes:
                memory = f"{one.extra_bytes / 2**20:.0f} | {one.extra_bytes / base.extra_bytes:.2f}"
            rows.append(f"| {loss} | {name} | {_times(one, base)} | {alone} | {memory} |")
    return [
        f'Time of one forward and backward pass; V = {V:,}, D = {D}, T = {T}, B = {B}. "Launched": the CPU starts '
        'every kernel. "Captured": the pass is a CUDA graph, so this is the time of the GPU alone. "Trainer" is the '
        "call that `bnce train` makes. × trainer of a time is the median of the ratios within the rounds, so it can "
        "differ from the ratio of the medians.",
        "",
        "| loss | call | launched, ms | ± | × trainer | captured, ms | ± | × trainer | extra MiB | × trainer |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *rows,
    ]


def _times(one: Measured, base: Measured) -> str:
    return f"{one.ms:.3f} | {100 * one.spread:.0f}% | {one.times(base):.2f}"


def linear(given: argparse.Namespace, device: torch.device) -> list[str]:
    """Measure a linear layer with cross entropy, as people write it, against the layer."""
    D, T, B = given.hidden_size, given.steps, given.streams
    lines = ["| V | output layer | ms | ± | extra MiB |", "|---:|---|---:|---:|---:|"]
    for V in given.sizes:
        counts_V = zipf_counts(V)
        hidden_TBD = torch.randn(T, B, D, device=device, requires_grad=True)
        target_TB = draw(counts_V, (T, B), device)
        rows = {}
        for name in ("nn.Linear + cross entropy", "bnce", "chunk-bnce"):
            try:
                rows[name] = _of_linear(name, V, counts_V, hidden_TBD, target_TB, device, given)
            except torch.OutOfMemoryError:
                rows[name] = None
            if device.type == "cuda":
                torch.cuda.empty_cache()
        for name, one in rows.items():
            if one is None:
                lines.append(f"| {V:,} | {name} | out of memory | | |")
                continue
            memory = "–" if one.extra_bytes is None else f"{one.extra_bytes / 2**20:,.0f}"
            lines.append(f"| {V:,} | {name} | {one.ms:.2f} | {100 * one.spread:.0f}% | {memory} |")
    return [f"Forward and backward, D = {D}, T = {T}, B = {B}.", "", *lines]


def _of_linear(
    name: str,
    vocab_size: int,
    counts_V: Tensor,
    hidden_TBD: Tensor,
    target_TB: Tensor,
    device: torch.device,
    given: argparse.Namespace,
) -> Measured:
    D = hidden_TBD.shape[-1]
    layer: nn.Module
    if name.startswith("nn."):
        layer = nn.Linear(D, vocab_size, device=device)
    else:
        layer = bnce.OutputLayer(D, vocab_size, counts_V.numpy(), loss=name, sparse=True).to(device)

    def run() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            if isinstance(layer, nn.Linear):
                value = F.cross_entropy(layer(hidden_TBD).flatten(0, 1), target_TB.flatten())
            else:
                value = layer(hidden_TBD, target_TB)
        value.backward()
        hidden_TBD.grad = None
        layer.zero_grad(set_to_none=True)

    return measure({name: run}, device, given)[name]


def others(given: argparse.Namespace, device: torch.device) -> list[str]:
    """Measure what PyTorch has for many classes beside the layer, in turns."""
    V, D, T, B = given.vocab_size, given.hidden_size, given.steps, given.streams
    counts_V = zipf_counts(V)
    hidden_TBD = torch.randn(T, B, D, device=device, requires_grad=True)
    target_TB = draw(counts_V, (T, B), device)
    target_N = target_TB.flatten()
    plain = nn.Linear(D, V, device=device)
    cutoffs = [max(1, V // 40), max(2, V // 8)]
    div = min(4.0, (D / 2) ** 0.5)  # PyTorch's default, or less: the last cluster needs a unit
    adaptive = nn.AdaptiveLogSoftmaxWithLoss(D, V, cutoffs, div_value=div, head_bias=True, device=device)
    compiled = torch.compile(lambda hidden_TBD: F.cross_entropy(plain(hidden_TBD.flatten(0, 1)), target_N))
    losses: dict[str, tuple[nn.Module, Callable[[], Tensor]]] = {
        "nn.Linear + cross entropy": (plain, lambda: F.cross_entropy(plain(hidden_TBD.flatten(0, 1)), target_N)),
        "the same, compiled": (plain, lambda: compiled(hidden_TBD)),
        "nn.AdaptiveLogSoftmaxWithLoss": (adaptive, lambda: adaptive(hidden_TBD.flatten(0, 1), target_N).loss),
    }
    if hasattr(nn, "LinearCrossEntropyLoss"):  # from PyTorch 2.13 on
        options = nn.LinearCrossEntropyOptions()  # in chunks: never all logits at once
        fused = nn.LinearCrossEntropyLoss(D, V, bias=True, device=device, options=options)
        losses["nn.LinearCrossEntropyLoss"] = (fused, lambda: fused(hidden_TBD.flatten(0, 1), target_N))
    for loss in ("softmax", "chunk-bnce", "bnce"):
        layer = bnce.OutputLayer(D, V, counts_V.numpy(), loss=loss, sparse=loss != "softmax").to(device)
        losses[f"bnce.OutputLayer, {loss}"] = (layer, functools.partial(layer, hidden_TBD, target_TB))

    def run(module: nn.Module, compute: Callable[[], Tensor]) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            value = compute()
        value.backward()
        hidden_TBD.grad = None
        module.zero_grad(set_to_none=True)

    found = measure({name: functools.partial(run, *pair) for name, pair in losses.items()}, device, given)
    base = found["nn.Linear + cross entropy"]
    rows = [
        f"| {name} | {one.ms:.1f} | {100 * one.spread:.0f}% | {1 / one.times(base):.1f} |"
        for name, one in found.items()
    ]
    return [
        f"Forward and backward, V = {V:,}, D = {D}, T = {T}, B = {B}; clusters of the adaptive softmax end at "
        f"{cutoffs[0]:,} and {cutoffs[1]:,} words. × faster is the median of the ratios within the rounds.",
        "",
        "| output layer | ms | ± | × faster |",
        "|---|---:|---:|---:|",
        *rows,
    ]


class _ForeignStep:
    """A whole step of somebody's own loop: embedding and output by row, a body by Adam."""

    def __init__(self, V: int, given: argparse.Namespace, device: torch.device) -> None:
        D, self.device = given.hidden_size, device
        counts_V = zipf_counts(V)
        self.embedding = nn.Embedding(V, D, sparse=True, device=device)
        self.body = nn.GRU(D, D, device=device)
        self.layer = bnce.OutputLayer(D, V, counts_V.numpy(), sparse=True).to(device)
        self.by_row = bnce.RowwiseAdam([self.embedding.weight, self.layer.weight, self.layer.bias], lr=2e-3)
        self.by_adam = torch.optim.Adam(self.body.parameters(), lr=1e-3)
        self.word_TB = draw(counts_V, (given.steps + 1, given.streams), device)
        self.parameters = [*self.embedding.parameters(), *self.body.parameters(), *self.layer.parameters()]

    def __call__(self) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            hidden_TBD, _ = self.body(self.embedding(self.word_TB[:-1]))
            loss = self.layer(hidden_TBD, self.word_TB[1:])
        loss.backward()
        bnce.clip_grad_norm_(self.parameters, 5.0)
        self.by_row.step()
        self.by_adam.step()
        for parameter in self.parameters:
            parameter.grad = None

    @property
    def held_bytes(self) -> int:
        """The parameters and what the optimisers keep of them."""
        states = [state for optimiser in (self.by_row, self.by_adam) for state in optimiser.state.values()]
        kept = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return sum(tensor.nbytes for tensor in (*self.parameters, *kept))


def tables(given: argparse.Namespace, device: torch.device) -> list[str]:
    """Measure a whole foreign step at several sizes of its tables, which take turns."""
    steps, memory = {}, {}
    for V in given.sizes:
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        step = steps[f"{V:,}"] = _ForeignStep(V, given, device)
        for _ in range(3):
            step()
        held, cells = step.held_bytes, "– | – | –"
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            step()
            peak = torch.cuda.max_memory_allocated(device) - before
            cells = f"{peak / 2**30:.2f} | {held / 2**30:.2f} | {(peak - held) / 2**30:.2f}"
        memory[f"{V:,}"] = cells
    found = measure(steps, device, given)
    base = next(iter(found.values()))
    lines = [
        "| V | ms per step | ± | × first row | peak GiB | parameters + optimiser state, GiB | beyond them, GiB |",
        "|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {size} | {one.ms:.2f} | {100 * one.spread:.0f}% | {one.times(base):.2f} | {memory[size]} |"
            for size, one in found.items()
        ),
    ]
    sizes = f"D = {given.hidden_size}, T = {given.steps}, B = {given.streams}"
    told = (
        f"One training step of embedding, GRU and B-NCE, with gradient clipping; {sizes}. The rows are measured in "
        "turns. × first row is the median of the ratios within the rounds, so it can differ from the ratio of the "
        "medians."
    )
    return [told, "", *lines]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure one thing, print it, and write it as layer-WHAT.md, on a CPU layer-WHAT-cpu.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("calls", "linear", "others", "tables"))
    parser.add_argument("--vocab-size", type=int, default=80_000, help="calls, others: number of words (80000)")
    parser.add_argument("--hidden-size", type=int, default=400, help="D (400)")
    parser.add_argument("--steps", type=int, default=20, help="T (20)")
    parser.add_argument("--streams", type=int, default=400, help="B (400)")
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(part) for part in text.split(",")],
        help="linear, tables: numbers of words, divided by commas",
    )
    parser.add_argument(
        "--chunks",
        type=int,
        default=1000,
        help="calls: chunks of which the trainer knows the most different words (1000)",
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which the median is taken (7)")
    parser.add_argument("--repeats", type=int, help=f"calls per round (as many as take {ROUND_SECONDS} seconds)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="a directory for layer-WHAT.md, or layer-WHAT-cpu.md")
    given = parser.parse_args(argv)
    if given.sizes is None:
        given.sizes = [100_000, 10_000_000] if given.what == "tables" else [50_000, 500_000, 5_000_000]
    device = torch.device(given.device)
    torch.manual_seed(1)
    length = f"{given.repeats} calls" if given.repeats else f"at least {ROUND_SECONDS} seconds"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    lines = [
        f"    python benchmarks/layer.py {shlex.join(sys.argv[1:] if argv is None else argv)}",
        "",
        *{"calls": calls, "linear": linear, "others": others, "tables": tables}[given.what](given, device),
        "",
        f"{name}, torch {torch.__version__}, bnce {__version__}; bf16 autocast on a GPU, float32 on a CPU; median of "
        f"{given.rounds} rounds of {length}, ± half their range.",
        "",
        origin("1"),
    ]
    print("\n".join(lines))
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        file = given.out / f"layer-{given.what}{'-cpu' if device.type == 'cpu' else ''}.md"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
