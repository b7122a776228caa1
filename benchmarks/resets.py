"""Measure training with resets: perplexity in context and sentence by sentence, by loss, rate and seed.

bnce prepare train.txt --valid valid.txt --test test.txt --vocab-size 20000 --out corpora/small-wiki
python benchmarks/resets.py --corpus corpora/small-wiki --out resets.jsonl
python benchmarks/resets.py --out resets.jsonl --table                          # train nothing

A line per run goes into the file as the run ends, and what the file has is not run again. Seeds are the outermost loop,
so that a run that is broken off has whole tables of fewer seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

import bnce

Line = dict[str, Any]
KEY = ("corpus", "recipe", "model", "loss", "reset_rate", "seed", "set")


def read_lines(path: Path) -> list[Line]:
    """Read the runs that a file has."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def key_of(line: Line, names: tuple[str, ...] = KEY) -> str:
    """Name a run by its settings."""
    return json.dumps([line[name] for name in names])


def train(wanted: Line, given: argparse.Namespace) -> Line:
    """Train once, and give the figures of the best model on test."""
    settings: dict[str, Any] = {
        "training.checkpoint_seconds": math.inf,  # a run to be repeated rather than resumed
        "training.reset_rate": wanted["reset_rate"],
        "training.seed": wanted["seed"],
    }
    for setting in wanted["set"]:
        name, _, value = setting.partition("=")
        settings[name] = json.loads(value)
    with tempfile.TemporaryDirectory() as work:
        record = bnce.train(
            wanted["recipe"],
            corpus=given.corpus,
            model=wanted["model"],
            loss=wanted["loss"],
            out=Path(work) / "run",
            settings=settings,
            device=given.device,
        )
        test = record["test"]
        if "by_sentence" not in test:  # training without resets does not read the test twice
            most = int(settings.get("training.max_test_tokens", 0))
            evaluation = bnce.evaluate(Path(work) / "run", max_words=most, device=given.device).to_dict()
            test["by_sentence"] = evaluation["by_sentence"]
    return {
        "in_context": {name: test[name] for name in ("ppl_f", "ppl_n", "log_z_mean", "log_z_std")},
        "by_sentence": test["by_sentence"],
        "num_test_tokens": test["num_tokens"],
        "num_train_tokens": record["tokens"],
        "words_per_second": round(record["words_per_second"]),
        "train_seconds": round(record["train_seconds"], 1),
        "device": record["device"],
        "threads": torch.get_num_threads(),
        "torch": record["torch"],
        "commit": record["commit"],
    }


def measure(given: argparse.Namespace) -> None:
    """Train all that the file does not have."""
    done = {key_of(line) for line in read_lines(given.out)}
    for seed, loss, rate in itertools.product(
        map(int, given.seeds.split(",")), given.losses.split(","), map(float, given.rates.split(","))
    ):
        wanted = {
            "corpus": given.corpus.name,
            "recipe": given.recipe,
            "model": given.model,
            "loss": loss,
            "reset_rate": rate,
            "seed": seed,
            "set": given.settings,
        }
        if key_of(wanted) in done:
            continue
        line = {**wanted, **train(wanted, given)}
        print(json.dumps(line), flush=True)
        with open(given.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def markdown(lines: list[Line]) -> str:
    """Lay out PPLf and PPLn, in context and by sentence: mean ± deviation over seeds."""
    rows = [
        "| model | loss | reset_rate | seeds | PPLf in context | by sentence | PPLn in context | by sentence |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    groups: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: (line["loss"], line["reset_rate"], line["seed"])):
        groups.setdefault(key_of(line, (*KEY[:5], "set")), []).append(line)
    for members in groups.values():
        one = members[0]
        cells = [
            shown([line[how][name] for line in members if line[how][name] is not None])
            for name, how in itertools.product(("ppl_f", "ppl_n"), ("in_context", "by_sentence"))
        ]
        told = [one["model"], one["loss"], f"{one['reset_rate']:g}", str(len(members)), *cells]
        rows.append(f"| {' | '.join(told)} |")
    return "\n".join(rows)


def shown(values: list[float]) -> str:
    """Write the mean of some values, and their standard deviation."""
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="prepared corpus")
    parser.add_argument("--out", type=Path, required=True, metavar="JSONL", help="add a line per run to this file")
    parser.add_argument("--recipe", default="small", help="recipe (small)")
    parser.add_argument("--model", default="lstm", help="model (lstm)")
    parser.add_argument("--losses", default="bnce,chunk-bnce,softmax", help="losses, divided by commas")
    parser.add_argument("--rates", default="0,0.15,0.5", help="reset rates, divided by commas (0,0.15,0.5)")
    parser.add_argument("--seeds", default="1,2,3", help="seeds (1,2,3)")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help="as in train")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--table", action="store_true", help="print the table and train nothing")
    given = parser.parse_args()
    if not given.table:
        if given.corpus is None:
            parser.error("give --corpus DIR, or --table")
        measure(given)
    print(markdown(read_lines(given.out)))


if __name__ == "__main__":
    main()
