"""Runs that exports are made of: every model, small, at weights that tell words and contexts apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from small_corpus import small_config, small_corpus, small_model

from bnce import Corpus
from bnce.runs.directory import Run
from bnce.runs.model_file import save_weights

MODELS = ("ffnn", "rnn", "relu-rnn", "lstm", "relu-lstm", "transformer")


def make_run(directory: Path, name: str, loss: str = "bnce", **model: Any) -> Run:
    """Make a run with a model in it."""
    place = directory / "corpus"
    corpus = Corpus.open(place) if place.exists() else small_corpus(place)
    config = small_config(corpus, model={"name": name, **model}, loss={"name": loss})
    run = Run.create(directory / "-".join([name, loss, *map(str, model.values())]), config, corpus)
    save_weights(run, small_model(name, loss, **model).state_dict(), step=1)
    return run
