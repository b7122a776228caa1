"""A run that `bnce export --to onnx` has written, as a language model like any other, without PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.spelling import SpellingModel
from bnce.corpus.word_index import MappedVocabulary
from bnce.errors import UserError, argument
from bnce.files import map_array
from bnce.scoring.export_record import damaged_export, open_record
from bnce.scoring.onnx_engine import OnnxEngine
from bnce.scoring.run_model import RunModel
from bnce.text.normalise import Normaliser


def load_exported(path: str | Path, device: str = "cpu") -> RunModel:
    """Open an exported run."""
    directory = Path(path)
    if device not in ("auto", "cpu"):
        raise UserError(
            f"The device is '{device}', but the exported run '{path}' is computed on the CPU by ONNX Runtime: use "
            f"{argument('device', 'cpu')}, or give the run itself."
        )
    record = open_record(directory)
    engine = OnnxEngine(directory, record)
    counts = _map_counts(directory, int(record["vocab_size"]))
    vocabulary = MappedVocabulary(directory)
    normaliser, spelling = Normaliser.from_dict(record["normaliser"]), SpellingModel.of_run(directory)
    return RunModel(engine, vocabulary, normaliser, str(path), spelling, counts)


def _map_counts(directory: Path, vocab_size: int) -> NDArray[np.int64]:
    try:
        counts_V = map_array(directory / "counts.npy")
    except ValueError as error:
        raise damaged_export(directory, f"counts.npy cannot be read ({error})") from error
    if counts_V.shape != (vocab_size,):
        raise damaged_export(directory, f"counts.npy has {counts_V.shape} numbers for {vocab_size} words")
    return counts_V
