"""Start-up, scoring and training on a CPU, beside what people use instead. Runs alternate; figures are medians.

    python benchmarks/cpu_peers.py --train train.txt --valid valid.txt --test test.txt --work work
    python benchmarks/cpu_peers.py … --before OTHER/src                 # also another version's source, for ratios

Texts have one line per paragraph. The rival is yours to install: KenLM's Python package. If it is absent, it is
skipped with a sentence. Times are CPU seconds, so that what else the machine does counts less; the load is told.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bnce.config import LossConfig, ModelConfig, OptimiserConfig, RunConfig, TrainingConfig
from bnce.corpus.vocabulary import SPECIALS, Vocabulary
from bnce.export.to_onnx import export_onnx
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import build_model, save_weights
from bnce.text.normalise import Normaliser

SIZES = {"embedding_size": 256, "hidden_size": 256}
LARGE_VOCABULARY = 800_000
LINE_WORDS = 6  # of a short line
HERE = Path(__file__).parents[1] / "src"


# A process starts with the peak of the one that it is forked from: a small one stands between.
LAUNCH = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss, done.stdout]))
"""


def run(command: Sequence[object], source: Path = HERE) -> tuple[float, int, str]:
    """Run a program; give its CPU seconds, its peak memory in KB, and what it printed."""
    launched = [sys.executable, "-I", "-S", "-c", LAUNCH, *map(str, command)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    told = subprocess.run(launched, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    status, seconds, memory, printed = json.loads(told)
    if status:
        raise SystemExit(f"{' '.join(map(str, command))} ended with status {status}")
    return seconds, memory, printed


def bnce(*arguments: object) -> list[object]:
    """Give the command of a Python process that is `bnce`."""
    return [sys.executable, "-m", "bnce", *arguments]


def make_large(place: Path) -> None:
    """Export a run over 800,000 words with random weights: start-up does not depend on what it has learned."""
    generator = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    sizes = generator.integers(3, 14, int(LARGE_VOCABULARY * 1.3))
    drawn = ("".join(letters[(generator.random(size) ** 1.7 * len(letters)).astype(int)]) for size in sizes)
    words = list(dict.fromkeys([*SPECIALS, "the", "cat", "sat", "on", "mat", *drawn]))[:LARGE_VOCABULARY]
    config = RunConfig(
        recipe="random",
        corpus="",
        model=ModelConfig(name="lstm", **SIZES),
        loss=LossConfig(name="bnce"),
        optimiser=OptimiserConfig(),
        training=TrainingConfig(),
    )
    path = place / "large-run"
    path.mkdir(parents=True)
    opened = RunDirectory(path, config, Vocabulary(words), Normaliser(True, "words", "split"), np.ones(len(words), int))
    opened.write_description()
    torch.manual_seed(1)
    save_weights(opened, build_model(opened).state_dict(), 1)
    export_onnx(RunDirectory.open(path), place / "large")


def measure_startup(work: Path, rounds: int) -> list[str]:
    """Time one line of text with a run over 800,000 words, exported and not, and the help."""
    if not (work / "large").is_dir():
        make_large(work)
    (work / "line.txt").write_text("the cat sat on the mat\n", encoding="utf-8")
    ways = {
        "`bnce score EXPORTED`, one line": bnce("score", work / "large", work / "line.txt", "--json"),
        "`bnce score RUN`, one line": bnce("score", work / "large-run", work / "line.txt", "--json"),
        "`bnce --help`": bnce("--help"),
    }
    found: dict[str, list[tuple[float, int, str]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, command in ways.items():
            found[name].append(run(command))
    rows = ["| V = 800,000, LSTM 256–256, random weights | CPU seconds | peak memory, MB |", "|---|---:|---:|"]
    for name, figures in found.items():
        memory = statistics.median(one[1] for one in figures) / 1e3
        rows.append(f"| {name} | {median([one[0] for one in figures])} | {memory:.0f} |")
    return rows


def measure_scoring(work: Path, models: Sequence[str], before: Path | None, rounds: int) -> list[str]:
    """Time short lines on one thread, without what a single line takes; words are tokens, `</s>` among them."""
    line, text = work / "line.txt", work / "short.txt"
    rows = ["| short lines, one thread | tokens per CPU second | ratio | perplexity |", "|---|---:|---:|---:|"]
    for model in models:
        ways = {f"{model}, run": (work / model, HERE), f"{model}, exported": (work / f"{model}-onnx", HERE)}
        if before is not None:
            ways = {f"{model}, run, before": (work / model, before), **ways}
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        perplexities = {}
        for _ in range(rounds):
            for name, (path, source) in ways.items():
                rest = ("--json", "--threads", 1)
                seconds, _, printed = run(bnce("score", path, text, *rest), source)
                idle, _, _ = run(bnce("score", path, line, *rest), source)
                record = json.loads(printed)
                perplexities[name] = record["ppl"]
                speeds[name].append((record["num_words"] + record["num_sentences"]) / (seconds - idle))
        first = next(iter(speeds.values()))
        for name, values in speeds.items():
            times = [one / other for one, other in zip(values, first, strict=True)]
            told = f"{statistics.median(values) / 1e3:.0f}K ({min(values) / 1e3:.0f}–{max(values) / 1e3:.0f}K)"
            rows.append(f"| {name} | {told} | {median(times)} | {perplexities[name]:.4f} |")
    return rows


def train_models(work: Path, models: Sequence[str]) -> list[str]:
    """Train one epoch with B-NCE, and export; the figures are those of the runs."""
    rows = ["| training, B-NCE, one epoch | tokens/s | PPLn, test | PPLf, test |", "|---|---:|---:|---:|"]
    for model in models:
        settings = [f"model.{name}={size}" for name, size in SIZES.items()] + ["training.epochs=1"]
        options = [part for setting in settings for part in ("--set", setting)]
        if not (work / model).is_dir():
            command = ("train", "small", "--corpus", work / "corpus", "--model", model, "--loss", "bnce", *options)
            run(bnce(*command, "--out", work / model))
        if not (work / f"{model}-onnx").is_dir():
            run(bnce("export", work / model, "--to", "onnx", "--out", work / f"{model}-onnx"))
        summary = json.loads((work / model / "summary.json").read_text(encoding="utf-8"))
        test = json.loads((work / model / "evaluation.json").read_text(encoding="utf-8"))
        speed = summary.get("words_per_second") or 0.0
        rows.append(f"| {model} | {speed / 1e3:.1f}K | {test['ppl_n']:.1f} | {test['ppl_f']:.1f} |")
    return rows


def measure_kenlm(work: Path, train: Path, rounds: int) -> list[str]:
    """Time KenLM's 5-gram of the same words on the same lines, if it is installed."""
    try:
        import kenlm  # noqa: F401
    except ModuleNotFoundError:
        return ["KenLM is not installed and was left out: `pip install kenlm`."]
    if not (work / "five.arpa").is_file():
        words = work / "corpus" / "vocab.txt"
        run(bnce("ngram", train, "--order", 5, "--vocab", words, "--out", work / "five.arpa"))
    text = work / "short.txt"
    figures = [run(bnce("score", work / "five.arpa", text, "--json")) for _ in range(rounds)]
    record = json.loads(figures[0][2])
    seconds = median([one[0] for one in figures])
    return [f"KenLM 5-gram, through `bnce score`: {seconds} CPU seconds, perplexity {record['ppl']:.1f}."]


def median(values: Sequence[float]) -> str:
    """Write a median with the least and the most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main() -> None:
    """Measure, and write a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "valid", "test", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["lstm", "rnn"])
    parser.add_argument("--before", type=Path, help="The src directory of another version.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-lines", type=int, default=30_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    work: Path = given.work
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "corpus").is_dir():
        splits = ("--valid", given.valid, "--test", given.test, "--vocab-size", 40_000)
        run(bnce("prepare", given.train, *splits, "--out", work / "corpus"))
    words = given.test.read_text(encoding="utf-8").split()[: given.num_lines * LINE_WORDS]
    lines = (" ".join(words[begin : begin + LINE_WORDS]) for begin in range(0, len(words), LINE_WORDS))
    (work / "short.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    parts = [
        ["# On a CPU, beside what people use instead"],
        [f"    python benchmarks/cpu_peers.py {' '.join(told())}"],
        [conditions(given.rounds)],
        train_models(work, given.models),
        measure_startup(work, given.rounds),
        measure_scoring(work, given.models, given.before, given.rounds),
        measure_kenlm(work, given.train, given.rounds),
    ]
    page = "\n\n".join("\n".join(part) for part in parts) + f"\n\nLoad at the end: {os.getloadavg()[0]:.1f}.\n"
    print(page)
    if given.out is not None:
        given.out.write_text(page, encoding="utf-8")


def conditions(rounds: int) -> str:
    """Say what the figures were taken on."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}"
    return f"{machine}, {rounds} rounds, load {os.getloadavg()[0]:.1f} at the start. Medians (least–most)."


def told() -> list[str]:
    """Give the arguments, paths by their last names."""
    return [Path(one).name if "/" in one else one for one in sys.argv[1:]]


if __name__ == "__main__":
    main()
