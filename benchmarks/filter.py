"""Filtering documents: how fast it is, how well it judges, and whether kills leave a trace.

    python benchmarks/filter.py make WORK --train train-1.txt.xz --valid valid.txt.xz --test test.txt.xz
    python benchmarks/filter.py train WORK --models ffnn,rnn,relu-lstm [--device cuda] [--set training.epochs=1 …]
    python benchmarks/filter.py speed WORK --model relu-lstm --device cuda --precision bf16 --words 100000000
    python benchmarks/filter.py cpu WORK --words 1000000
    python benchmarks/filter.py judge WORK [--device cuda]
    python benchmarks/filter.py kills WORK --kills 20

`make` prepares the corpus (V = 80,000), estimates a 5-gram of the same text and writes shards of its documents. `train`
makes runs. `speed` is of shards as .jsonl.zst in and out, and of the model alone on documents that are cut;
without a trained run it takes one of random weights, which is as fast. `cpu` compares runs and KenLM on the same shard.
`judge` writes its passages and every model's perplexities to WORK/judged and compares them once those of the n-gram
model are there, so that each can be made where its model is: `make --order 0` leaves the n-gram model out.
Every result is one line of WORK/results.jsonl, with conditions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filter_judgement as judgement
import numpy as np
import pyarrow
import torch

import bnce
from bnce.corpus.store import Corpus
from bnce.data.document_scorer import DocumentScorer
from bnce.data.filter import Job, run
from bnce.language_model import LanguageModel
from bnce.machine.devices import describe_device
from bnce.machine.threads import num_cores
from bnce.noise import unigram
from bnce.recipes import load_recipe
from bnce.registry import BatchNce
from bnce.runs.directory import Run
from bnce.runs.model_file import save_weights
from bnce.text.docstrings import installed_modules, read_docstrings
from bnce.text.sources import read_documents

VOCAB_SIZE = 80_000
SIZES = ["model.embedding_size=200", "model.hidden_size=600", "model.bottleneck_size=400"]
SHARD_WORDS = 10_000_000
ROUNDS = 3
MAX_PARAGRAPHS = 10
GOOD, NGRAM = "as they are", "5-gram"  # passages that nothing was done to, and the last model


def command(*arguments: object) -> dict[str, Any]:
    """Run a command of bnce and give its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "bnce", *map(str, arguments), "--json"], stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tell(work: Path, what: str, **figures: Any) -> None:
    """Print a result and keep it."""
    record = {"what": what, **figures, "torch": torch.__version__, "bnce": bnce.__version__, "cores": num_cores()}
    record |= {"processor": platform.processor() or platform.machine(), "load": os.getloadavg()[0]}
    print(json.dumps(record), flush=True)
    with open(work / "results.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def make(work: Path, options: argparse.Namespace) -> None:
    """Prepare the corpus and estimate the n-gram model of its text."""
    work.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        link = work / f"{name}{''.join(Path(getattr(options, name)).suffixes)}"
        if not link.exists():
            link.symlink_to(Path(getattr(options, name)).resolve())
    splits = ("--valid", options.valid, "--test", options.test)
    command("prepare", options.train, *splits, "--vocab-size", options.vocab_size, "--out", work / "corpus")
    if options.order:
        vocabulary = ("--vocab", work / "corpus")
        command("ngram", work / "corpus", "--order", options.order, *vocabulary, "--out", work / "ngram.arpa")


def train(work: Path, options: argparse.Namespace) -> None:
    """Train a run of each model."""
    for model in options.models.split(","):
        settings = [word for setting in (*SIZES, *options.set) for word in ("--set", setting)]
        given = ("--model", model, "--loss", options.loss, "--corpus", work / "corpus", "--device", options.device)
        command("train", "wiki", *given, *settings, "--out", work / "runs" / model)


def text_file(work: Path, name: str) -> str:
    """Find a split's text."""
    return str(next(path for path in work.iterdir() if path.name.startswith(f"{name}.txt")))


def documents(work: Path, name: str) -> Iterator[str]:
    """Read a split's documents, over and over, ten paragraphs at most: about as long as pages of the web."""
    while True:
        for lines in read_documents(text_file(work, name)):
            for begin in range(0, len(lines), MAX_PARAGRAPHS):
                yield "\n".join(lines[begin : begin + MAX_PARAGRAPHS])


def write_shards(work: Path, name: str, num_words: int, shard_words: int) -> Path:
    """Write documents of a split as .jsonl.zst until they have so many words, as blanks count them."""
    place = work / f"shards-{name}-{num_words}-{shard_words}"
    if place.exists():
        return place
    partial = work / "shards.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    given, total = enumerate(documents(work, name)), 0
    for shard in itertools.count():
        in_shard = 0
        with pyarrow.CompressedOutputStream(str(partial / f"{shard:04d}.jsonl.zst"), "zstd") as file:
            while in_shard < shard_words and total < num_words:
                number, text = next(given)
                file.write(json.dumps({"id": number, "text": text}, ensure_ascii=False).encode() + b"\n")
                words = text.count(" ") + 1
                in_shard, total = in_shard + words, total + words
        if total >= num_words:
            break
    partial.rename(place)
    return place


def find_run(work: Path, model: str) -> Path:
    """Give a trained run, or make one of random weights."""
    path = work / "runs" / model
    if path.exists():
        return path
    path = work / "runs" / f"{model}-random"
    if not path.exists():
        corpus = Corpus.open(work / "corpus")
        config = load_recipe("wiki", model=model, loss="bnce", corpus=str(work / "corpus"), settings=SIZES)
        made = Run.create(path, config, corpus)
        network = LanguageModel(config.model, BatchNce(), unigram(made.target_counts))
        save_weights(made, network.state_dict(), 1)
    return path


def speed(work: Path, options: argparse.Namespace) -> None:
    """Time shards in and out, and the model alone."""
    path = find_run(work, options.model)
    shards = write_shards(work, "train", options.words, options.shard_words)
    warm = write_shards(work, "valid", options.words // 50, options.shard_words)
    scorer = DocumentScorer(path, precision=options.precision, device=options.device)
    device = torch.device(scorer.model.device)
    conditions = {"model": path.name, "device": describe_device(device), "precision": options.precision}
    for sources, is_timed in ((warm, False), (shards, True)):
        out = work / "out"
        shutil.rmtree(out, ignore_errors=True)
        begin = time.perf_counter()
        found = run(Job([str(sources)], out, scorer))
        seconds = time.perf_counter() - begin
        if is_timed:
            words = {name: found[name] for name in ("num_words", "num_tokens", "num_documents", "num_shards")}
            speeds = {"words_per_second": found["num_words"] / seconds, "perplexity": found["perplexity"]}
            tell(work, "end to end", **conditions, **words, seconds=seconds, **speeds)
    text = scorer.cut(itertools.islice(documents(work, "train"), options.alone_documents))
    times = []
    for _ in range(1 + ROUNDS):
        begin = time.perf_counter()
        scores = scorer.score(text)
        times.append(time.perf_counter() - begin)
    seconds, num_words, num_tokens = (
        statistics.median(times[1:]),
        *map(int, (scores.num_words_N.sum(), len(text.words))),
    )
    rates = {"words_per_second": num_words / seconds, "tokens_per_second": num_tokens / seconds}
    tell(work, "model alone", **conditions, num_words=num_words, **rates)


def cpu(work: Path, options: argparse.Namespace) -> None:
    """Compare runs and the n-gram model on the same shard: words per second of the command, and perplexity."""
    shards = write_shards(work, "test", options.words, options.words)
    names = [path for path in sorted((work / "runs").iterdir()) if not path.name.endswith("-random")]
    models = {path.name: path for path in names} | {"KenLM 5-gram": work / "ngram.arpa"}
    if options.binary is not None:
        models["KenLM 5-gram, binary"] = options.binary
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    for _ in range(options.rounds):
        for name, path in models.items():
            out = work / "out"
            shutil.rmtree(out, ignore_errors=True)
            found[name].append(command("filter", path, shards, "--out", out, "--device", "cpu"))
    for name, records in found.items():
        rates = sorted(record["words_per_second"] for record in records)
        figures = {"words_per_second": statistics.median(rates), "lowest": rates[0], "highest": rates[-1]}
        tell(work, "cpu", model=name, **figures, perplexity=records[0]["perplexity"], num_words=records[0]["num_words"])


def make_lots(work: Path, num_passages: int) -> dict[str, Any]:
    """Take passages of the test text and spoil them in every way: what they are, and whether they are in pairs."""
    corpus = Corpus.open(work / "corpus")
    lines = list(read_documents(text_file(work, "test")))
    passages = judgement.make_passages(lines, corpus.normaliser, 2 * num_passages, seed=1)
    half = len(passages) // 2
    draw = random.Random(1)
    good, other = passages[:half], passages[half:]
    docstrings = list(read_docstrings(installed_modules(), 1))
    lots = {
        GOOD: (good, False),
        "other passages with 5% of the words replaced": (
            [judgement.replace_words(one, corpus.vocabulary, draw) for one in other],
            False,
        ),
        "docstrings": (judgement.make_passages(docstrings, corpus.normaliser, half, seed=1), False),
        "itself with 5% of the words replaced": (
            [judgement.replace_words(one, corpus.vocabulary, draw) for one in good],
            True,
        ),
        "itself with two sentences of another document": (judgement.swap_sentences(good, draw), True),
        "itself with its sentences shuffled": ([judgement.shuffle_sentences(one, draw) for one in good], True),
    }
    return {
        what: {"texts": list(map(judgement.to_text, some)), "paired": paired} for what, (some, paired) in lots.items()
    }


def judge(work: Path, options: argparse.Namespace) -> None:
    """Tell documents from spoilt ones, with every run and with the n-gram model, which is the last."""
    place = work / "judged"
    place.mkdir(exist_ok=True)
    path = place / "lots.json"
    if not path.exists():
        path.write_text(json.dumps(make_lots(work, options.passages)), encoding="utf-8")
    lots = json.loads(path.read_text(encoding="utf-8"))
    models = {path.name: path for path in sorted(work.glob("runs/*")) if not path.name.endswith("-random")}
    models |= {NGRAM: arpa} if (arpa := work / "ngram.arpa").exists() else {}
    for name, model in models.items():
        scored = place / f"{name}.perplexities.json"
        if not scored.exists():
            scorer = bnce.DocumentScorer(model, device=options.device if name != NGRAM else "cpu")
            found = {what: scorer(lot["texts"])["perplexity"] for what, lot in lots.items()}
            scored.write_text(json.dumps({what: list(map(float, some)) for what, some in found.items()}))
    known = {
        path.name.removesuffix(".perplexities.json"): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(place.glob("*.perplexities.json"))
    }
    if NGRAM not in known:
        return
    known[NGRAM] = known.pop(NGRAM)  # the last
    for what, lot in list(lots.items())[1:]:
        goods, bads = ([np.array(found[lot_name]) for found in known.values()] for lot_name in (GOOD, what))
        values, leads = judgement.intervals(goods, bads, lot["paired"])
        for name, value, lead in zip(known, values, leads, strict=True):
            measure = "share of pairs" if lot["paired"] else "ROC area"
            number = len(lot["texts"])
            tell(work, "judge", model=name, against=what, measure=measure, value=value, lead=lead, passages=number)


def kills(work: Path, options: argparse.Namespace) -> None:
    """Kill the command again and again in mid-shard, and compare what it ends with to an unbroken run."""
    path = find_run(work, options.model)
    shards = write_shards(work, "test", options.words, options.words // 6)
    arguments = ["filter", str(path), str(shards), "--device", "cpu", "--max-perplexity", "150,300"]
    whole, broken = work / "whole", work / "broken"
    for out in (whole, broken):
        shutil.rmtree(out, ignore_errors=True)
    command(*arguments, "--out", whole)
    draw, num_killed, num_mid = random.Random(1), 0, 0
    while num_killed < options.kills:
        child = subprocess.Popen(
            [sys.executable, "-m", "bnce", *arguments, "--out", str(broken)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while child.poll() is None and not list(broken.glob("head/.*.partial")):
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, options.delay))
        if child.poll() is not None:
            shutil.rmtree(broken)  # it came to its end: from the start
            continue
        num_mid += bool(list(broken.glob("head/.*.partial")))
        child.send_signal(signal.SIGKILL)
        child.wait()
        num_killed += 1
    found = command(*arguments, "--out", broken)

    def outputs(out: Path) -> dict[str, bytes]:
        names = (path for path in out.rglob("*") if path.is_file() and ".bnce" not in path.parts)
        return {str(path.relative_to(out)): path.read_bytes() for path in names}

    is_same = outputs(whole) == outputs(broken)
    counts = {
        "kills": num_killed,
        "in_mid_shard": num_mid,
        "num_documents": sum(data.count(b"\n") for data in outputs(broken).values()),
    }
    tell(work, "kills", **counts, num_shards=found["num_shards"], outputs_are_the_same=is_same)
    if not is_same:
        raise SystemExit("The outputs differ from those of the unbroken run.")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("work", type=Path)
    parser.add_argument("--train")
    parser.add_argument("--valid")
    parser.add_argument("--test")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--models", default="ffnn,rnn,relu-lstm")
    parser.add_argument("--model", default="relu-lstm")
    parser.add_argument("--loss", default="bnce")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--shard-words", type=int, default=SHARD_WORDS)
    parser.add_argument("--alone-documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--binary", type=Path, help="the n-gram model as a KenLM binary")
    parser.add_argument("--passages", type=int, default=600)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--delay", type=float, default=1.0, help="seconds in a shard before a kill, at most")
    parser.add_argument("--set", action="append", default=[], help="a setting of bnce train")
    options = parser.parse_args()
    STAGES[options.stage](options.work, options)


STAGES = {"make": make, "train": train, "speed": speed, "cpu": cpu, "judge": judge, "kills": kills}

if __name__ == "__main__":
    main()
