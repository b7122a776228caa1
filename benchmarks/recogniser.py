"""What a recogniser gains: an n-gram model, ReLu-LSTMs, an LSTM and Transformers of one text rescore real n-best lists.

    python benchmarks/recogniser.py --books DIR --lists DIR --work DIR --stage prepare,ngram       # CPU, needs kenlm
    python benchmarks/recogniser.py --books DIR --wiki DIR --lists DIR --work DIR --stage prepare,train,score     # GPU
    python benchmarks/recogniser.py --lists DIR --work DIR --stage rescore --out FILE.md           # CPU, without models

Books (train-*.txt.xz, valid.txt.xz, test.txt.xz) and encyclopedia text (train-*.txt.xz) are prepared with
`--tokens spoken`; the 80,000 words are those of the books. The lists are directories of dev-clean, dev-other,
test-clean and test-other .jsonl.xz. Weights are tuned on dev and judged on test once. Each stage leaves what it made
in the work directory and does not make it again: scores/NAME.npz has all that rescoring needs of a model, and
words/NAME.npz what mixing with another model word by word needs (recogniser_mix.py), so that models can stay where they
were trained. --small tries everything in minutes on a CPU, with tiny models.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from recogniser_rows import EXACT, HALVES, NGRAMS, PARTS, SETS, UNNORMALISED, make_rows, place_of, read_list, table
from recogniser_words import score_by_word, write_words

import bnce
from bnce.rescoring.rescore import score_nbest

STAGES = ("prepare", "ngram", "train", "score", "rescore")
VOCAB_SIZE = 80_000
RESETS = ("training.reset_rate=0.15",)
# Half the rates of the recipes, for a model that goes on from another.
HALF_RELU = ("optimiser.learning_rate=0.02", "optimiser.body_learning_rate=0.002")
HALF_TRANSFORMER = ("optimiser.learning_rate=0.001", "optimiser.body_learning_rate=0.0005")
LARGE = ("model.embedding_size=400", "model.hidden_size=1600", "model.bottleneck_size=400")


class Trained(NamedTuple):
    """A model: how it is called, what it is trained on, and the arguments of `bnce train`."""

    shown: str
    corpus: str
    arguments: tuple[str, ...]
    settings: tuple[str, ...] = ()
    init: str | None = None  # the run that it goes on from


RELU = ("wiki", "--model", "relu-lstm", "--loss", "chunk-bnce")
TRANSFORMER = ("transformer",)
# By value: what is asked for first, then what we expect to gain the most. Seconds are for an H200 at 7.2M (ReLu-LSTM),
# 3.7M (large) and 2.1M words/s (Transformer); books have 27M tokens, books and wiki about 115M.
MODELS = {
    "transformer-both": Trained(
        "Transformer 512 × 6, books + wiki, 1 epoch", "both", TRANSFORMER, (*RESETS, "training.epochs=1")
    ),  # 55 s
    "transformer-adapted": Trained(
        "the same, then books, 1 epoch",
        "books",
        TRANSFORMER,
        (*RESETS, *HALF_TRANSFORMER, "training.epochs=1"),
        "transformer-both",
    ),  # 13 s
    "relu-lstm-large-both": Trained(
        "ReLu-LSTM 400–1600–400, books + wiki, 1 epoch", "both", RELU, (*RESETS, *LARGE, "training.epochs=1")
    ),  # 32 s
    "relu-lstm-large-adapted": Trained(
        "the same, then books, 1 epoch",
        "books",
        RELU,
        (*RESETS, *LARGE, *HALF_RELU, "training.epochs=1"),
        "relu-lstm-large-both",
    ),  # 8 s
    "relu-lstm-large": Trained(
        "ReLu-LSTM 400–1600–400, books, 2 epochs", "books", RELU, (*RESETS, *LARGE, "training.epochs=2")
    ),  # 15 s
    "transformer": Trained(
        "Transformer 512 × 6, books, 2 epochs", "books", TRANSFORMER, (*RESETS, "training.epochs=2")
    ),  # 26 s
    "relu-lstm": Trained(
        "ReLu-LSTM 200–600–400, books, 2 epochs", "books", RELU, (*RESETS, "training.epochs=2")
    ),  # 8 s
    "lstm": Trained(
        "LSTM 512–1024, books, 2 epochs",
        "books",
        ("wiki", "--model", "lstm", "--loss", "chunk-bnce"),
        (*RESETS, "model.embedding_size=512", "model.hidden_size=1024", "training.epochs=2"),
    ),  # about 25 s
    "relu-lstm-large-no-resets": Trained(
        "ReLu-LSTM 400–1600–400, books, 2 epochs, no resets", "books", RELU, (*LARGE, "training.epochs=2")
    ),  # 15 s
    "relu-lstm-large-dropout": Trained(
        "ReLu-LSTM 400–1600–400, books, 4 epochs, dropout 0.2",
        "books",
        RELU,
        (*RESETS, *LARGE, "training.epochs=4", "model.dropout=0.2"),
    ),  # 30 s
    "transformer-dropout": Trained(
        "Transformer 512 × 6, books, 4 epochs, dropout 0.1",
        "books",
        TRANSFORMER,
        (*RESETS, "training.epochs=4", "model.dropout=0.1"),
    ),  # 52 s
}
SMALL = (
    *("model.embedding_size=16", "model.hidden_size=16", "training.batch_size=16", "training.num_steps=10"),
    *("training.max_train_tokens=20000", "training.max_valid_tokens=2000", "training.max_test_tokens=2000"),
)


class Work:
    """A place for everything, and the commands that were run there."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.directory: Path = given.work
        self.limit = 12 if given.small else 0
        self.vocab_size = 2000 if given.small else VOCAB_SIZE

    def run(self, *arguments: object, makes: Path) -> None:
        """Run a command of bnce, unless what it makes is there."""
        if makes.exists():
            return
        line = shlex.join(("bnce", *map(str, arguments)))
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "bnce", *map(str, arguments)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{line}\n{done.stderr[-4000:]}")
        seconds = time.monotonic() - begin
        print(f"{seconds:7.1f} s  {line}", flush=True)
        with open(self.directory / "commands.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"command": line, "seconds": round(seconds, 1)}) + "\n")

    def sources(self, directory: Path) -> list[Path]:
        """List training text; of the small trial the smallest files."""
        if directory is None:
            raise SystemExit("Give --books and --wiki: text is prepared from them.")
        return [directory / "valid.txt.xz"] if self.given.small else sorted(directory.glob("train-*.txt.xz"))


def prepare(work: Work) -> None:
    """Prepare both corpora, with the words of the books."""
    given = work.given
    books, both = work.directory / "books", work.directory / "both"
    held_out = ("--valid", given.books / "valid.txt.xz", "--test", given.books / "test.txt.xz", "--tokens", "spoken")
    text = work.sources(given.books)
    work.run("prepare", *text, *held_out, "--vocab-size", work.vocab_size, "--out", books, makes=books)
    if given.wiki is not None:
        text += work.sources(given.wiki)
        work.run("prepare", *text, *held_out, "--vocab", books / "vocab.txt", "--out", both, makes=both)


def count(work: Work) -> None:
    """Count an n-gram model of each text, and score all hypotheses with it; this needs kenlm and no GPU."""
    pruned = ("--order", 5, "--prune", "0,0,1,1,1")
    for corpus, name in NGRAMS.items():
        if (work.directory / corpus).exists():
            arpa = work.directory / f"{name}.arpa"
            work.run("ngram", work.directory / corpus, *pruned, "--out", arpa, makes=arpa)
            write_scores(work, name, arpa)


def ngram_of(name: str) -> str:
    """Name the n-gram model of the text that a model has read."""
    one = MODELS[name]
    return NGRAMS[one.corpus if one.init is None else MODELS[one.init].corpus]


def train(work: Work, names: list[str]) -> None:
    """Train the models, one after the other; one that goes on from another needs that first."""
    for name in names:
        one, out = MODELS[name], work.directory / "runs" / name
        if not (work.directory / one.corpus).exists():
            print(f"{name} is left out: there is no corpus '{one.corpus}'.")
            continue
        start = () if one.init is None else ("--init", work.directory / "runs" / one.init)
        settings = [*one.settings, *(SMALL if work.given.small else ())]
        if work.given.small and "relu-lstm" in name:
            settings.append("model.bottleneck_size=8")
        options = [part for setting in (*settings, *work.given.settings) for part in ("--set", setting)]
        corpus = ("--corpus", work.directory / one.corpus)
        device = ("--device", work.given.device)
        makes = out / "evaluation.json"
        work.run("train", *one.arguments, *start, *corpus, "--out", out, *options, *device, makes=makes)
        for state in out.glob("state-*"):
            state.unlink()  # a run to be repeated rather than resumed
        keep_figures(work, name, out)


def keep_figures(work: Work, name: str, run: Path) -> None:
    """Write what the table says of a run into a file of its own, which is all that has to leave the machine."""
    summary, test = (
        json.loads((run / f"{part}.json").read_text(encoding="utf-8")) for part in ("summary", "evaluation")
    )
    kept = {"test": {key: test.get(key) for key in ("ppl_f", "ppl_n", "by_sentence")}}
    kept |= {key: summary.get(key) for key in ("tokens", "train_seconds", "device", "torch", "bnce")}
    path = work.directory / "trained" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def score(work: Work, names: list[str]) -> None:
    """Score all hypotheses with every model that is there, in both modes."""
    for name in names:
        run = work.directory / "runs" / name
        if (run / "evaluation.json").exists():
            write_scores(work, name, run)


def write_scores(work: Work, name: str, path: Path) -> None:
    """Write ln p and the number of unknown words of all hypotheses, by list and mode."""
    out = work.directory / "scores" / f"{name}.npz"
    if out.exists():
        return
    out.parent.mkdir(exist_ok=True)
    begin = time.monotonic()
    model = bnce.load(path, device="cpu" if name in NGRAMS.values() else work.given.device)
    found, by_word = {}, {}
    for set_name, half, part in itertools.product(SETS, HALVES, PARTS):
        nbest = read_list(work.given.lists, set_name, half, part, work.limit)
        place = place_of(set_name, half, part, UNNORMALISED)
        by_word[place], found[place] = score_by_word(model, nbest)
        if model.kind != "n-gram":
            exact, _ = score_nbest(model, nbest, mode="normalised")
            found[place_of(set_name, half, part, EXACT)] = np.stack([exact.lm_N, exact.num_oov_N])
    write_words(work.directory / "words" / f"{name}.npz", by_word)
    with open(out.with_suffix(".part"), "wb") as file:
        np.savez_compressed(file, **found)
    out.with_suffix(".part").rename(out)
    del model
    gc.collect()
    print(f"{time.monotonic() - begin:7.1f} s  scores of {name}", flush=True)


def perplexities(work: Work, names: list[str]) -> list[str]:
    """Lay out what training found, for the runs that are there."""
    lines = [
        "| model | PPLf in context | by sentence | PPLn by sentence | training tokens | seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        path = work.directory / "trained" / f"{name}.json"
        if not path.exists():
            continue
        known = json.loads(path.read_text(encoding="utf-8"))
        test = known["test"]
        apart = test.get("by_sentence") or {}
        cells = [f"{value:.1f}" if value else "" for value in (test["ppl_f"], apart.get("ppl_f"), apart.get("ppl_n"))]
        seconds = known.get("train_seconds")
        told = [MODELS[name].shown, *cells, f"{known['tokens']:,}", f"{seconds:.1f}" if seconds else ""]
        lines.append(f"| {' | '.join(told)} |")
    return [*lines, ""]


def rescore(work: Work, names: list[str]) -> None:
    """Tune, judge and write the table."""
    wanted = {name: name for name in NGRAMS.values()} | {name: ngram_of(name) for name in names}
    scored = {name: of for name, of in wanted.items() if (work.directory / "scores" / f"{name}.npz").exists()}
    num_processes = work.given.processes or min(len(os.sched_getaffinity(0)), 16)
    rows = make_rows(work.directory, work.given.lists, scored, work.limit, num_processes)
    shown = {NGRAMS["books"]: "5-gram, books", NGRAMS["both"]: "5-gram, books + wiki"}
    shown |= {name: MODELS[name].shown for name in names}
    rates = table(rows, scored, shown)
    text = "\n".join(["## Perplexity", "", *perplexities(work, names), "## Word error rates", "", *rates])
    print(text)
    if work.given.out is not None:
        work.given.out.write_text(text, encoding="utf-8")


def main() -> None:
    """Go through the stages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", type=Path, help="directory of the books")
    parser.add_argument("--wiki", type=Path, help="directory of the encyclopedia text; without it books alone")
    parser.add_argument("--lists", type=Path, required=True, help="directory of the sets of lists")
    parser.add_argument("--work", type=Path, required=True, help="directory for corpora, models, scores and rows")
    parser.add_argument("--stage", default=",".join(STAGES), help=f"stages, divided by commas: {', '.join(STAGES)}")
    parser.add_argument("--only", default=",".join(MODELS), help="models, divided by commas (all, in order of value)")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help="as in train")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--processes", type=int, default=0, help="processes for tuning (one per core)")
    parser.add_argument("--small", action="store_true", help="try everything: tiny models, a few utterances")
    parser.add_argument("--out", type=Path, help="write the tables to this file")
    work = Work(parser.parse_args())
    stages, names = work.given.stage.split(","), work.given.only.split(",")
    unknown = [*(set(stages) - set(STAGES)), *(set(names) - set(MODELS))]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    work.directory.mkdir(parents=True, exist_ok=True)
    if "prepare" in stages:
        prepare(work)
    if "ngram" in stages:
        count(work)
    if "train" in stages:
        train(work, names)
    if "score" in stages:
        score(work, names)
    if "rescore" in stages:
        rescore(work, names)


if __name__ == "__main__":
    main()
