"""Take the figures anew that README and docs quote and that a CPU can take, one result file for each.

    python benchmarks/figures_cpu.py demo export score serve --work work
    python benchmarks/figures_cpu.py nbest --work work --wiki DIR      # DIR: train-1, valid and test.txt.xz

On two idle cores: demo 3 minutes, export 3, score 8, serve 3, nbest 30. `export` and `serve` use the run that
`demo` trains. Speeds need an idle machine; perplexities, sizes, differences and word error rates do not. Each step
writes benchmarks/results/STEP.md; demo and export also write their numbers to benchmarks/results/cpu.json.
benchmarks/publish.py then puts them into README and docs (`make figures` runs both), and docs/figures.md lists what
comes from where.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from quotes.cpu_texts import NUM_ROUNDS, ROWS, demo_text, export_text
from score import VOCAB_SIZE, make_model, processor

from bnce.export.onnx_graphs import write_graphs
from bnce.export.to_onnx import open_graph, run_graph
from bnce.version import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
EXPORT_TOKENS = 60_000
ONNX_SIZES = (8, 8, 600)  # a body of next to nothing: the graphs of the output layer are timed
WORDS_SHAPE, ALL_WORDS_SHAPE = (20, 16), (1, 16)  # T and B of the positions that they are timed at
NBEST_TRAIN = (
    "train wiki --model relu-lstm --loss chunk-bnce --device cpu --set optimiser.name=rowwise "
    "--set model.embedding_size=128 "
    "--set model.hidden_size=256 --set model.bottleneck_size=128 --set training.batch_size=64 --set training.epochs=1 "
    "--set training.evaluations_per_epoch=2 --set training.max_valid_tokens=50000 --set training.max_test_tokens=100000"
)

Figures = dict[str, Any]


class Commands:
    """Runs commands in the work directory and keeps what was typed."""

    def __init__(self, work: Path) -> None:
        self.work = work.resolve()
        self.typed: list[str] = []

    def bnce(self, *arguments: object) -> Figures:
        """Run `bnce` and give the object that it prints."""
        words = [str(argument) for argument in arguments]
        self.typed.append(shlex.join(["bnce", *words]))
        command = [sys.executable, "-m", "bnce", *words, "--json"]
        done = subprocess.run(command, cwd=self.work, stdout=subprocess.PIPE, check=True)
        found: Figures = json.loads(done.stdout)
        return found

    def make(self, out: str, *arguments: object) -> None:
        """Run `bnce` for what it makes, unless that is there."""
        if (self.work / out).exists():
            self.typed.append(shlex.join(["bnce", *map(str, arguments), "--out", out]))
        else:
            self.bnce(*arguments, "--out", out)

    def script(self, name: str, *arguments: object, directory: Path | None = None) -> None:
        """Run another benchmark."""
        command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments)]
        subprocess.run(command, cwd=directory or self.work, check=True)


def demo(commands: Commands) -> Figures:
    """Train the README's three models, and compare them."""
    shown = []
    for loss in ("softmax", "snce", "bnce"):
        commands.make(f"demo/{loss}", "train", "demo", "--loss", loss, "--set", "training.max_test_tokens=0")
        shown.append(f"demo/{loss}")
    rows = commands.bnce("compare", *shown)["rows"]
    keys = ("loss", "ppl_n", "ppl_f", "words_per_second", "speedup_over_softmax", "vocab_size", "train_tokens")
    return {"rows": [{key: row[key] for key in keys} for row in rows]}


def export(commands: Commands, timings: bool) -> Figures:
    """Export the demo's B-NCE model in every way; time ONNX's output graphs at V = 800K."""
    size = commands.bnce("info", "demo/bnce")["vocab_size"]
    found: Figures = {"vocab_size": size, "num_tokens": EXPORT_TOKENS, "rows": {}}
    with tempfile.TemporaryDirectory(dir=commands.work) as scratch:
        out = Path(scratch).name
        for target in ("onnx", "transformers"):
            record = commands.bnce("export", "demo/bnce", "--to", target, "--out", f"{out}/{target}")
            found[target] = {"max_difference": record["max_difference"]}
        for rows in ROWS:
            options = ["--to", "safetensors", "--rows", rows, "--out", f"{out}/{rows}"]
            record = commands.bnce("export", "demo/bnce", *options)
            measured = commands.bnce("evaluate", f"{out}/{rows}", "--max-words", EXPORT_TOKENS)
            found["rows"][rows] = {
                "model_bytes": record["model_bytes"], "ppl_n": measured["ppl_n"], "ppl_f": measured["ppl_f"]
            }  # fmt: skip
        commands.typed = [line.replace(out, "exported") for line in commands.typed]
    if timings:
        found["onnx"] |= onnx_milliseconds()
    return found


def onnx_milliseconds() -> Figures:
    """Time the graphs that give words their probabilities, with random weights."""
    model = make_model(ONNX_SIZES)
    generator = torch.Generator().manual_seed(1)
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        write_graphs(model, Path(scratch))
        few, many = torch.randn(*WORDS_SHAPE, 600, generator=generator), torch.randn(*ALL_WORDS_SHAPE, 600)
        words = torch.randint(VOCAB_SIZE, (*WORDS_SHAPE, 1), generator=generator)
        ways = {"words": {"hidden": few, "words": words}, "all_words": {"hidden": many}}
        found = {}
        for name, feed in ways.items():
            session = open_graph(Path(scratch) / f"{name}.onnx")
            found[f"{name}_ms"] = _median_milliseconds(lambda s=session, f=feed: run_graph(s, f))
    positions = {"words_positions": math.prod(WORDS_SHAPE), "all_words_positions": math.prod(ALL_WORDS_SHAPE)}
    return {**found, **positions, "vocab_size": VOCAB_SIZE, "hidden_size": ONNX_SIZES[2]}


def _median_milliseconds(call: Callable[[], object], num_rounds: int = NUM_ROUNDS) -> float:
    call()
    seconds = []
    for _ in range(num_rounds):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return 1000 * statistics.median(seconds)


def nbest(commands: Commands, wiki: Path) -> None:
    """Train what the lists are rescored with, then rescore them."""
    work = commands.work
    part, valid, test = work / "part.txt", wiki / "valid.txt.xz", wiki / "test.txt.xz"
    commands.typed.append("xzcat train-1.txt.xz | head -c 20000000 > part.txt")
    if not part.exists():
        subprocess.run(f"xzcat {shlex.quote(str(wiki / 'train-1.txt.xz'))} | head -c 20000000 > part.txt", shell=True,
                       cwd=work, check=True)  # fmt: skip
    steps = [
        ("corpus", ["prepare", "part.txt", "--valid", valid, "--test", test, "--vocab-size", 40000]),
        ("corpus-1", ["prepare", wiki / "train-1.txt.xz", "--valid", valid, "--vocab", "corpus/vocab.txt"]),
        ("run", [*NBEST_TRAIN.split(), "--corpus", "corpus"]),
    ]
    for name, arguments in steps:
        commands.make(name, *arguments)
    texts = ["--valid", valid, "--test", test, "--out", RESULTS / "nbest.md"]
    made_by = [word for line in commands.typed for word in ("--made-by", line.replace(f"{wiki}/", ""))]
    commands.script(
        "nbest.py",
        "--run",
        "run",
        "--corpus",
        "corpus",
        "--ngram-corpus",
        "corpus-1",
        "--work",
        "lists",
        *texts,
        *made_by,
    )


def keep(step: str, found: Figures, commands: Commands) -> None:
    """Write a step's figures beside those of the other steps."""
    path = RESULTS / "cpu.json"
    figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    python = f"Python {platform.python_version()}, PyTorch {torch.__version__}, bnce {__version__}"
    found |= {"machine": f"{processor()}, {os.cpu_count()} cores; {python}", "commands": commands.typed}
    figures[step] = found
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    text = {"demo": demo_text, "export": export_text}[step](found)
    for line in commands.typed:
        print(line)
    ran = "\n".join(f"    {line}" for line in commands.typed)
    command = f"    python benchmarks/figures_cpu.py {step} --work work"
    head = f"# Figures: {step}\n\n{command}\n\nIt ran these commands:\n\n{ran}\n"
    (RESULTS / f"{step}.md").write_text(f"{head}\nMachine: {found['machine']}.\n\n{text}\n", encoding="utf-8")
    print(text)


def main() -> None:
    """Take the steps that are asked for, in the order that they need each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = ("demo", "export", "score", "serve", "nbest")
    parser.add_argument("steps", nargs="+", choices=steps)
    parser.add_argument("--work", type=Path, required=True, help="runs and corpora; what is there is not made again")
    parser.add_argument("--wiki", type=Path, help="a directory with train-1.txt.xz, valid.txt.xz and test.txt.xz")
    parser.add_argument("--no-timings", action="store_false", dest="timings", help="on a busy machine: no ONNX times")
    given = parser.parse_args()
    if "nbest" in given.steps and given.wiki is None:
        parser.error("nbest needs --wiki")
    given.work.mkdir(parents=True, exist_ok=True)
    for step in (one for one in steps if one in given.steps):
        commands = Commands(given.work)
        if step in ("demo", "export"):
            take = {"demo": demo, "export": partial(export, timings=given.timings)}[step]
            keep(step, take(commands), commands)
        elif step == "nbest":
            nbest(commands, given.wiki.resolve())
        else:
            # The result file names the command as it was typed: from the project's own directory.
            run = [commands.work / "demo" / "bnce"] if step == "serve" else []
            commands.script(f"{step}.py", *run, "--out", f"benchmarks/results/{step}.md", directory=ROOT)


if __name__ == "__main__":
    main()
