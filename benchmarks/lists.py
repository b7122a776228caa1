"""What rescoring real n-best lists gains: a trigram, the ReLu-LSTM and the Transformer of one text, and mixtures.

    python benchmarks/lists.py --books DIR --lists DIR --work DIR --out benchmarks/results/h200/lists.md

The books (train-*.txt.xz, valid.txt.xz, test.txt.xz) are brought into the form of transcripts: sentences are cut at
. ! ? and ;, letters become lower case, everything but letters and apostrophes is left out. The lists
(dev-clean, dev-other, test-clean, test-other .jsonl.xz; "id", "ref", "hyps" with "text", best first) lose their scores,
so that only their order is left. Weights are tuned on dev and judged on test. Every figure comes from the
commands that the report names; what is in DIR already is not made again.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PARTS = ("other", "clean")
VOCAB_SIZE = 80_000
# In the order of the table: a name, and the arguments of `bnce train`.
RUNS = {
    "relu-lstm": ["wiki", "--model", "relu-lstm", "--loss", "chunk-bnce"],
    "transformer": ["transformer"],
}
MODELS = {
    "trigram": "trigram of the same text",
    "relu-lstm": "ReLu-LSTM, chunk B-NCE",
    "transformer": "Transformer, chunk B-NCE",
    "mixture": "Transformer and trigram, interpolated",
    "all": "all three, interpolated",
}


INTRODUCTION = """\
10-best lists of an ESPnet recogniser (100 hours of LibriSpeech, no language model in decoding) with the scores left
out, so that only their order is left. The lists are not part of this project; public source: the repository
saagar-parikh/ASR_LLM_Rescoring, commit 2383f20f, MIT licence. All models are of the same text: books of Project
Gutenberg in the form of transcripts, none of them read in the recordings. Weights were tuned on dev-other for
test-other and on dev-clean for test-clean; each utterance starts afresh. The intervals come from the paired bootstrap
of `bnce rescore`. Made by `benchmarks/lists.py`."""


class Commands:
    """Runs commands of bnce in a directory, and keeps them for the report."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.lines: list[str] = []

    def run(self, *arguments: str, makes: str | None = None) -> str:
        """Run one, unless what it makes is there; give what it prints."""
        line = shlex.join(("bnce", *arguments))
        self.lines.append(line)
        if makes is not None and (self.work / makes).exists():
            return ""
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "bnce", *arguments], cwd=self.work, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{line}\n{done.stderr}")
        print(f"{time.monotonic() - begin:7.1f} s  {line}", flush=True)
        return done.stdout


def spoken(path: Path) -> Iterator[str]:
    """Give the sentences of a book as a transcript would have them; an empty line ends a book."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            text = re.sub(r"[^a-z'.!?; \n]", " ", line.replace("--", " ").replace("’", "'").lower())
            sentences = (
                " ".join(word for word in (part.strip("'") for part in sentence.split()) if word)
                for sentence in re.split(r"[.!?;]+", text)
            )
            kept = [sentence for sentence in sentences if sentence]
            yield from (f"{sentence}\n" for sentence in kept)
            if not line.strip():
                yield "\n"


def write_texts(books: Path, work: Path) -> None:
    """Write train.txt, valid.txt and test.txt."""
    for split in ("train", "valid", "test"):
        out = work / f"{split}.txt"
        if not out.exists():
            with open(out.with_suffix(".part"), "w", encoding="utf-8") as file:
                for path in sorted(books.glob(f"{split}*.txt.xz")):
                    file.writelines(spoken(path))
                    file.write("\n")
            out.with_suffix(".part").rename(out)


def write_lists(lists: Path, work: Path) -> None:
    """Write the lists without scores, and their references."""
    for half in ("dev", "test"):
        for part in PARTS:
            with (
                lzma.open(lists / f"{half}-{part}.jsonl.xz", "rt", encoding="utf-8") as source,
                open(work / f"{half}-{part}.jsonl", "w", encoding="utf-8") as hypotheses,
                open(work / f"{half}-{part}.ref", "w", encoding="utf-8") as references,
            ):
                for line in source:
                    record = json.loads(line)
                    kept = {"id": record["id"], "hyps": [hypothesis["text"] for hypothesis in record["hyps"]]}
                    hypotheses.write(json.dumps(kept) + "\n")
                    references.write(f"{record['id']} {record['ref']}\n")


def count(commands: Commands) -> None:
    """Prepare the corpus and count the trigram, which needs no GPU."""
    commands.run(
        *("prepare", "train.txt", "--valid", "valid.txt", "--test", "test.txt", "--vocab-size", str(VOCAB_SIZE)),
        *("--tokens", "whitespace", "--sentences", "lines", "--out", "corpus"),
        makes="corpus",
    )
    commands.run("ngram", "corpus", "--order", "3", "--prune", "0,0,1", "--out", "trigram.arpa", makes="trigram.arpa")


def train(commands: Commands, device: str) -> dict[str, str]:
    """Train the models and mix them; give the file or directory of each."""
    for name, arguments in RUNS.items():
        commands.run(
            *("train", *arguments, "--corpus", "corpus", "--out", name, "--device", device),
            makes=f"{name}/evaluation.json",
        )
    for name, parts in (("mixture", ["transformer", "trigram.arpa"]), ("all", [*RUNS, "trigram.arpa"])):
        commands.run(*("interpolate", *parts, "--valid", "valid.txt", "--out", f"{name}.toml"), makes=f"{name}.toml")
    return {"trigram": "trigram.arpa", **{name: name for name in RUNS}, "mixture": "mixture.toml", "all": "all.toml"}


def rescore(commands: Commands, model: str, part: str, device: str) -> dict[str, Any]:
    """Tune on dev, and judge on test."""
    weights = f"{Path(model).stem}-{part}.json"
    where = ("--device", device)
    commands.run(
        *("rescore", model, f"dev-{part}.jsonl", "--tune", f"dev-{part}.ref", "--save-weights", weights, *where),
        *("--out", f"{Path(model).stem}-dev-{part}.txt"),
        makes=weights,
    )
    printed = commands.run(
        *("rescore", model, f"test-{part}.jsonl", "--weights", weights, "--refs", f"test-{part}.ref", *where),
        *("--out", f"{Path(model).stem}-test-{part}.txt", "--json"),
    )
    found: dict[str, Any] = json.loads(printed)
    return found


def markdown(results: dict[str, dict[str, Any]], commands: Commands) -> str:
    """Write a table per half of the test, and the commands."""
    lines = ["# Real lists without scores", "", *INTRODUCTION.splitlines(), ""]
    for part in PARTS:
        first = next(iter(results.values()))[part]
        words = first["before"]["num_words"]
        lines += [
            f"| test-{part}, {words:,} words | WER | 95% interval | difference to first best, points | 95% interval |",
            "|---|---:|---:|---:|---:|",
            f"| first best | {_rate(first['before'])} | | |",
        ]
        for name, found in results.items():
            errors = found[part]
            low, high = errors["difference"]["interval"]
            lines.append(
                f"| {MODELS[name]} | {_rate(errors['after'])} | {100 * errors['difference']['wer']:+.2f} "
                f"| {100 * low:+.2f} to {100 * high:+.2f} |"
            )
        lines += [f"| oracle | {_rate(first['oracle'])} | | |", ""]
    return "\n".join([*lines, "## Commands", "", *(f"    {line}" for line in commands.lines), ""])


def _rate(errors: dict[str, Any]) -> str:
    low, high = errors["interval"]
    return f"{100 * errors['wer']:.2f}% | {100 * low:.2f}–{100 * high:.2f}"


def main() -> None:
    """Make the texts, the models and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", type=Path, required=True, help="directory of the books")
    parser.add_argument("--lists", type=Path, required=True, help="directory of the lists")
    parser.add_argument("--work", type=Path, required=True, help="directory for texts, models and results")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--count", action="store_true", help="stop after the corpus and the trigram, before training")
    parser.add_argument("--out", type=Path, help="write the table to this file")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    write_texts(given.books, given.work)
    write_lists(given.lists, given.work)
    commands = Commands(given.work)
    count(commands)
    if given.count:
        return
    models = train(commands, given.device)
    results: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        for name, model in models.items():
            results.setdefault(name, {})[part] = rescore(commands, model, part, given.device)
            (given.work / "lists.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    text = markdown(results, commands)
    print(text)
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
