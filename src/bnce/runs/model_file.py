"""A run's best model so far: its network built, written and read back, and what its file says beside the tensors.

PyTorch is loaded by what needs tensors, and by nothing else here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from bnce.errors import UserError, argument
from bnce.files import parse_object
from bnce.registry import Lstm, ReluLstm
from bnce.runs.directory import MODEL_FILE, Run

if TYPE_CHECKING:
    from torch import Tensor

    from bnce.engine.network import Network
    from bnce.language_model import LanguageModel

DAMAGED = "'{}' is damaged: its checksum does not match its contents."
# How a checksum names numbers, which is as PyTorch does, and how much is read at a time.
_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8"}
_PIECE = 2**20
RUN_KEY, CALIBRATION = "run", "calibration"  # in the metadata: the digest of run.json; what was fitted after training
# The parts of a network in the order it has them, and the names of their tensors, without the scales of packed rows.
_PARTS = {
    "embedding": "embedding",
    "body": r"body\..*",
    "output_weight": r"output\.weight",
    "output_bias": r"output\.bias",
    "log_z": r"output\.log_z",
    "output_structure": r"output\.structure\..*(?<!\.scale)",
}


def build_model(run: Run, device: str = "cpu") -> LanguageModel:
    """Build the network that a run trains, at its start; on `meta` it has shapes and no values."""
    import torch

    from bnce.language_model import LanguageModel
    from bnce.noise import make_noise

    noise = make_noise(run.config.loss, run.target_counts)
    with torch.device(device):
        return LanguageModel(run.config.model, run.config.loss, noise)


def load_model(run: Run, device: str = "cpu") -> LanguageModel:
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


def _may_have_gpu() -> bool:
    """Look for a GPU's driver, which takes no time; to ask PyTorch takes a second."""
    return sys.platform != "linux" or any(Path("/dev").glob("nvidia*")) or Path("/dev/dxg").exists()


def open_network(run: Run, device: str = "cpu", precision: str = "float32", *, is_for_much: bool = False) -> Network:
    """Open what computes a run's best model so far: NumPy on a CPU, and PyTorch on a GPU or where NumPy cannot.

    The device is auto, cpu, cuda or cuda:N. Without PyTorch auto is the CPU. For much text PyTorch, where it is
    installed, computes an LSTM on a CPU, too: it takes longer to start, and then two thirds of the time.
    """
    from bnce.engine.numpy_network import NumpyNetwork, can_compute

    has_torch = importlib.util.find_spec("torch") is not None
    if device == "auto" and not _may_have_gpu():
        device = "cpu"
    if device != "cpu" and has_torch:
        from bnce.machine.devices import choose_device

        device = str(choose_device(device))
    network: Network
    model, loss = run.config.model, run.config.loss
    prefers_torch = is_for_much and has_torch and isinstance(model, Lstm | ReluLstm)
    if device == "cpu" and precision == "float32" and can_compute(model, loss) and not prefers_torch:
        path = _model_path(run)
        metadata = _check_owner(run, read_metadata(path))
        _check_contents(path)
        try:
            network = NumpyNetwork(path, model, loss, is_calibrated=CALIBRATION in metadata)
            if network.vocab_size != len(run.vocabulary):
                raise ValueError(f"it has {network.vocab_size} words")
        except (KeyError, ValueError) as error:
            raise UserError(f"'{path}' does not fit the run's config.toml and vocab.txt: {error}") from error
    else:
        if not has_torch:
            from bnce.machine.packages import missing

            raise missing("torch", f"'{run.path}', a {model.name} with {loss.name} on '{device}',", "layer")
        from bnce.engine.torch_network import TorchNetwork

        network = TorchNetwork(load_model(run, device), precision)
    network.name = f"'{run.path}'"
    return network


def _check_contents(path: Path) -> None:
    """Refuse a damaged file whose tables will be mapped; it is read in pieces, none of which is kept."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        metadata = header.pop("__metadata__", {})
        expected = metadata.pop("checksum", None)
        total = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
        for name, one in sorted(header.items()):
            total = zlib.crc32(f"{name} torch.{_TYPES.get(one['dtype'])} {tuple(one['shape'])}".encode(), total)
            begin, end = (8 + size + offset for offset in one["data_offsets"])
            file.seek(begin)
            for start in range(begin, end, _PIECE):
                total = zlib.crc32(file.read(min(_PIECE, end - start)), total)
    is_unmarked = expected is None and metadata.get("format") == "pt"  # as the transformers library writes it
    if not is_unmarked and expected != f"{total:08x}":
        raise UserError(DAMAGED.format(path))


def read_weights(run: Run) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a run's best model so far as tensors by name, and what its file says beside them."""
    from bnce.runs.checkpoint import read_model

    tensors, metadata = read_model(_model_path(run))
    return tensors, _check_owner(run, metadata)


def _model_path(run: Run) -> Path:
    """Find the file of a run's best model so far."""
    path = run.path / MODEL_FILE
    if not path.is_file():
        raise UserError(
            f"The run '{run.path}' has no model: train it up to its first evaluation, or, if it is a row of an "
            f"experiment with {argument('keep_models', False)}, again with another {argument('out')}."
        )
    return path


def _check_owner(run: Run, metadata: dict[str, str]) -> dict[str, str]:
    """Refuse the model of another run by what its file says beside the tensors."""
    if metadata.get(RUN_KEY, run.digest) != run.digest:  # that of another program does not say
        raise UserError(
            f"'{run.path / MODEL_FILE}' is the model of another run, with other words, counts or settings: restore the "
            "file, or train the run again."
        )
    return metadata


def save_weights(
    run: Run, tensors: Mapping[str, Tensor], step: int, calibration: Mapping[str, str] | None = None
) -> None:
    """Keep a model, known by its `state_dict`, as the run's best so far; `calibration` is that of another file."""
    from bnce.runs.checkpoint import MODEL_FORMAT, write_tensors

    metadata = {"step": str(step), RUN_KEY: run.digest, **(calibration or {})}
    write_tensors(run.path / MODEL_FILE, tensors, MODEL_FORMAT, metadata)


def read_metadata(path: Path) -> dict[str, str]:
    """Read what a file says beside its tensors, without these and so without its checksum."""
    with opened(path) as file:
        return dict(file.metadata() or {})


def count_parameters(run: Run) -> dict[str, int] | None:
    """Count the parameters of each part by the shapes in the model file; None where there is no model yet."""
    if not (run.path / MODEL_FILE).is_file():
        return None
    with opened(run.path / MODEL_FILE) as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    if not getattr(run.config.loss, "learn_log_z", False):  # then it is no parameter
        shapes.pop("output.log_z", None)
    counts = {
        part: sum(math.prod(shape) for name, shape in shapes.items() if re.fullmatch(names, name))
        for part, names in _PARTS.items()
    }
    return {part: count for part, count in counts.items() if count}


def calibration_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Take out what a model file says of its calibration, for another file of the same model; empty without one."""
    return {CALIBRATION: metadata[CALIBRATION]} if CALIBRATION in metadata else {}


def read_calibration(run: Run) -> dict[str, Any] | None:
    """Read how a run's model was calibrated; None where it was not, or has no model."""
    path = run.path / MODEL_FILE
    found = calibration_of(read_metadata(path)) if path.is_file() else {}
    return parse_object(found[CALIBRATION]) if found else None


@contextlib.contextmanager
def opened(path: Path, framework: str = "np") -> Iterator[Any]:
    """Open a safetensors file; a torn or foreign one is refused."""
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UserError(f"'{path}' is incomplete or not a safetensors file ({error}).") from error
