"""Search the settings of row-wise Adagrad, the same search for every loss, on validation text alone.

Coordinate descent: the settings are gone through in a fixed order, each of a setting's other values is tried with the
best of everything before it, and kept when validation PPLf is lower. Every trial is one line of `trials.jsonl`; those
that are there with the same settings and corpus are not run again. `best.json` has the losses that were searched whole.

    python benchmarks/search.py corpora/wiki --out experiments/search --tokens 10240000
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

from bnce.corpus.store import Corpus
from bnce.errors import DivergedError
from bnce.files import to_json
from bnce.machine.devices import choose_device, release_memory
from bnce.recipes import load_recipe
from bnce.runs.directory import Run
from bnce.settings import RunConfig, to_tables
from bnce.training.trainer import Trainer

START = {
    "optimiser.learning_rate": 0.2,
    "optimiser.body_learning_rate": 0.004,
    "optimiser.schedule": "linear",
    "optimiser.warmup_steps": 500,
    "model.dropout": 0.0,
    "training.num_steps": 20,
    "loss.log_z": 9.0,
}
# In the order they are searched. A rate goes on in the direction that helped for as long as it helps.
VALUES: dict[str, list[Any]] = {
    "optimiser.schedule": ["cosine"],
    "optimiser.warmup_steps": [100],
    "model.dropout": [0.1],
    "training.num_steps": [40, 10],
    "loss.log_z": [7.0],
}
ORDER = [
    "optimiser.learning_rate",
    "optimiser.body_learning_rate",
    "optimiser.schedule",
    "optimiser.warmup_steps",
    "model.dropout",
    "training.num_steps",
    "loss.log_z",
]
MAX_DOUBLINGS = 3


class Silent:
    """An observer that keeps the last evaluation."""

    record: dict[str, Any] | None = None

    def advanced(self, *, tokens: int, words_per_second: float, loss: float, seconds_left: float | None) -> None:
        """Hear of progress."""

    def evaluating(self, split: str, num_done: int, num_tokens: int) -> None:
        """Hear of an evaluation's progress."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """Remember the figures."""
        self.record = record

    def noticed(self, sentence: str) -> None:
        """Hear of something worth a line."""


class Search:
    """One loss's search, with its trials on disk."""

    def __init__(self, corpus: Path, out: Path, model: str, loss: str, fixed: list[str], deadline: float) -> None:
        self.corpus, self.out, self.model, self.loss, self.fixed = Corpus.open(corpus), out, model, loss, fixed
        self.deadline = deadline
        self.device = choose_device("auto")
        self.path = out / "trials.jsonl"
        self.done = {to_json(trial["decided_by"]): trial for trial in read_trials(self.path) if "decided_by" in trial}
        self.is_out_of_time = False

    def run(self) -> dict[str, Any] | None:
        """Go through the settings; returns the best, or None where time ran out or no trial stayed finite."""
        best, self.is_out_of_time = dict(START), False
        lowest = self.trial(best, "start")
        self.trial(best, "start, another seed", seed=2)
        for name in ORDER:
            if name == "loss.log_z" and self.loss == "softmax":
                continue
            candidates = [[value] for value in VALUES[name]] if name in VALUES else self._directions(best[name])
            found = dict(best)
            for direction in candidates:
                for value in direction:
                    tried = {**best, name: value}
                    perplexity = self.trial(tried, f"{name} = {value}")
                    if perplexity >= lowest:
                        break
                    lowest, found = perplexity, tried
            best = found
        if self.is_out_of_time or not math.isfinite(lowest):
            why = "time ran out: run it again to go on" if self.is_out_of_time else "no trial stayed finite"
            print(f"{self.loss}: no best settings, {why}.", flush=True)
            return None
        print(f"{self.loss}: PPLf {lowest:.2f} with {best}", flush=True)
        return best

    @staticmethod
    def _directions(rate: float) -> list[list[float]]:
        return [[round(rate * 2.0 ** (sign * n), 6) for n in range(1, MAX_DOUBLINGS + 1)] for sign in (1, -1)]

    def trial(self, settings: dict[str, Any], what: str, seed: int = 1) -> float:
        """Train once, or read what was trained, and give validation PPLf; a seed among the settings goes first."""
        settings = {"training.seed": seed, **settings}
        written = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        config = load_recipe("wiki", model=self.model, loss=self.loss, settings=[*self.fixed, *written])
        decided_by = {
            "vocabulary_digest": self.corpus.vocabulary.digest,
            "num_corpus_train_tokens": self.corpus.statistics["train"].num_tokens,
            **to_tables(config),
        }
        key = to_json(decided_by)
        if key not in self.done:
            if time.monotonic() > self.deadline:
                self.is_out_of_time = True
                return math.inf
            self.done[key] = {
                "loss": self.loss,
                "what": what,
                "settings": settings,
                **self._train(config),
                "decided_by": decided_by,
            }
            append_line(self.path, to_json(self.done[key]))
        trial = self.done[key]
        print(
            f"{self.loss:11} {what:45} PPLf {trial['ppl_f']} PPLn {trial['ppl_n']} {trial['seconds']:.1f} s", flush=True
        )
        return trial["ppl_f"] if trial["ppl_f"] is not None else math.inf

    def _train(self, config: RunConfig) -> dict[str, Any]:
        path = self.out / "trial"
        shutil.rmtree(path, ignore_errors=True)
        observer, begin = Silent(), time.monotonic()
        try:
            Trainer(Run.create(path, config, self.corpus), self.corpus, self.device, observer).train()
        except DivergedError as error:  # a rate that is too high
            observer.record = {"ppl_f": None, "ppl_n": None, "seconds": 0.0, "error": str(error)}
        record = observer.record or {}
        shutil.rmtree(path, ignore_errors=True)
        release_memory(self.device)
        return {
            **{key: record.get(key) for key in ("ppl_f", "ppl_n", "log_z_mean", "log_z_std", "seconds", "error")},
            "wall_seconds": time.monotonic() - begin,
        }


def read_trials(path: Path) -> list[dict[str, Any]]:
    """Read the trials that are there; a line that a crash tore is no trial."""
    trials = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            trials.append(json.loads(line))
    return [trial for trial in trials if isinstance(trial, dict)]


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, behind an end for the last one where a crash tore it."""
    before = path.read_bytes() if path.is_file() else b""
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if before and not before.endswith(b"\n") else "") + line + "\n")


def main() -> None:
    """Search for every loss in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="relu-lstm")
    parser.add_argument("--losses", default="bnce,chunk-bnce,softmax")
    parser.add_argument("--tokens", type=int, default=10_240_000, help="training words of a trial, one epoch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument(
        "--try", action="append", default=[], dest="tries", metavar="KEY=VALUE,…", help="these trials and no search"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no trial after so long")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    fixed = [
        "optimiser.name=rowwise",
        f"training.max_train_tokens={given.tokens}",
        f"training.epochs={given.epochs}",
        "training.evaluations_per_epoch=1",
        *given.settings,
    ]
    deadline = time.monotonic() + 60 * given.minutes
    if given.tries:
        for loss in given.losses.split(","):
            search = Search(given.corpus, given.out, given.model, loss, fixed, deadline)
            for text in given.tries:
                pairs = (pair.split("=", 1) for pair in text.split(","))
                search.trial({**START, **{key: json.loads(value) for key, value in pairs}}, text)
        return
    found = {
        loss: Search(given.corpus, given.out, given.model, loss, fixed, deadline).run()
        for loss in given.losses.split(",")
    }
    if best := {loss: settings for loss, settings in found.items() if settings is not None}:
        (given.out / "best.json").write_text(to_json(best) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
