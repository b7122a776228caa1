"""Damaged files: of a corpus, of runs, and whatever else a command reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .bed import SETTINGS, TRAIN, Bed
from .damage import copy, damage
from .process import bnce
from .verdict import Outcome, Verdict, judge

# Without a checksum or a length, by their formats: people write and change these with an editor.
PLAIN = (".txt", ".tsv", ".arpa", ".jsonl", ".toml", ".json")
# Pages of Parquet may have a checksum, but writers leave it out by default.
NO_SUM = (*PLAIN, ".parquet")
SUMMED = (".npy", ".safetensors")
# Figures that were taken once, for people and for 'bnce compare'; nothing is computed from them.
FIGURES = ("summary.json", "metrics.jsonl", "evaluation.json")


@dataclass(frozen=True)
class Scene:
    """A command, what it needs, and which of that may be damaged."""

    needs: tuple[str, ...]
    damaged: str  # one of those: a file, or a directory of which one file is chosen
    arguments: tuple[str, ...]
    weight: int = 1
    unseen: Callable[[Path], bool] = lambda path: False
    finds: bool = False  # damage, with a status of its own

    def set_up(self, bed: Bed) -> None:
        """Copy what it needs into this directory."""
        for name in self.needs:
            copy(bed.path / name)

    def expect(self, bed: Bed) -> Outcome:
        """Say what comes of it undamaged."""
        self.set_up(bed)
        outcome = bnce(*self.arguments)
        if outcome.status:
            raise AssertionError(f"bnce {' '.join(self.arguments)}: {outcome.stderr}")
        return outcome

    def run(self, bed: Bed, name: str, chance: Random) -> Verdict:
        """Damage, run, judge."""
        self.set_up(bed)
        target = Path(self.damaged)
        if target.is_dir():
            found = sorted(path for path in target.rglob("*") if path.is_file())
            # Events are for TensorBoard alone.
            (target,) = chance.choices(found, [0.1 if "tfevents" in path.name else 1.0 for path in found])
        unseen = self.unseen(target)
        before = {path.name for path in Path().iterdir()}
        what = f"{target.parent}/{damage(chance, target)}; bnce {' '.join(self.arguments)}"
        verdict = judge(
            bnce(*self.arguments),
            what,
            bed.expected[name],
            damaged=target.name,
            unseen=unseen,
            finds=self.finds,
        )
        if self.finds and verdict.word == "same" and target.suffix in SUMMED:
            return Verdict("silent", what, "the damage was not found")
        return verdict if verdict.failed else find_litter(verdict, before)


def find_litter(verdict: Verdict, before: set[str]) -> Verdict:
    """Refuse what a refused command leaves: halves of files, and a run directory that is in the way of the next."""
    if verdict.word == "refused":
        for path in Path().iterdir():
            if path.name not in before and path.name.endswith(".partial"):
                return Verdict("litter", verdict.what, f"{path.name} is left")
        if "out" not in before and Path("out/config.toml").is_file() and not Path("out/summary.json").is_file():
            return Verdict("litter", verdict.what, "a run that never began is left at out")
    return verdict


def _corpus(*arguments: str, weight: int = 1, needs: tuple[str, ...] = ("corpus",)) -> Scene:
    return Scene(needs, "corpus", arguments, weight)


CORPUS = {
    "corpus info": _corpus("info", "corpus", "--batch-size", "8", "--json", weight=3),
    "corpus evaluate test": _corpus(
        "evaluate", "run", "--corpus", "corpus", "--json", weight=4, needs=("corpus", "run")
    ),
    "corpus evaluate valid": _corpus(
        "evaluate", "run", "--corpus", "corpus", "--split", "valid", "--json", weight=2, needs=("corpus", "run")
    ),
    "corpus train": _corpus(*TRAIN, *SETTINGS, weight=3),
    "corpus check": Scene(("corpus",), "corpus", ("info", "corpus", "--check", "--json"), 3, finds=True),
}


def _is_figures(path: Path) -> bool:
    return path.name in FIGURES or "tfevents" in path.name


def _is_shown(path: Path) -> bool:
    """Tell what 'info' and 'compare' show as it stands; what the model needs of the settings is compared with it."""
    return _is_figures(path) or path.name == "config.toml"


def _run(*arguments: str, weight: int = 1, run: str = "run", needs: tuple[str, ...] = ()) -> Scene:
    return Scene((run, *needs), run, arguments, weight, _is_figures)


RUN = {
    "run score": _run("score", "run", "text.txt", "--json", weight=4, needs=("text.txt",)),
    "run score normalised": _run(
        "score", "run", "text.txt", "--mode", "normalised", "--layout", "jsonl", needs=("text.txt",)
    ),
    "run evaluate": _run("evaluate", "run", "--corpus", "corpus", "--json", weight=2, needs=("corpus",)),
    "run info": Scene(("run",), "run", ("info", "run", "--json"), 3, _is_shown),
    "run compare": Scene(("run", "other"), "run", ("compare", "run", "other", "--json"), 2, _is_shown),
    "run generate": _run("generate", "run", "--num", "2", "--max-words", "8", "--json"),
    "run rescore": _run("rescore", "run", "nbest.tsv", "--json", needs=("nbest.tsv",)),
    "run export": _run("export", "run", "--to", "safetensors", "--rows", "int8", "--out", "out", "--json"),
    "run vocab": _run("vocab", "run", "--add", "add.tsv", "--out", "out", "--json", needs=("add.tsv",)),
    "run resume": _run(
        "train", "--out", "stopped", "--resume", "--corpus", "corpus", "--json", weight=4, run="stopped",
        needs=("corpus",),
    ),
    # Whoever needs room may remove states.
    "run check": Scene(
        ("run",), "run", ("info", "run", "--check", "--json"), 3,
        lambda path: _is_figures(path) or path.name.startswith("state-"), finds=True,
    ),
    "run changed": _run("score", "changed", "text.txt", "--json", weight=2, run="changed", needs=("text.txt",)),
}  # fmt: skip


def _input(name: str, *arguments: str, needs: tuple[str, ...] = (), weight: int = 1) -> Scene:
    return Scene((name, *needs), name, arguments, weight, lambda path: path.suffix in NO_SUM)


PREPARE = ("--valid", "test.txt", "--fraction", "0", "--out", "out", "--workers", "1", "--json")


def _text_inputs(name: str) -> dict[str, Scene]:
    return {
        f"prepare {name}": _input(name, "prepare", name, *PREPARE, needs=("test.txt",), weight=2),
        f"score {name}": _input(name, "score", "run", name, "--json", needs=("run",), weight=2),
        f"evaluate {name}": _input(name, "evaluate", "run", "--text", name, "--json", needs=("run",)),
    }


INPUT = {
    **{
        key: scene
        for name in ("text.txt", "text.gz", "text.xz", "text.bz2", "text.zst", "text.zip")
        for key, scene in _text_inputs(name).items()
    },
    **{
        f"prepare {name}": _input(name, "prepare", name, *PREPARE, needs=("test.txt",), weight=2)
        for name in ("records.jsonl", "records.jsonl.gz", "records.parquet")
    },
    "prepare vocab": _input(
        "words.txt", "prepare", "train.txt", "--vocab", "words.txt", *PREPARE, needs=("train.txt", "test.txt"),
    ),
    "score arpa": _input("small.arpa", "score", "small.arpa", "text.txt", "--json", needs=("text.txt",), weight=2),
    "score mixture": _input(
        "mixture.toml", "score", "mixture.toml", "text.txt", "--json", needs=("text.txt", "run", "small.arpa"),
        weight=2,
    ),
    "interpolate": _input(
        "small.arpa", "interpolate", "run", "small.arpa", "--valid", "text.txt", "--json", needs=("text.txt", "run")
    ),
    **{
        f"rescore {name}": _input(
            name, "rescore", "run", name, "--refs", "refs.txt", "--json", needs=("run", "refs.txt"), weight=2
        )
        for name in ("nbest.tsv", "nbest.jsonl")
    },
    **{
        f"rescore kaldi {name}": _input(
            name, "rescore", "run", "nbest.txt", "--scores", "am=am.txt", "--scores", "lm=lm.txt", "--refs", "refs.txt",
            "--json", needs=tuple(sorted({"run", "nbest.txt", "am.txt", "lm.txt", "refs.txt"} - {name})),
        )
        for name in ("nbest.txt", "am.txt", "lm.txt", "refs.txt")
    },
    "rescore weights": _input(
        "weights.json", "rescore", "run", "nbest.tsv", "--weights", "weights.json", "--json", needs=("run", "nbest.tsv")
    ),
    "vocab add": _input("add.tsv", "vocab", "run", "--add", "add.tsv", "--out", "out", "--json", needs=("run",)),
    "train recipe": _input(
        "recipe.toml", "train", "recipe.toml", "--corpus", "corpus", "--out", "out", "--json", needs=("corpus",),
        weight=2,
    ),
    "info recipe": _input("recipe.toml", "info", "recipe.toml", "--vocab-size", "100", "--json", weight=2),
}  # fmt: skip

SCENES = {"corpus": CORPUS, "run": RUN, "input": INPUT}


def choose_scene(kind: str, chance: Random) -> str:
    """Choose the command of a case, and the file that is damaged; the first thing that chance decides."""
    scenes = SCENES[kind]
    (name,) = chance.choices(list(scenes), [scene.weight for scene in scenes.values()])
    return name


def run(bed: Bed, kind: str, chance: Random) -> Verdict:
    """Run one case of a kind."""
    name = choose_scene(kind, chance)
    return SCENES[kind][name].run(bed, name, chance)


def remove(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
