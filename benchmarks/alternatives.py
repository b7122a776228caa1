"""Compare alternatives to the softmax: the same search for each loss on validation text, then its final runs.

    python benchmarks/alternatives.py corpora/wiki --out experiments/alternatives
    python benchmarks/alternatives.py corpora/wiki --out experiments/alternatives --untimed  # N times, then the first

A trial trains on the text, or on part of it, and is judged on validation alone. Both learning rates of the recipe are
tried as they are, halved and doubled, then two values of a setting of the loss's own (where it has none, the body's
rate alone), each with the best of what came before. The settings with the lowest validation PPLf are trained with every
seed. Finished runs are kept and not repeated: the same command goes on. Trials, and the seeds after the first, may run
beside each other (--untimed, started several times). The run of the first seed has the machine to itself, and the
speeds of the table are its speeds.

Writes alternatives.md, alternatives.json and a plot per model into --out.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from alternatives_table import (
    ALTERNATIVES,
    BODY_RATE,
    CHOICE_FILE,
    SCORING_FILE,
    TRIALS,
    Alternative,
    Setting,
    Settings,
    lowest_perplexity,
    read_json,
    write_json,
    write_report,
)
from provenance import ROOT
from scoring_speed import measure_scoring

import bnce
from bnce.errors import BusyError
from bnce.machine.devices import choose_device, release_memory
from bnce.recipes import load_recipe
from bnce.registry import OptimiserConfig
from bnce.runs.directory import is_finished
from bnce.training.paper_tables import is_settled, tidy_up

MODELS = "relu-lstm,transformer"
RECIPES = {"transformer": "transformer"}  # of models whose recipe is not this one:
RECIPE = "wiki"
SEEDS = "2,3"  # not that of the trials
FACTORS = (0.5, 2.0)  # of both learning rates
UNREAD_TEST = 1000  # tokens of test that every run reads; trials are not judged by them
RATE = "optimiser.learning_rate"


@dataclass
class Comparison:
    """What all runs of one comparison share, and which of them failed."""

    corpus: Path
    out: Path
    recipe: str | None = None
    fixed: Settings = field(default_factory=dict)
    trial_tokens: int = 0  # 0: all of them
    seeds: Sequence[int] = (2, 3)
    device: str = "auto"
    keep_models: bool = True
    deadline: float = math.inf  # on the monotonic clock: no run starts after it
    failed: dict[str, str] = field(default_factory=dict)

    def compare(self, model: str, alternative: Alternative, *, untimed: bool = False) -> bool:
        """Search, and train the final runs, or those whose speed does not count; say whether there was time."""
        chosen = self.search(model, alternative)
        if chosen is None:
            return False
        complete = True
        for seed in self.seeds[1:] if untimed else self.seeds:
            name = f"{model}-{alternative.name}-seed{seed}"
            settings = {"training.max_test_tokens": 0, **chosen, "training.seed": seed}
            complete &= self.train(name, model, alternative.loss, settings, is_timed=seed == self.seeds[0])
        if not untimed:
            choices = {**read_json(self.out / CHOICE_FILE), f"{model}-{alternative.name}": chosen}
            write_json(self.out / CHOICE_FILE, choices)
        return complete

    def search(self, model: str, alternative: Alternative) -> dict[str, Setting] | None:
        """Find the settings with the lowest validation PPLf; None where time ran out or no trial stayed finite."""

        given = [f"{name}={json.dumps(value)}" for name, value in {**self.fixed, **alternative.settings}.items()]
        start = load_recipe(self.recipe_of(model), model=model, loss=alternative.loss, settings=given).optimiser
        shared: dict[str, Setting] = {"training.max_test_tokens": UNREAD_TEST}
        if self.trial_tokens:
            shared["training.max_train_tokens"] = self.trial_tokens
        best, lowest, number = dict(alternative.settings), math.inf, 0
        for list_changes in (_none, _rates, _knob):
            found = best
            for change in list_changes(start, alternative, best):
                number += 1
                tried = {**best, **change}
                name = f"{TRIALS}/{model}-{alternative.name}-{number}"
                if not self.train(name, model, alternative.loss, {**shared, **tried}):
                    return None
                perplexity = lowest_perplexity(self.out / name)
                if perplexity < lowest:
                    lowest, found = perplexity, tried
            best = found
        return best if math.isfinite(lowest) else None

    def train(self, name: str, model: str, loss: str, settings: Settings, *, is_timed: bool = False) -> bool:
        """Train a run, unless it is done; say whether it is, be it that it diverged."""
        path = self.out / name
        if not is_settled(path):
            if time.monotonic() > self.deadline:
                return False
            try:
                bnce.train(
                    self.recipe_of(model),
                    corpus=self.corpus,
                    out=path,
                    model=model,
                    loss=loss,
                    settings={**self.fixed, **settings},
                    resume=(path / "config.toml").is_file(),
                    device=self.device,
                )
            except BusyError:  # another copy of this command trains it
                return False
            except bnce.UserError as error:
                self.failed[name] = str(error)
            release_memory(choose_device(self.device))
            print(f"{name}: validation PPLf {lowest_perplexity(path):.2f}", file=sys.stderr, flush=True)
        if is_timed and is_finished(path) and not (path / SCORING_FILE).exists():
            corpus = bnce.Corpus.open(self.corpus)
            write_json(path / SCORING_FILE, measure_scoring(path, corpus, choose_device(self.device)))
        tidy_up(path, self.keep_models and not name.startswith(TRIALS))
        return is_settled(path)

    def recipe_of(self, model: str) -> str:
        """Name the recipe that a model is trained with."""
        return self.recipe or RECIPES.get(model, RECIPE)


def _none(start: OptimiserConfig, alternative: Alternative, best: Settings) -> list[dict[str, Setting]]:
    return [{}]


def _rates(start: OptimiserConfig, alternative: Alternative, best: Settings) -> list[dict[str, Setting]]:
    return [{RATE: start.learning_rate * factor, BODY_RATE: start.body_learning_rate * factor} for factor in FACTORS]


def _knob(start: OptimiserConfig, alternative: Alternative, best: Settings) -> list[dict[str, Setting]]:
    of_rate = alternative.knob == BODY_RATE
    unit = float(best.get(BODY_RATE, start.body_learning_rate)) if of_rate else 1.0
    return [{alternative.knob: unit * value} for value in alternative.values]


def register() -> None:
    """Register the losses that are not the package's own, as any script could."""
    sys.path.append(str(ROOT))  # where this runs as a script
    from benchmarks import losses

    losses.register()


def chosen_rows(names: str) -> list[Alternative]:
    """Find rows by their names, divided by commas."""
    by_name = {row.name: row for row in ALTERNATIVES}
    wanted = list(by_name) if names == "all" else names.split(",")
    if unknown := [name for name in wanted if name not in by_name]:
        raise SystemExit(f"No row is called {unknown[0]}: choose of {', '.join(by_name)}.")
    return [by_name[name] for name in wanted]


def read_settings(written: Iterable[str]) -> dict[str, Setting]:
    """Read KEY=VALUE settings; a bare word is a string."""
    settings: dict[str, Setting] = {}
    for name, _, text in (one.partition("=") for one in written):
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, train and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=MODELS, help=f"divided by commas ({MODELS})")
    parser.add_argument("--rows", default="all", help=f"of {', '.join(row.name for row in ALTERNATIVES)} (all)")
    parser.add_argument("--recipe", help="of all models (wiki, and transformer for that model)")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--seeds", default=SEEDS, help=f"of the final runs ({SEEDS})")
    parser.add_argument("--trial-tokens", type=int, default=0, help="training tokens of a trial (all of them)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after so long")
    parser.add_argument("--untimed", action="store_true", help="only what may run beside other copies of this command")
    parser.add_argument("--drop-models", action="store_true", help="keep the figures of finished runs alone")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    comparison = Comparison(
        corpus=given.corpus,
        out=given.out,
        recipe=given.recipe,
        fixed=read_settings(given.settings),
        trial_tokens=given.trial_tokens,
        seeds=[int(seed) for seed in given.seeds.split(",")],
        device=given.device,
        keep_models=not given.drop_models,
        deadline=time.monotonic() + 60 * given.minutes,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    pairs = [(model, row) for row in chosen_rows(given.rows) for model in given.models.split(",")]
    complete = [comparison.compare(model, row, untimed=given.untimed) for model, row in pairs]
    if not given.untimed:
        write_report(given.out)
        print((given.out / "alternatives.md").read_text(encoding="utf-8"))
    for name, why in comparison.failed.items():
        print(f"{name} failed: {why}", file=sys.stderr)
    if not all(complete):
        raise SystemExit("Some runs are not finished: the same command continues them.")


if __name__ == "__main__":
    register()
    main()
