"""A run that `bnce export --to onnx` has written, as a language model like any other, without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.pieces import PIECES_FILE, read_vocabulary
from bnce.corpus.vocabulary import Vocabulary
from bnce.corpus.word_index import MappedVocabulary
from bnce.errors import UserError, argument
from bnce.reading import digest_file, map_array, read_object
from bnce.scoring.onnx_engine import WEIGHTS_FILE, OnnxEngine
from bnce.scoring.run_model import RunModel, make_model
from bnce.text.normalise import Normaliser

METADATA_FILE = "model.json"
FORMAT = 2  # exports of earlier versions have no number


def is_exported(path: str | Path) -> bool:
    """Say whether a directory was written by `bnce export --to onnx`, by this version or an earlier one."""
    path = Path(path)
    return (path / METADATA_FILE).is_file() and not (path / "config.toml").is_file()


def load_exported(path: str | Path, device: str = "cpu", num_threads: int = 0) -> RunModel:
    """Open an exported run; it is computed by so many threads of the CPU, 0 for one per core."""
    directory = Path(path)
    if device not in ("auto", "cpu"):
        raise UserError(
            f"The device is '{device}', but the exported run '{path}' is computed on the CPU by ONNX Runtime: use "
            f"{argument('device', 'cpu')}, or give the run itself."
        )
    record = _read_record(directory)
    engine = OnnxEngine(directory, record, num_threads)
    counts = _map_counts(directory, int(record["vocab_size"]))
    vocabulary: Vocabulary
    vocabulary = read_vocabulary(directory) if (directory / PIECES_FILE).is_file() else MappedVocabulary(directory)
    return make_model(engine, vocabulary, Normaliser.from_dict(record["normaliser"]), directory, str(path), counts)


def _read_record(directory: Path) -> dict[str, Any]:
    """Read what an export says of itself, and check that its files are those it was written with."""
    try:
        record = read_object(directory / METADATA_FILE)
    except ValueError as error:
        raise _damaged(directory, f"{METADATA_FILE} cannot be read ({error})") from error
    if (found := record.get("format", 1)) != FORMAT:
        raise UserError(
            f"'{directory}' was exported by bnce {record.get('bnce', '')} in format {found}, and this version opens "
            f"format {FORMAT}: export the run again with 'bnce export RUN --to onnx'."
        )
    try:
        for name, expected in record["sha256"].items():
            if not (directory / name).is_file():
                raise _damaged(directory, f"{name} is missing")
            if digest_file(directory / name) != expected:
                raise _damaged(directory, f"{name} is not the file that was exported")
        num_bytes = (directory / WEIGHTS_FILE).stat().st_size
        for place in record["weights"].values():
            if place["offset"] + np.dtype(place["dtype"]).itemsize * int(np.prod(place["shape"])) > num_bytes:
                raise _damaged(directory, f"{WEIGHTS_FILE} is cut short")
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(directory, f"a file is missing or cannot be read ({error})") from error
    return record


def _map_counts(directory: Path, vocab_size: int) -> NDArray[np.int64]:
    try:
        counts_V = map_array(directory / "counts.npy")
    except ValueError as error:
        raise _damaged(directory, f"counts.npy cannot be read ({error})") from error
    if counts_V.shape != (vocab_size,):
        raise _damaged(directory, f"counts.npy has {counts_V.shape} numbers for {vocab_size} words")
    return counts_V


def _damaged(directory: Path, what: str) -> UserError:
    return UserError(f"The exported run '{directory}' is damaged: {what}; export the run again.")
