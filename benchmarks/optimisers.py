"""Compare the optimisers of our recipes: rates chosen on validation, then more seeds of what was chosen.

python benchmarks/optimisers.py --corpus corpora/wiki-1 --out trials.jsonl
python benchmarks/optimisers.py --recipe demo --out trials.jsonl                # on the demo's own text
python benchmarks/optimisers.py --out trials.jsonl --table                      # train nothing

For every model, loss and optimiser, all rates are tried with the first seed; the lowest validation PPLf chooses one,
which is trained with the other seeds. A line per run goes into the file as the run ends, and what the file has is not
run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import bnce

Line = dict[str, Any]
RATES = {"rowwise": "0.4,0.8", "rowwise-adam": "0.02,0.04", "sgd": "0.4"}
KEY = ("corpus", "recipe", "model", "loss", "optimiser", "rate", "seed", "set")
FIGURES = ("ppl_f", "ppl_n")


def read_lines(path: Path) -> list[Line]:
    """Read the runs that a file has."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def train(trial: Line, given: argparse.Namespace) -> Line:
    """Train once, and give the figures of the best model on validation and on test."""
    settings = {
        "training.checkpoint_seconds": math.inf,  # a run to be repeated rather than resumed
        "optimiser.name": trial["optimiser"],
        "optimiser.learning_rate": trial["rate"],
        "training.seed": trial["seed"],
        **dict(setting.split("=", 1) for setting in trial["set"]),
    }
    numbers = {key: json.loads(value) if isinstance(value, str) and value[:1].isdigit() else value
               for key, value in settings.items()}  # fmt: skip
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "run"
        try:
            record = bnce.train(
                trial["recipe"],
                corpus=given.corpus,
                model=trial["model"],
                loss=trial["loss"],
                out=out,
                settings=numbers,
                device=given.device,
            )
        except bnce.UserError as error:  # one run that diverges is a line; the others go on
            return {"error": str(error)[:400]}
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    best = min(lines, key=lambda line: float(line["ppl_f"]))
    found = {f"valid_{name}": best[name] for name in FIGURES} | {
        f"test_{name}": record["test"][name] for name in FIGURES
    }
    return {**found, "words_per_second": record["words_per_second"], "seconds": round(time.monotonic() - begin, 1)}


def search(given: argparse.Namespace) -> None:
    """Try every rate with the first seed, and the best one with the others."""
    rates = {**RATES, **dict(item.split("=", 1) for item in given.rates)}
    done = {key_of(line): line for line in read_lines(given.out)}

    def run(**wanted: Any) -> float:
        trial = {
            "corpus": given.corpus.name if given.corpus else "docstrings",
            "recipe": given.recipe,
            **wanted,
            "set": given.settings,
        }
        if key_of(trial) not in done:
            done[key_of(trial)] = line = {**trial, **train(trial, given)}
            print(json.dumps(line), flush=True)
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return float(done[key_of(trial)].get("valid_ppl_f") or math.inf)

    first, *others = map(int, given.seeds.split(","))
    for model, loss, optimiser in itertools.product(
        given.models.split(","), given.losses.split(","), given.optimisers.split(",")
    ):
        trials = [
            {"model": model, "loss": loss, "optimiser": optimiser, "rate": float(rate)}
            for rate in rates[optimiser].split(",")
        ]
        best = min(trials, key=lambda trial: run(**trial, seed=first))
        for seed in others:
            run(**best, seed=seed)


def key_of(line: Line, names: tuple[str, ...] = KEY) -> str:
    """Name a trial by its settings."""
    return json.dumps([line[name] for name in names])


def markdown(lines: list[Line]) -> str:
    """Lay out the figures: mean ± deviation over seeds."""
    names = [f"{split}_{figure}" for split in ("valid", "test") for figure in FIGURES]
    rows = [
        "| recipe | model | loss | optimiser | rate | seeds | valid PPLf | valid PPLn | test PPLf | test PPLn |",
        "|---|---|---|---|---:|---|---:|---:|---:|---:|",
    ]
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(key_of(line, (*KEY[:6], "set")), []).append(line)
    for members in groups.values():
        one = members[0]
        cells = [shown([line[name] for line in members if line.get(name) is not None]) for name in names]
        seeds = ", ".join(str(line["seed"]) for line in members)
        told = [one["recipe"], one["model"], one["loss"], one["optimiser"], f"{one['rate']:g}", seeds, *cells]
        rows.append(f"| {' | '.join(told)} |")
    return "\n".join(rows)


def shown(values: list[float]) -> str:
    """Write the mean of some values, and their standard deviation."""
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.5g}{deviation}"


def main() -> None:
    """Search, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="prepared corpus (the recipe's own)")
    parser.add_argument("--out", type=Path, required=True, metavar="JSONL", help="add a line per run to this file")
    parser.add_argument("--recipe", default="wiki", help="recipe (wiki)")
    parser.add_argument("--models", default="relu-lstm", help="models, divided by commas (relu-lstm)")
    parser.add_argument("--losses", default="bnce,chunk-bnce,softmax", help="losses, divided by commas")
    parser.add_argument("--optimisers", default="rowwise,rowwise-adam", help="optimisers, divided by commas")
    parser.add_argument("--rates", action="append", default=[], metavar="OPTIMISER=R,R", help=f"of tables; {RATES}")
    parser.add_argument("--seeds", default="1,2,3", help="seeds (1,2,3)")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help="as in train")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--table", action="store_true", help="print the table and train nothing")
    given = parser.parse_args()
    if not given.table:
        search(given)
    print(markdown(read_lines(given.out)))


if __name__ == "__main__":
    main()
