"""The command line as a user has it: arguments in, status and both outputs out; a corpus and a run to use it on.

Its fixtures are there in every directory of tests (`pytest_plugins` in conftest.py).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small_corpus import VOCAB_SIZE

from bnce.cli import main

SMALL = [
    "model.embedding_size=6",
    "model.hidden_size=8",
    "optimiser.warmup_steps=5",
    "training.batch_size=8",
    "training.num_steps=5",
    "training.epochs=1",
    "training.evaluations_per_epoch=2",
]


class Outcome(NamedTuple):
    """What a command left: its status and what it printed."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """Read the one object on standard output."""
        assert self.status == 0, self.stderr
        assert self.stdout.count("\n") == 1
        record = json.loads(self.stdout, parse_constant=_refuse_constant)
        assert isinstance(record, dict)
        return record


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


Command = Callable[..., Outcome]
Refused = Callable[..., str]
Refused = Callable[..., str]
Refused = Callable[..., str]
Refused = Callable[..., str]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a directory for runs alone, so that whatever is left behind shows."""
    directory = tmp_path / "place"
    directory.mkdir()
    return directory


def call(*arguments: object) -> Outcome:
    """Run a command, and give what it left."""
    # What is in memory at the end; a command writes no bytes of its own to the files below.
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["bnce", *map(str, arguments)])
        patched.setattr(sys, "stdout", stdout)
        patched.setattr(sys, "stderr", stderr)
        with pytest.raises(SystemExit) as ended:
            main()
    printed = []
    for stream in (stdout, stderr):
        stream.seek(0)
        printed.append(stream.read())
    if "Unexpected error" in printed[1] and ended.value.__context__ is not None:
        raise ended.value.__context__
    return Outcome(int(ended.value.code or 0), *printed)


@pytest.fixture
def bnce() -> Command:
    """Give the `bnce` command."""
    return call


@pytest.fixture
def refused(bnce: Command) -> Refused:
    """Give a command that must be refused: status 2, one sentence on standard error, and nothing else anywhere."""

    def run(*arguments: object) -> str:
        outcome = bnce(*arguments)
        assert outcome.status == 2
        assert outcome.stdout == ""
        (line,) = outcome.stderr.splitlines()
        assert line.startswith("bnce: ")
        assert line.endswith((".", "?", "--resume"))
        return line

    return run


def run_command(*arguments: object) -> Outcome:
    """Run a command that must succeed, for what several tests share."""
    outcome = call(*arguments)
    assert outcome.status == 0, outcome.stderr
    return outcome


@contextlib.contextmanager
def happening_in_step(number: int, event: Callable[[], object]) -> Iterator[None]:
    """Let something happen in a training step, the first of which is step 1."""
    plain, numbers = torch.Tensor.backward, itertools.count(1)

    def backward(*arguments: Any, **keywords: Any) -> None:
        plain(*arguments, **keywords)
        if next(numbers) == number:
            event()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.Tensor, "backward", backward)
        yield


def ctrl_c_after_step(number: int) -> contextlib.AbstractContextManager[None]:
    """Press Ctrl-C during a step, for whose end it waits."""
    return happening_in_step(number, lambda: signal.raise_signal(signal.SIGINT))


def settings(*changes: str) -> list[str]:
    """Write settings as `--set` options: small sizes, then `changes`."""
    return [word for setting in (*SMALL, *changes) for word in ("--set", setting)]


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory with train.txt, valid.txt and test.txt: sentences of made-up words."""
    directory = tmp_path_factory.mktemp("texts")
    generator = random.Random(1)
    words = [first + second for first in "bdfgklmn" for second in ("a", "e", "i", "o", "u")]
    weights = [1 / (place + 1) for place in range(len(words))]
    for name, num_sentences in (("train", 400), ("valid", 60), ("test", 50)):
        sentences = (" ".join(generator.choices(words, weights, k=6)) for _ in range(num_sentences))
        (directory / f"{name}.txt").write_text("".join(f"{sentence} .\n" for sentence in sentences), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def corpus(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the corpus that `bnce prepare` makes of the texts."""
    out = tmp_path_factory.mktemp("corpora") / "small"
    valid, test = (str(texts / f"{name}.txt") for name in ("valid", "test"))
    options = ["--out", out, "--vocab-size", VOCAB_SIZE, "--valid", valid, "--test", test, "--workers", 1]
    run_command("prepare", texts / "train.txt", *options)
    return out


@pytest.fixture
def prepared_anew(texts: Path, corpus: Path, tmp_path: Path) -> Callable[..., Path]:
    """Give a maker of corpora with the words of the corpus, in which one split, or how it is cut, is another."""

    def prepare(*options: str, **splits: str) -> Path:
        out = tmp_path / "anew"
        named = {"train": "train", "valid": "valid", "test": "test", **splits}
        train, valid, test = (str(texts / f"{named[name]}.txt") for name in ("train", "valid", "test"))
        words = ["--vocab", str(corpus / "vocab.txt"), "--valid", valid, "--test", test, "--workers", "1", *options]
        run_command("prepare", train, "--out", out, *words)
        return out

    return prepare


@pytest.fixture(scope="session")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the run that `bnce train` makes of the corpus; nobody may change it."""
    out = tmp_path_factory.mktemp("runs") / "small"
    options = ["--corpus", corpus, "--model", "relu-lstm", "--loss", "bnce", "--out", out, "--device", "cpu"]
    # At the recipe's rate, 0.04, none of its seven units is active after frequent words such as "ba", so that context
    # makes no difference to the short texts of these tests; to longer ones it does.
    run_command("train", "wiki", *options, *settings("optimiser.learning_rate=0.01"))
    return out
