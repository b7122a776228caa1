"""A run's network: built as its settings say, and the best one so far written and read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bnce.errors import UserError, argument
from bnce.language_model import LanguageModel
from bnce.noise import make_noise
from bnce.reading import parse_object
from bnce.runs.checkpoint import MODEL_FILE, MODEL_FORMAT, read_metadata, read_model, write_tensors
from bnce.runs.directory import RunDirectory, damaged_files
from bnce.runs.identity import find_changes
from bnce.runs.metrics import read_metrics

CALIBRATION = "calibration"  # in a model file's metadata: what scores are divided by was fitted after training


def build_model(run: RunDirectory, device: str = "cpu") -> LanguageModel:
    """Build the network that a run trains, at its start; on `meta` it has shapes and no values."""
    noise = make_noise(run.config.loss, run.target_counts)
    with torch.device(device):
        return LanguageModel(run.config.model, run.config.loss, noise)


def load_model(run: RunDirectory, device: str = "cpu") -> LanguageModel:
    """Load a run's best model so far, ready for use."""
    tensors, metadata = read_weights(run)
    model = build_model(run, "meta")  # to draw 10⁹ numbers and to copy as many over them takes longer than reading
    try:
        model.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()  # the lines before it name the class alone
        raise UserError(
            f"'{run.path / MODEL_FILE}' does not fit the run's config.toml and vocab.txt: {reason}"
        ) from error
    if CALIBRATION in metadata:  # also a softmax has something then that scores are divided by
        model.output.normalises = True
    return model.to(device).eval()


def read_weights(run: RunDirectory) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a run's best model so far as tensors by name, and what its file says beside them."""
    path = run.path / MODEL_FILE
    if not path.is_file():
        if read_metrics(run.path).records:
            raise UserError(
                f"The run '{run.path}' has figures but no model, as a row of an experiment with "
                f"{argument('keep_models', False)} does: train it again with another {argument('out')}."
            )
        raise UserError(f"The run '{run.path}' has no model yet: train it up to its first evaluation.")
    tensors, metadata = read_model(path)
    if changes := find_changes(metadata, run.identity):
        raise damaged_files(run.path, changes)
    return tensors, metadata


def save_weights(
    run: RunDirectory, tensors: Mapping[str, Tensor], step: int, calibration: Mapping[str, str] | None = None
) -> None:
    """Keep a model, known by its `state_dict`, as the run's best so far; `calibration` is that of another file."""
    metadata = {"step": str(step), **run.identity, **(calibration or {})}
    write_tensors(run.path / MODEL_FILE, tensors, MODEL_FORMAT, metadata)


def calibration_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Take out what a model file says of its calibration, for another file of the same model; empty without one."""
    return {CALIBRATION: metadata[CALIBRATION]} if CALIBRATION in metadata else {}


def read_calibration(run: RunDirectory) -> dict[str, Any] | None:
    """Read how a run's model was calibrated; None where it was not, or has no model."""
    path = run.path / MODEL_FILE
    found = calibration_of(read_metadata(path)) if path.is_file() else {}
    return parse_object(found[CALIBRATION]) if found else None
