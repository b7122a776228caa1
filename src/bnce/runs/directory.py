"""A run on disk: what it was asked to do, what it has learned, and what was measured on the way.

RUN/run.json           what never changes, and makes its weights mean what they mean: how text becomes words, the
                       settings of the network, digests of the texts, and hashes of the next three files
RUN/vocab.txt          the words, one per line; the line number is the id
RUN/counts.npy         how often each word is a target that is trained on: the noise, and where the bias starts
RUN/spelling.safetensors   how words outside the vocabulary are spelt; from the corpus, if that has it
RUN/config.toml        every setting that decides what is computed
RUN/summary.json       size, speed, machine, command, and whether the run has finished
RUN/metrics.jsonl      one line per evaluation on validation
RUN/evaluation.json    the model on the test split, once the run has finished
RUN/model.safetensors  the model with the best validation perplexity so far; its metadata tell of a calibration
RUN/state-*            the newest states a run can be resumed from
RUN/tensorboard/       the same figures as TensorBoard events

Nothing here loads PyTorch but the making of a new run.
"""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnce import files
from bnce.corpus.spelling import SPELLING_FILE
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError, argument
from bnce.evaluation.breakdown import WordCounts
from bnce.files import map_array, read_manifest, read_object, verify, write_manifest
from bnce.settings import RunConfig, read_config, to_tables, to_toml
from bnce.text.normalise import Normaliser, tell_differences

if TYPE_CHECKING:
    from bnce.corpus.store import Corpus

FORMAT = 3
RUN_FILE, CONFIG_FILE, MODEL_FILE = "run.json", "config.toml", "model.safetensors"
WORD_FILES = ("vocab.txt", "counts.npy", SPELLING_FILE)
RUN_FILES = (RUN_FILE, *WORD_FILES, CONFIG_FILE, MODEL_FILE, "summary.json", "metrics.jsonl", "evaluation.json")


@dataclass(frozen=True)
class Run:
    """An open run directory."""

    path: Path
    config: RunConfig
    vocabulary: Vocabulary
    normaliser: Normaliser
    target_counts: np.ndarray
    texts: Mapping[str, str]  # digests of the splits that it was made for
    digest: str  # of run.json: weights and states carry it

    @classmethod
    def create(cls, path: str | Path, config: RunConfig, corpus: Corpus) -> Run:
        """Lay out a new run; it appears whole or not at all."""
        from bnce.corpus.streams import training_streams

        path = Path(path)
        counts = training_streams(config.training, corpus).count_targets(len(corpus.vocabulary))
        with files.atomic_directory(path) as partial:
            if (spelling := corpus.spelling_file) is not None:
                shutil.copyfile(spelling, partial / SPELLING_FILE)
            made = cls.lay_out(partial, config, corpus.vocabulary, corpus.normaliser, counts, corpus.manifest.hashes)
        return dataclasses.replace(made, path=path)

    @classmethod
    def lay_out(
        cls,
        directory: Path,
        config: RunConfig,
        vocabulary: Vocabulary,
        normaliser: Normaliser,
        target_counts: np.ndarray,
        texts: Mapping[str, str],
    ) -> Run:
        """Make a run without weights of a directory, in which its spelling model may be."""
        files.write_text(directory / CONFIG_FILE, to_toml(config))
        vocabulary.write(directory / "vocab.txt")
        counts = io.BytesIO()  # written by hand: NumPy's error does not say that the disk is full
        np.save(counts, target_counts, allow_pickle=False)
        (directory / "counts.npy").write_bytes(counts.getvalue())
        record = {
            "format": FORMAT,
            "normaliser": normaliser.to_dict(),
            "network": to_tables(config)["model"],
            "texts": dict(texts),
        }
        names = [name for name in WORD_FILES if (directory / name).exists()]
        digest = write_manifest(directory, RUN_FILE, record, names)
        return cls(directory, config, vocabulary, normaliser, target_counts, texts, digest)

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open a run directory, refusing what is none, and one with files that are not those it was made with."""
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"The run directory is a {type(path).__name__}: give its path, a string or a Path.")
        path = Path(path)
        if not (path / CONFIG_FILE).is_file():
            if not path.exists():
                raise UserError(f"'{path}' does not exist: check the path.")
            raise UserError(
                f"'{path}' is not a run directory: it has no {CONFIG_FILE}. Give a directory from 'bnce train'."
            )
        config = read_config(path / CONFIG_FILE)
        try:
            record = read_manifest(path, RUN_FILE, FORMAT)
            for name in WORD_FILES:
                verify(path, record, name)
            if to_tables(config)["model"] != record["network"]:
                raise ValueError(f"[model] in {CONFIG_FILE} has changed since it was written")
        except ValueError as error:
            raise UserError(
                f"The run directory '{path}' is damaged or of another version: {error}; restore its files, or train it "
                "again."
            ) from error
        counts = np.array(map_array(path / "counts.npy"))
        vocabulary, normaliser = Vocabulary.read(path / "vocab.txt"), Normaliser.from_dict(record["normaliser"])
        return cls(path, config, vocabulary, normaliser, counts, record["texts"], record["sha256"])

    @property
    def origin(self) -> dict[str, str]:
        """What a state says of the run it is of."""
        return {"settings": to_toml(self.config), "run": self.digest}

    @property
    def word_counts(self) -> WordCounts:
        """The words and their counts, as an evaluation in detail wants them."""
        return WordCounts(self.vocabulary.words, self.target_counts)

    def copy_description(self, directory: Path) -> None:
        """Copy what makes a directory with a model file of its own a run, too."""
        for name in (RUN_FILE, *WORD_FILES, CONFIG_FILE):
            if (self.path / name).exists():
                shutil.copyfile(self.path / name, directory / name)

    def check_words(self, corpus: Corpus) -> None:
        """Refuse a corpus whose ids mean other words, or whose text was not cut into words as the run's was."""
        if corpus.vocabulary.digest != self.vocabulary.digest:
            raise UserError(
                f"The corpus '{corpus.directory}' has another vocabulary ({len(corpus.vocabulary)} words) than the run "
                f"'{self.path}' ({len(self.vocabulary)} words): prepare it with "
                f"{argument('vocabulary_file', self.path / 'vocab.txt')}."
            )
        if corpus.normaliser != self.normaliser:
            raise UserError(
                f"The corpus '{corpus.directory}' was not cut into words as the text of the run '{self.path}' was "
                f"({tell_differences(corpus.normaliser, self.normaliser)}): prepare its text again with the settings "
                "of the run."
            )


def hold_run(path: Path) -> AbstractContextManager[bool]:
    """Keep a run to this process while it trains it."""
    return files.held(path, f"The run '{path}' is being trained by another process: wait for it, or stop it.")


def read_summary(path: Path) -> dict[str, Any]:
    """Read a run's summary; empty before it began, or where it is damaged."""
    try:
        return read_object(path / "summary.json")
    except ValueError:
        return {}


def read_status(path: Path) -> str | None:
    """Read how far a run has come: running, stopped, finished, diverged or failed; None before it began."""
    return read_summary(path).get("status")


def is_finished(path: Path) -> bool:
    """Say whether a run has reached its end."""
    return read_status(path) == "finished"
