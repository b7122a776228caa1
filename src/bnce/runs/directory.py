"""A run on disk: what it was asked to do, what it has learned, and what was measured on the way.

RUN/config.toml        every setting that decides what is computed
RUN/vocab.txt          the words, one per line; the line number is the id

RUN/counts.npy         how often each word is a target that is trained on: the noise, and where the bias starts
RUN/normaliser.json    how text becomes words, so that new text can be read the same way
RUN/summary.json       size, speed, machine, command, and whether the run has finished
RUN/metrics.jsonl      one line per evaluation on validation
RUN/evaluation.json    the model on the test split, once the run has finished
RUN/model.safetensors  the model with the best validation perplexity so far; its metadata tell of a calibration
RUN/state-*            the newest states a run can be resumed from
RUN/tensorboard/       the same figures as TensorBoard events
RUN/lexicon.json       how the vocabulary was changed after training, if it was: such a run is not trained further
RUN/spelling.safetensors   how words outside the vocabulary are spelt; from the corpus, if that has it
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bnce import files
from bnce.corpus.manifest import MANIFEST_FILE
from bnce.corpus.store import Corpus
from bnce.corpus.streams import training_streams
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError, argument
from bnce.evaluation.breakdown import WordCounts
from bnce.reading import map_array, read_object
from bnce.runs.checkpoint import MODEL_FILE, read_metadata
from bnce.runs.identity import find_changes, identify
from bnce.settings import RunConfig, read_config, to_toml
from bnce.spelling.model import SPELLING_FILE
from bnce.text.normalise import Normaliser, tell_differences

DESCRIPTION_FILES = ("config.toml", "vocab.txt", "counts.npy", "normaliser.json")
LEXICON_FILE = "lexicon.json"
RUN_FILES = (
    *DESCRIPTION_FILES,
    MODEL_FILE,
    SPELLING_FILE,
    *("summary.json", "metrics.jsonl", "evaluation.json", LEXICON_FILE),
)


@dataclass(frozen=True)
class RunDirectory:
    """An open run directory."""

    path: Path
    config: RunConfig
    vocabulary: Vocabulary
    normaliser: Normaliser
    target_counts: np.ndarray

    @classmethod
    def create(cls, path: str | Path, config: RunConfig, corpus: Corpus) -> RunDirectory:
        """Lay out a new run; it appears whole or not at all."""
        path = Path(path)
        counts = training_streams(config.training, corpus).count_targets(len(corpus.vocabulary))
        with files.atomic_directory(path) as partial:
            cls(partial, config, corpus.vocabulary, corpus.normaliser, counts).write_description()
            if (spelling := corpus.spelling_file) is not None:
                shutil.copyfile(spelling, partial / SPELLING_FILE)
        return cls.open(path)

    def write_description(self) -> None:
        """Write what the run was asked to do into its directory."""
        (self.path / "config.toml").write_text(to_toml(self.config), encoding="utf-8")
        self.vocabulary.write(self.path / "vocab.txt")
        counts = io.BytesIO()  # written by hand: NumPy's error does not say that the disk is full
        np.save(counts, self.target_counts, allow_pickle=False)
        (self.path / "counts.npy").write_bytes(counts.getvalue())
        normaliser = json.dumps(self.normaliser.to_dict(), indent=2)
        (self.path / "normaliser.json").write_text(normaliser + "\n", encoding="utf-8")

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Open a run directory, refusing what is none."""
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"The run directory is a {type(path).__name__}: give its path, a string or a Path.")
        path = Path(path)
        if not (path / "config.toml").is_file():
            refuse_exported(path)
            if not path.exists():
                raise UserError(f"'{path}' does not exist: check the path.")
            if (path / MANIFEST_FILE).is_file():
                raise UserError(f"'{path}' is a corpus, not a run: give a directory from 'bnce train'.")
            raise UserError(
                f"'{path}' is not a run directory: it has no config.toml. Give a directory from 'bnce train'."
            )
        config = read_config(path / "config.toml")
        normaliser, counts = read_normaliser(path), read_counts(path)
        vocabulary = Vocabulary.read(path / "vocab.txt")
        if len(counts) != len(vocabulary):
            raise UserError(
                f"The run directory '{path}' is damaged: counts.npy and vocab.txt differ in size; train it again."
            )
        return cls(path, config, vocabulary, normaliser, counts)

    @property
    def origin(self) -> dict[str, str]:
        """What a state says of the run it is of."""
        return {"settings": to_toml(self.config), "vocabulary": self.vocabulary.digest}

    def write_config(self) -> None:
        """Write settings that changed when the run was resumed."""
        files.write_text(self.path / "config.toml", to_toml(self.config))

    @property
    def word_counts(self) -> WordCounts:
        """The words and their counts, as an evaluation in detail wants them."""
        return WordCounts(self.vocabulary.words, self.target_counts)

    @property
    def identity(self) -> dict[str, str]:
        """What a model file says of the files beside it."""
        return identify(self.path, self.vocabulary, self.target_counts, self.normaliser, self.config.model)

    def copy_description(self, directory: Path) -> None:
        """Copy what makes a directory with a model file of its own a run, too."""
        spelling = [SPELLING_FILE] if (self.path / SPELLING_FILE).is_file() else []
        for name in (*DESCRIPTION_FILES, *spelling):
            shutil.copyfile(self.path / name, directory / name)

    def check_vocabulary(self, corpus: Corpus) -> None:
        """Refuse a corpus whose ids mean other words, or whose words got other ids."""
        self._check_spelling()
        if corpus.vocabulary.digest != self.vocabulary.digest:
            raise UserError(
                f"The corpus '{corpus.directory}' has another vocabulary ({len(corpus.vocabulary)} words) than the run "
                f"'{self.path}' ({len(self.vocabulary)} words): prepare it with "
                f"{argument('vocabulary_file', self.path / 'vocab.txt')}."
            )

    def check_words(self, corpus: Corpus) -> None:
        """Refuse a corpus whose ids mean other words, or whose text was not cut into words as the run's was."""
        self.check_vocabulary(corpus)
        self.check_normaliser(corpus)

    def check_normaliser(self, corpus: Corpus) -> None:
        """Refuse a corpus whose text was not cut into words as the run's was."""
        if corpus.normaliser != self.normaliser:
            raise UserError(
                f"The corpus '{corpus.directory}' was not cut into words as the run '{self.path}' says in "
                f"normaliser.json ({tell_differences(corpus.normaliser, self.normaliser)}): prepare its text again "
                "with the settings of the run, or restore normaliser.json if it was changed."
            )

    def _check_spelling(self) -> None:
        """Refuse a spelling model that came, went or changed after the model was written: the next would accept it."""
        try:
            written = read_metadata(self.path / MODEL_FILE)
        except UserError:  # not written yet, or torn: whoever needs it says so
            return
        # Of the others, a setting may change when a run is resumed.
        if changes := find_changes({key: written[key] for key in ("spelling",) if key in written}, self.identity):
            raise damaged_files(self.path, changes)

    def write_json(self, name: str, record: Mapping[str, Any]) -> None:
        """Write one of the run's JSON files."""
        files.write_json(self.path / name, record)


def refuse_exported(path: Path) -> None:
    """Refuse a directory from `bnce export --to onnx` by its name, where a run is needed."""
    if (path / "body.onnx").is_file():
        raise UserError(
            f"'{path}' is not a run directory but one exported to ONNX, which 'bnce score', 'rescore', "
            "'generate', 'surprisal', 'interpolate' and 'serve' open: give the run that was exported."
        )


def hold_run(path: Path) -> AbstractContextManager[None]:
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


def read_normaliser(path: Path) -> Normaliser:
    """Read how a run's text becomes words."""
    try:
        return Normaliser.from_dict(read_object(path / "normaliser.json"))
    except ValueError as error:
        raise _damaged(path, "normaliser.json", error) from error


def read_counts(path: Path) -> np.ndarray:
    """Read how often each word of a run is trained on."""
    try:
        counts = np.array(map_array(path / "counts.npy"))
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or counts.min(initial=0) < 0:
            raise ValueError("it is not a list of counts")
    except ValueError as error:
        raise _damaged(path, "counts.npy", error) from error
    return counts


def damaged_files(path: Path, changes: Iterable[str]) -> UserError:
    """Say which files are not those that a run's model was written with."""
    return UserError(f"The run directory '{path}' is damaged: {'. '.join(changes)}.")


def _damaged(path: Path, file: str, error: ValueError) -> UserError:
    reason = str(error).rstrip(".")
    return UserError(
        f"The run directory '{path}' is incomplete or damaged: {file} cannot be read ({reason}); "
        "restore the file, or train the run again."
    )
