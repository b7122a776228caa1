"""How fast text is scored at V = 800K: with the constant Z, with the softmax, and n-best lists with prefixes shared.

    python benchmarks/score.py                         # both tables, at the sizes of both recipes
    python benchmarks/score.py --out benchmarks/results/score.md

The model is random: speed does not depend on what it has learned. Sentences are drawn by Zipf's law, their lengths
around 25 words. Every round runs all ways in turn, so that whatever else the machine does falls on all of them. One
thread, unless more are asked for: where others use the machine, two threads mostly wait for each other.

An n-best list is made as a decoder's lattice makes one: a sentence has some uncertain places, each with a few
alternatives (a word, or no word) and a cost for each; the list is the 100 cheapest combinations. So hypotheses differ
in a few words, anywhere in the sentence.
"""

from __future__ import annotations

import argparse
import heapq
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bnce.corpus.vocabulary import END
from bnce.engine.network import Query
from bnce.engine.packer import score
from bnce.engine.torch_network import TorchNetwork
from bnce.language_model import LanguageModel
from bnce.machine.devices import describe_device
from bnce.noise import unigram
from bnce.registry import BatchNce, ReluLstm

VOCAB_SIZE = 800_000
SIZES = {
    "ltcb": (200, 600, 400),
    "obwb": (500, 1500, 600),
}  # embedding, recurrent, bottleneck: the paper's Tables 1 and 3
MEAN_WORDS = 25
BAR_UNNORMALISED, BAR_SHARED = 50.0, 3.0  # times the sentences/s of the other way, at least
NBEST = 100
UNCERTAIN_SHARE = 0.3  # of a sentence's places
ALTERNATIVES = 3


def make_model(sizes: tuple[int, int, int]) -> LanguageModel:
    """Build a ReLu-LSTM at its random start."""
    embedding_size, hidden_size, bottleneck_size = sizes
    config = ReluLstm(embedding_size=embedding_size, hidden_size=hidden_size, bottleneck_size=bottleneck_size)
    torch.manual_seed(1)
    return LanguageModel(config, BatchNce(), unigram(range(VOCAB_SIZE, 0, -1))).eval()


def draw_words(generator: np.random.Generator, num_words: int) -> np.ndarray:
    """Draw ids by Zipf's law, specials left out: the id is the rank."""
    return 2 + np.minimum(np.exp(generator.random(num_words) * np.log(VOCAB_SIZE - 2)).astype(np.int64), VOCAB_SIZE - 3)


def draw_sentences(generator: np.random.Generator, num_sentences: int) -> list[np.ndarray]:
    """Draw sentences with ends, of lengths spread as in text: a gamma distribution."""
    lengths = np.maximum(1, generator.gamma(4.0, MEAN_WORDS / 4.0, num_sentences)).astype(np.int64)
    return [np.append(draw_words(generator, length), END) for length in lengths]


def draw_nbest(generator: np.random.Generator) -> list[np.ndarray]:
    """Draw one list: a sentence with uncertain places, and the cheapest ways to choose at all of them."""
    (sentence,) = draw_sentences(generator, 1)
    # A list of a hundred needs places enough to differ at.
    while len(sentence) < 8:
        (sentence,) = draw_sentences(generator, 1)
    num_places = max(6, int(UNCERTAIN_SHARE * (len(sentence) - 1)))
    places = np.sort(generator.choice(len(sentence) - 1, num_places, replace=False))
    choices, costs = [], []
    for place in places:
        words = [[sentence[place]], *([word] for word in draw_words(generator, ALTERNATIVES - 1)), []]
        choices.append(words)
        costs.append(np.concatenate([[0.0], np.sort(generator.exponential(1.0, ALTERNATIVES))]))
    return [assemble(sentence, places, choices, picked) for picked in cheapest(costs, NBEST)]


def cheapest(costs: Sequence[np.ndarray], num_wanted: int) -> list[tuple[int, ...]]:
    """List the cheapest ways to pick one of each place's choices, whose costs ascend, best first."""
    start = (0,) * len(costs)
    queue, seen, found = [(0.0, start)], {start}, []
    while queue and len(found) < num_wanted:
        cost, picked = heapq.heappop(queue)
        found.append(picked)
        for place, choice in enumerate(picked):
            if choice + 1 < len(costs[place]):
                other = (*picked[:place], choice + 1, *picked[place + 1 :])
                if other not in seen:
                    seen.add(other)
                    heapq.heappush(queue, (cost + costs[place][choice + 1] - costs[place][choice], other))
    return found


def assemble(
    sentence: np.ndarray, places: np.ndarray, choices: Sequence[Sequence[Sequence[int]]], picked: Sequence[int]
) -> np.ndarray:
    """Write the hypothesis that a choice at every place makes."""
    words: list[int] = []
    chosen = dict(
        zip(places.tolist(), (options[pick] for options, pick in zip(choices, picked, strict=True)), strict=True)
    )
    for place, word in enumerate(sentence.tolist()):
        words += chosen.get(place, [word])
    return np.array(words)


@dataclass(frozen=True)
class Way:
    """One way to score, and how many sentences one round of it scores."""

    name: str
    work: Callable[[], object]
    num_sentences: int


def measure(ways: Sequence[Way], num_rounds: int) -> dict[str, list[float]]:
    """Run every way in turn, several rounds over, and give sentences per second of each round."""
    speeds: dict[str, list[float]] = {way.name: [] for way in ways}
    for number in range(num_rounds):
        for way in ways:
            begin = time.perf_counter()
            way.work()
            speeds[way.name].append(way.num_sentences / (time.perf_counter() - begin))
        told = ", ".join(f"{name} {values[-1]:.1f}" for name, values in speeds.items())
        print(f"round {number + 1} of {num_rounds}, sentences/s: {told}", file=sys.stderr)
    return speeds


def row(cells: Sequence[object]) -> str:
    """Write a row of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Write a median with the least and the most."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def ratios(fast: Sequence[float], slow: Sequence[float]) -> list[float]:
    """Divide speeds round by round."""
    return [one / other for one, other in zip(fast, slow, strict=True)]


def against(bar: float, times: Sequence[float]) -> str:
    """Say what was aimed at, and whether it was reached."""
    return f"{bar:g}, {'met' if statistics.median(times) >= bar else '**missed**'}"


def arithmetic(sizes: tuple[int, int, int]) -> float:
    """Divide the multiplications of a word's exact probability by those of its unnormalised one."""
    embedding_size, hidden_size, bottleneck_size = sizes
    body = 4 * hidden_size * (embedding_size + hidden_size) + hidden_size * bottleneck_size
    return (body + VOCAB_SIZE * bottleneck_size) / (body + bottleneck_size)


def score_both(recipe: str, num_rounds: int, num_sentences: int) -> list[str]:
    """Time unnormalised scoring beside the exact softmax."""
    model = make_model(SIZES[recipe])
    generator = np.random.default_rng(1)
    # The exact scorer is given enough to fill its blocks of 512 positions, and no more: it takes seconds.
    few, many = draw_sentences(generator, num_sentences), draw_sentences(generator, 50 * num_sentences)
    network = TorchNetwork(model)
    score(network, few)
    speeds = measure(
        [
            Way("unnormalised", lambda: score(network, many), len(many)),
            Way("exact", lambda: score(network, few, Query(log_z=True)), len(few)),
        ],
        num_rounds,
    )
    times = ratios(speeds["unnormalised"], speeds["exact"])
    sizes = "–".join(map(str, SIZES[recipe]))
    cells = [f"{recipe}, {sizes}", spread(speeds["exact"], 2), spread(speeds["unnormalised"]), spread(times)]
    return [row([*cells, f"{arithmetic(SIZES[recipe]):.1f}", against(BAR_UNNORMALISED, times)])]


def score_lists(recipe: str, num_rounds: int, num_lists: int) -> list[str]:
    """Time n-best lists with every prefix once beside every hypothesis by itself."""
    model = make_model(SIZES[recipe])
    generator = np.random.default_rng(2)
    lists = [draw_nbest(generator) for _ in range(num_lists)]
    hypotheses = [hypothesis for one in lists for hypothesis in one]
    network, in_rows = TorchNetwork(model), TorchNetwork(model)
    in_rows.prefers_tree = False

    def apart() -> np.ndarray:
        return score(in_rows, hypotheses).score_N

    shared_N = score(network, hypotheses, share=True).score_N
    difference = float(np.abs(shared_N - apart()).max())
    assert difference < 1e-3, f"the two ways differ by {difference}"
    speeds = measure(
        [
            Way("shared", lambda: score(network, hypotheses, share=True), len(hypotheses)),
            Way("apart", apart, len(hypotheses)),
        ],
        num_rounds,
    )
    times = ratios(speeds["shared"], speeds["apart"])
    num_words = sum(map(len, hypotheses))
    sizes = "–".join(map(str, SIZES[recipe]))
    prefixes = {(place, *one[: end + 1]) for place, own in enumerate(lists) for one in own for end in range(len(one))}
    words = f"{num_words / len(prefixes):.2f}"
    cells = [f"{recipe}, {sizes}", words, spread(speeds["apart"]), spread(speeds["shared"]), spread(times, 2)]
    return [row([*cells, against(BAR_SHARED, times)])]


def processor() -> str:
    """Name the processor, where the system tells."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=40, help="for the exact scorer; 50 times as many otherwise")
    parser.add_argument("--lists", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    scored, shared = [], []
    for recipe in options.sizes:
        scored += score_both(recipe, options.rounds, options.sentences)
        shared += score_lists(recipe, options.rounds, options.lists)
    command = " ".join(["python", "benchmarks/score.py", *sys.argv[1:]])
    text = REPORT.format(
        command=command,
        machine=f"{processor()}, {os.cpu_count()} cores, {describe_device(torch.device('cpu'))}",
        versions=f"Python {platform.python_version()}, PyTorch {torch.__version__}, NumPy {np.__version__}",
        rounds=options.rounds,
        vocab_size=f"{VOCAB_SIZE:,}",
        mean_words=MEAN_WORDS,
        places=f"{100 * UNCERTAIN_SHARE:.0f}%",
        alternatives=ALTERNATIVES,
        scored="\n".join(scored),
        shared="\n".join(shared),
    )
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


REPORT = """# Scoring text: speed

    {command}

Machine: {machine}. {versions}.
ReLu-LSTM with random weights, float32, V = {vocab_size}; sizes are embedding–recurrent–bottleneck as in the paper's
tables. Sentences have {mean_words} words on average, drawn by Zipf's law. Each round runs all variants, one after the
other. Figures are medians of {rounds} rounds, with the lowest and the highest in brackets. Ratios are computed within
a round.

## Without the softmax

The input is word ids. The output is the log-probability of every word and `</s>`. The exact scorer multiplies blocks
of 512 positions by blocks of 2,048 words in float32. On this machine it is within 5% of the fastest block size between
256 × 1,024 and 1,024 × 8,192.

| recipe, sizes | exact softmax, sentences/s | unnormalised, sentences/s | speed-up | speed-up by arithmetic | goal |
|---|---:|---:|---:|---:|---:|
{scored}

The speed-up by arithmetic is the number of multiplications in body and output layer, divided by that in the body
alone. Exponentials are not counted. Unnormalised scoring still computes the body, so a model with a larger body gains
less. The goals were set before anything was measured. A goal counts as missed even if arithmetic shows that it cannot
be reached.

## Shared prefixes

100-best lists, unnormalised. In each sentence, {places} of the words (at least 6) are uncertain. Each of these has
{alternatives} alternatives, one of them no word. The costs of alternatives are drawn from an exponential distribution.
A list is the 100 cheapest combinations, as from a decoder's lattice. "Apart" means that each hypothesis is scored as a
sentence of its own, in batches of similar length.

| recipe, sizes | words / distinct prefixes | apart, hypotheses/s | shared, hypotheses/s | speed-up | goal |
|---|---:|---:|---:|---:|---:|
{shared}
"""


if __name__ == "__main__":
    main()
