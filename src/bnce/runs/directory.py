"""A run on disk: what it was asked to do, what it has learned, and what was measured on the way.

RUN/config.toml        every setting that decides what is computed
RUN/vocab.txt          the words, one a line; the line's number is the id
RUN/counts.npy         how often each word is a target that is trained on: the noise, and where the bias starts
RUN/normaliser.json    how text becomes words, so that new text can be read the same way
RUN/summary.json       size, speed, machine, command, and whether the run has finished
RUN/metrics.jsonl      one line an evaluation on validation
RUN/evaluation.json    the model on the test split, once the run has finished
RUN/model.safetensors  the model with the best validation perplexity so far
RUN/state-*            the newest states a run can be resumed from
RUN/tensorboard/       the same figures as TensorBoard events
RUN/lexicon.json       how the vocabulary was changed after training, if it was: such a run is not trained further
RUN/unknown_words.tsv  words outside the vocabulary that share the probability of <unk>, if some were attached
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnce import files
from bnce.config import SECTIONS, RunConfig, TrainingConfig, from_tables, read_config, to_toml
from bnce.corpus.store import Corpus
from bnce.corpus.streams import Streams
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError, argument
from bnce.evaluation.detail import WordCounts
from bnce.language_model import LanguageModel
from bnce.noise import make_noise
from bnce.reading import map_array, parse_toml, read_object
from bnce.runs import metrics
from bnce.runs.checkpoint import MODEL_FILE, MODEL_FORMAT, read_model, state_files, write_tensors
from bnce.runs.identity import UNKNOWN_WORDS_FILE, find_changes, identify
from bnce.runs.resuming import check_changes
from bnce.text.normalise import Normaliser

DESCRIPTION_FILES = ("config.toml", "vocab.txt", "counts.npy", "normaliser.json")
LEXICON_FILE = "lexicon.json"


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
        path = Path(path)
        if not (path / "config.toml").is_file():
            raise UserError(
                f"'{path}' is not a run directory: it has no config.toml. Give a directory that 'bnce train' made."
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
    def owner(self) -> str:
        """A digest of settings and vocabulary, which names the run in its model file."""
        return self._digest(to_toml(self.config))

    def _digest(self, settings: str) -> str:
        return hashlib.sha256(f"{settings}\n{self.vocabulary.digest}".encode()).hexdigest()

    @property
    def origin(self) -> dict[str, str]:
        """What a state says of the run it is of."""
        return {"settings": to_toml(self.config), "vocabulary": self.vocabulary.digest}

    def check_state(self, path: Path, origin: Mapping[str, str]) -> None:
        """Refuse a state of another run."""
        try:
            before = self.settings_of(origin)
            if origin.get("vocabulary", self.vocabulary.digest) != self.vocabulary.digest:
                raise UserError("it has another vocabulary.")
            check_changes(before, self.config, self.path)
        except UserError as error:
            raise UserError(f"'{path}' belongs to another run: {error}") from error
        self._refuse_lost_settings(origin)

    def _refuse_lost_settings(self, origin: Mapping[str, str]) -> None:
        """Refuse a config.toml without settings that a state has: a line was lost, and is not to read as a default."""
        written = parse_toml(origin.get("settings", "").encode())
        now = parse_toml((self.path / "config.toml").read_bytes())
        names = ((section, key) for section in SECTIONS for key in written.get(section, {}))
        lost = [f"{section}.{key}" for section, key in names if key not in now[section]]
        if lost:
            raise UserError(
                f"'{self.path / 'config.toml'}' has no {', '.join(lost)}, with which the run was trained: restore it. "
                f"To change a setting, use {argument('settings')}."
            )

    def settings_of(self, origin: Mapping[str, str]) -> RunConfig:
        """Read what a state was trained with; settings that came with later versions are at their defaults."""
        if "settings" in origin:
            return from_tables(parse_toml(origin["settings"].encode()), "its settings")
        # Version 0.1.0 wrote a digest of config.toml instead, as that version wrote it.
        text = (self.path / "config.toml").read_bytes().decode(errors="replace")
        if origin.get("owner") != self._digest(text):
            raise UserError(f"its settings or vocabulary are not those of '{self.path}'.")
        return read_config(self.path / "config.toml")

    def write_config(self) -> None:
        """Write settings that changed when the run was resumed."""
        files.write_text(self.path / "config.toml", to_toml(self.config))

    @property
    def word_counts(self) -> WordCounts:
        """The words and their counts, as an evaluation in detail wants them."""
        return WordCounts(self.vocabulary.words, self.target_counts)

    def build_model(self, device: str = "cpu") -> LanguageModel:
        """Build the network this run trains, at its start; on `meta` it has shapes and no values."""
        loss = self.config.loss
        noise = make_noise(loss.noise, self.target_counts, loss.noise_power)
        with torch.device(device):
            return LanguageModel(self.config.model, loss, noise)

    def load_model(self, device: str = "cpu") -> LanguageModel:
        """Load the best model so far, ready for use."""
        tensors, _ = self.read_model()
        model = self.build_model("meta")  # to draw 10⁹ numbers and to copy as many over them takes longer than reading
        try:
            model.load_state_dict(tensors, assign=True)
        except RuntimeError as error:
            raise UserError(
                f"'{self.path / MODEL_FILE}' does not fit the run's config.toml and vocab.txt: {_first_line(error)}"
            ) from error
        return model.to(device).eval()

    def read_model(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Read the best model so far as tensors by name, and what its file says beside them."""
        path = self.path / MODEL_FILE
        if not path.is_file():
            if self.read_metrics():
                raise UserError(
                    f"The run '{self.path}' has figures but no model, as a row of an experiment with "
                    f"{argument('keep_models', False)} does: train it again with another {argument('out')}."
                )
            raise UserError(f"The run '{self.path}' has no model yet: train it up to its first evaluation.")
        tensors, metadata = read_model(path)
        if changes := find_changes(metadata, self.identity):
            raise UserError(
                f"The run directory '{self.path}' is damaged: {' and '.join(changes)} changed after {MODEL_FILE} was "
                "written; restore what was written with it, or train the run again."
            )
        return tensors, metadata

    @property
    def identity(self) -> dict[str, str]:
        """What a model file says of the files beside it."""
        return identify(self.path, self.vocabulary, self.target_counts, self.normaliser, self.config.model)

    def save_model(self, model: LanguageModel, step: int) -> None:
        """Keep a model as the run's best so far."""
        self.save_tensors(model.state_dict(), step)

    def save_tensors(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Keep a model that is known by its `state_dict`."""
        metadata = {"owner": self.owner, "step": str(step), **self.identity}
        write_tensors(self.path / MODEL_FILE, tensors, MODEL_FORMAT, metadata)

    def copy_description(self, directory: Path) -> None:
        """Copy what makes a directory with a model file of its own a run, too."""
        for name in DESCRIPTION_FILES:
            shutil.copyfile(self.path / name, directory / name)
        if (self.path / UNKNOWN_WORDS_FILE).is_file():
            shutil.copyfile(self.path / UNKNOWN_WORDS_FILE, directory / UNKNOWN_WORDS_FILE)

    def check_resumable(self) -> None:
        """Refuse to train over an exported model, or over figures of a run that kept no state: it would begin anew.

        A run has its summary before its first step, an export has none.
        """
        if (self.path / MODEL_FILE).exists() and not (self.path / "summary.json").exists():
            raise UserError(
                f"'{self.path}' holds an exported model and nothing to resume from: train with another "
                f"{argument('out')}."
            )
        if not state_files(self.path) and is_finished(self.path):
            raise UserError(
                f"The run '{self.path}' is finished and kept no state to resume from: train with another "
                f"{argument('out')}."
            )
        records = self.read_metrics()
        if not state_files(self.path) and (records or (self.path / MODEL_FILE).exists()):
            upto = f"figures up to step {records[-1]['step']}" if records else "a model"
            raise UserError(
                f"The run '{self.path}' has {upto} but no state to resume from (training.checkpoint_seconds is "
                f"{self.config.training.checkpoint_seconds:g}): use its best model as it is, go on from it in a new "
                f"run by {argument('init', self.path)}, or train anew with another {argument('out')}."
            )

    def check_vocabulary(self, corpus: Corpus) -> None:
        """Refuse a corpus whose ids mean other words."""
        if corpus.vocabulary.digest != self.vocabulary.digest:
            raise UserError(
                f"The corpus '{corpus.directory}' has another vocabulary ({len(corpus.vocabulary)} words) than the run "
                f"'{self.path}' ({len(self.vocabulary)} words): prepare it with "
                f"{argument('vocabulary_file', self.path / 'vocab.txt')}."
            )

    def check_corpus(self, corpus: Corpus) -> None:
        """Refuse to train on another text than the run was made for."""
        self.check_vocabulary(corpus)
        if corpus.normaliser != self.normaliser:
            raise UserError(
                f"The corpus '{corpus.directory}' was cut into words otherwise than normaliser.json of the run "
                f"'{self.path}' says: restore that file, prepare the same text again, or train with another "
                f"{argument('out')}."
            )
        counts = training_streams(self.config.training, corpus).count_targets(len(self.vocabulary))
        # Runs of version 0.1.0 counted the whole split, whatever part of it they train on.
        if not any(np.array_equal(known, self.target_counts) for known in (counts, corpus.target_counts)):
            raise UserError(
                f"The corpus '{corpus.directory}' has another training text than the run '{self.path}' began with (its "
                f"words occur otherwise often): prepare the same text again, or train with another {argument('out')}."
            )

    def write_json(self, name: str, record: Mapping[str, Any]) -> None:
        """Write one of the run's JSON files."""
        files.write_text(self.path / name, files.to_json(record, indent=2) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read the evaluations so far; a line that a crash tore, or that is damaged, is left out."""
        return metrics.read_metrics(self.path)[0]

    def keep_metrics_up_to(self, step: int) -> int:
        """Drop the evaluations after a step that the run is resumed from: they will be made again.

        Returns how many damaged lines are dropped, too.
        """
        records, num_damaged = metrics.read_metrics(self.path)
        metrics.write_metrics(self.path, [record for record in records if record["step"] <= step])
        return num_damaged

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one evaluation."""
        metrics.append_metrics(self.path, record)

    def remove_leftovers(self) -> None:
        """Remove what a run that was killed while saving left behind, which can be as large as a checkpoint."""
        # safetensors wrote beside the place it was given, too, under a name of its own.
        for pattern in (f".*{files.PARTIAL_SUFFIX}", ".tmp*"):
            for leftover in self.path.glob(pattern):
                files.remove(leftover)


def training_streams(training: TrainingConfig, corpus: Corpus) -> Streams:
    """Read the training text, or the part of it that the settings ask for, as the streams it is trained in."""
    ids = corpus.split("train")[: training.max_train_tokens or None]
    return Streams(ids, training.batch_size, training.num_steps)


def is_begun(path: Path) -> bool:
    """Say whether a run holds anything that training it made: a state, an evaluation, a model; or files of others."""
    made_at_the_start = {*DESCRIPTION_FILES, "summary.json", "tensorboard"}
    return (path / "config.toml").is_file() and any(
        found.name not in made_at_the_start and not found.name.endswith(files.PARTIAL_SUFFIX)
        for found in path.iterdir()
    )


def remove_unbegun(path: Path) -> None:
    """Remove a run that failed, or was killed, before it had anything to keep: its place can be used again.

    Whoever calls it holds the run.
    """
    if (path / "config.toml").is_file() and not is_begun(path):
        shutil.rmtree(path)


def hold_run(path: Path) -> AbstractContextManager[None]:
    """Keep a run to this process while it trains it."""
    return files.held(path, f"The run '{path}' is being trained by another process: wait for it, or end it.")


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
            raise ValueError("it is no list of counts")
    except ValueError as error:
        raise _damaged(path, "counts.npy", error) from error
    return counts


def _damaged(path: Path, file: str, error: ValueError) -> UserError:
    reason = str(error).rstrip(".")
    return UserError(
        f"The run directory '{path}' is incomplete or damaged: {file} cannot be read ({reason}); "
        "restore the file, or train the run again."
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()
