"""SIGKILLs: of training, of experiments, of prepare; what is continued must end equal to what was never killed."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from .bed import RESUMABLE, Bed
from .damage import copy
from .files import remove
from .process import bnce
from .verdict import Outcome, Verdict, result

MAX_KILLS = 3  # of one run
_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.listdir")
OUT = Path("out")
WHERE = Path("../where")

KINDS = ("kill train", "kill experiment", "kill prepare")
# What is trained. Dropout, resets and drawn words: without the seed of each step, nothing would be the same again.
MODELS = {
    "rnn": "model.dropout=0.2 training.reset_rate=0.2",
    "relu-rnn": "model.dropout=0.2",
    "lstm": "model.dropout=0.2 training.reset_rate=0.2 model.num_layers=2",
    "relu-lstm": "model.dropout=0.2 training.groups=2",
    "transformer": "model.dropout=0.2 model.num_layers=2 model.num_heads=2 model.embedding_size=8",
    "ffnn": "model.dropout=0.2 model.order=3",
}
LOSSES = {
    "bnce": "loss.num_noise=5 loss.learn_log_z=true",
    "chunk-bnce": "",
    "nce": "loss.num_noise=5",
    "snce": "loss.num_noise=5",
    "sampled-softmax": "loss.num_noise=5",
    "softmax": "",
    "adaptive-softmax": "",
    "self-normalised-softmax": "",
    "chunk-softmax": "",
}
OFTEN = ("training.evaluations_per_epoch=8", "optimiser.learning_rate=0.01")
OPTIMISERS = ("sgd", "rowwise", "rowwise-adam")
# Where a kill came: the first of these that is among the functions that were running.
PLACES = {
    "save_state": "while a checkpoint was written",
    "save_weights": "while the best model was written",
    "append_metrics": "while a figure was written",
    "evaluate": "while it evaluated",
    "_run": "in a step",
    "_train": "between two steps or epochs",
}
ELSEWHERE = "before or after training"


def choose(kind: str, chance: Random) -> str:
    """Choose what is killed: of training, one of many runs."""
    if kind != "kill train":
        return kind
    return " ".join(["train", *(chance.choice([*some]) for some in (MODELS, LOSSES, OPTIMISERS))])


def _command(bed: Bed, name: str) -> tuple[str, ...]:
    """Give a command; the corpus has one place, since a run keeps it in its settings."""
    trained = ("--corpus", str(bed.path / "corpus"), "--out", "out", "--json", *RESUMABLE)
    if name.startswith("train "):
        _, model, loss, optimiser = name.split()
        settings = [f"optimiser.name={optimiser}", *OFTEN, *MODELS[model].split(), *LOSSES[loss].split()]
        sets = chain.from_iterable(("--set", setting) for setting in settings)
        return ("train", "wiki", "--model", model, "--loss", loss, *trained, *sets)
    return {
        "kill experiment": ("experiment", "ltcb", "--rows", "rnn-softmax,rnn-bnce", *trained),
        "kill prepare": (
            "prepare",
            "train.txt",
            "--valid",
            "test.txt",
            "--fraction",
            "0",
            "--out",
            "out",
            "--workers",
            "1",
        ),
    }[name]


def expect(name: str, bed: Bed) -> dict[str, Any]:
    """Run a command that nobody kills, and say what it left, how long it took, and how often it touched a file."""
    for text in ("train.txt", "test.txt"):
        copy(bed.path / text)
    begin = time.monotonic()
    outcome = _in_fork(_command(bed, name), lambda: None)
    seconds = time.monotonic() - begin
    if outcome is None or outcome.status:
        raise AssertionError(f"{name}: {outcome}")
    left = _left()
    return {"left": left, "operations": _count_operations(_command(bed, name)), "seconds": seconds}


def run(bed: Bed, kind: str, chance: Random) -> Verdict:
    """Kill a command up to three times, let it end, and compare what it left with what the unbroken one left."""
    for text in ("train.txt", "test.txt"):
        copy(bed.path / text)
    chosen = choose(kind, chance)
    unbroken = bed.unbroken[chosen]
    command, told, places = _command(bed, chosen), [], []
    for turn in range(1, MAX_KILLS + 1):
        # What is continued has less to do.
        if chance.random() < 0.5:
            number = chance.randrange(1, unbroken["operations"] // turn)
            told.append(f"at operation {number}")
            outcome = _in_fork(command, lambda number=number: _die_at(number))
        else:
            seconds = chance.uniform(0, unbroken["seconds"] / turn)
            told.append(f"after {seconds:.2f} s")
            outcome = _in_fork(command, lambda seconds=seconds: _die_after(seconds))
        what = f"{chosen}, killed {', '.join(told)}"
        if outcome is not None:
            # It came to its end before: that counts as no kill, and must be right as well.
            if outcome.status:
                return Verdict("lost", what, f"status {outcome.status}: {outcome.stderr[-500:]}")
            told.pop()
            break
        places.append(_place())
        if kind == "kill prepare" and OUT.exists():
            # It appears whole or not at all.
            break
        command = _next_command(bed, chosen)
    else:
        outcome = _in_fork(command, lambda: None)
        if outcome is None or outcome.status:
            return Verdict("lost", what, f"the continued run ended with {outcome}")
    left = _left()
    if left != unbroken["left"]:
        names = [name for name in {**left, **unbroken["left"]} if left.get(name) != unbroken["left"].get(name)]
        return Verdict("lost", what, f"{', '.join(names[:5])} differ from those of the unbroken run")
    return Verdict("equal", what, ", ".join(places))


def _next_command(bed: Bed, name: str) -> tuple[str, ...]:
    """Say how a person goes on: a run is resumed where there is one, all else is the same command."""
    if name.startswith("train ") and (OUT / "config.toml").is_file():
        if list(OUT.glob("state-*")) or (OUT / "metrics.jsonl").exists():
            return ("train", "--out", "out", "--resume", "--json")
        # Killed before there was anything to lose.
        remove(OUT)
    return _command(bed, name)


def _in_fork(command: tuple[str, ...], prepare: Callable[[], None]) -> Outcome | None:
    """Run a command in a process of its own; gives None if that was killed."""
    answer = Path("../outcome")
    answer.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        faulthandler.register(signal.SIGUSR1, WHERE.open("w"), all_threads=False)
        prepare()
        outcome = bnce(*command)
        answer.write_text(json.dumps([outcome.status, outcome.stdout, outcome.stderr]), encoding="utf-8")
        os._exit(0)
    os.waitpid(pid, 0)
    return Outcome(*json.loads(answer.read_text(encoding="utf-8"))) if answer.exists() else None


def _kill(pid: int) -> None:
    """Kill a process of `_in_fork`, which notes first where it is."""
    os.kill(pid, signal.SIGUSR1)
    for _ in range(1000):  # at most for a second: it may have come to its end meanwhile
        if WHERE.stat().st_size:
            break
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)


def _place() -> str:
    """Say what the process that was killed was doing."""
    running = re.findall(r"line \d+ in (\w+)", WHERE.read_text(encoding="utf-8"))
    return next((place for function, place in PLACES.items() if function in running), ELSEWHERE)


def _die_at(number: int) -> None:
    """Kill this process at its n-th operation on a file below this directory."""
    count = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in _EVENTS and _is_here(arguments[0]):
            count += 1
            if count == number:
                _kill(os.getpid())

    sys.addaudithook(watch)


def _die_after(seconds: float) -> None:
    pid = os.getpid()
    # A process of its own: a clock in this one would wait for its turn.
    if os.fork() == 0:
        time.sleep(seconds)
        if os.getppid() == pid:
            _kill(pid)
        os._exit(0)


def _count_operations(command: tuple[str, ...]) -> int:
    remove(OUT)
    counted = Path("../operations")

    def count() -> None:
        number = 0

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal number
            if event in _EVENTS and _is_here(arguments[0]):
                number += 1
                if number % 5 == 0:
                    os.pwrite(descriptor, str(number).encode(), 0)

        descriptor = os.open(counted, os.O_WRONLY | os.O_CREAT)
        sys.addaudithook(watch)

    _in_fork(command, count)
    return int(counted.read_text(encoding="ascii"))


def _is_here(path: Any) -> bool:
    try:
        text = os.fsdecode(path)
    except TypeError:
        return False
    return not text.startswith("/") or text.startswith(os.getcwd())


def _left() -> dict[str, Any]:
    """Read what a command left below `out`, without times and places."""
    return {str(path): _contents(path) for path in sorted(OUT.rglob("*")) if path.is_file() and _lasts(path)}


def _lasts(path: Path) -> bool:
    # Events and reports hold times, and which states are the last depends on the clock.
    return not path.name.startswith("state-") and not {"tensorboard", "report"} & set(path.parts)


def _contents(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return _tensors(path)
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
        return [result(Outcome(0, line, "")) for line in lines]
    return path.read_bytes().hex()


def _tensors(path: Path) -> Any:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        tensors = {name: file.get_tensor(name).tobytes().hex() for name in sorted(file.keys())}
        metadata = dict(file.metadata() or {})
    # A state says how long training has taken so far, and its checksum is of that, too.
    metadata.pop("checksum", None)
    if "record" in metadata:
        metadata["record"] = json.dumps(result(Outcome(0, metadata["record"], "")))
    return [tensors, metadata]
