"""One small model of every kind, all of which read text as English is: words and marks, sentences to be found."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from command import Outcome, call, run_command
from run_files import write_mixture
from small_corpus import SPECIALS, VOCAB_SIZE, random_ids, small_run

from bnce import MODELS, Model, Normaliser, load

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [*SPECIALS, ".", ",", "'", "england", "?", *LETTERS[: VOCAB_SIZE - 7]]
KINDS = [*MODELS, "n-gram", "mixture"]


def write_model(kind: str, directory: Path, loss: str = "bnce", words: Sequence[str] = WORDS) -> Path:
    """Write a model of a kind: the name of a body, or one of the others; it knows single letters, England and marks."""
    if kind == "n-gram":
        text, path = directory / "text.txt", directory / "bigram.arpa"
        text.write_text(" ".join(WORDS[number] for number in random_ids(2000) if number > 1), encoding="utf-8")
        run_command("ngram", text, "--vocab", write_model("rnn", directory), "--order", 2, "--out", path)
        return path
    if kind == "mixture":
        parts = [write_model(part, directory) for part in ("lstm", "n-gram")]
        return write_mixture(directory / "mixture.toml", parts, [0.6, 0.4])
    options: dict[str, Any] = {"normaliser": Normaliser(), "spelt": ["zebra", "yak", "gnu"]}
    place = Path(tempfile.mkdtemp(prefix=kind, dir=directory)) / "run"
    return small_run(place, kind, loss, words=words, order=4, num_layers=0, num_heads=2, **options)


# Of models that are opened, and gone with the tests.
_PLACE = tempfile.TemporaryDirectory()


def make_model(kind: str = "lstm", loss: str = "bnce") -> Model:
    """Make a model of a kind, and open it."""
    return load(write_model(kind, Path(tempfile.mkdtemp(dir=_PLACE.name)), loss))


@functools.cache
def _run() -> Path:
    return write_model("lstm", Path(_PLACE.name))


def add_surprisal(table: Path, out: Path, *options: object) -> Outcome:
    """Write a table again with the surprisals of an LSTM."""
    return call("surprisal", _run(), table, "--out", out, *options, "--json")


def refusal(table: Path, out: Path, *options: object) -> str:
    """Give the one sentence with which a table is refused."""
    outcome = add_surprisal(table, out, *options)
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1), outcome
    return outcome.stderr
