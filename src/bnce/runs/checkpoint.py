"""Files a run can be continued and used from: safetensors with a checksum, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from bnce import files
from bnce.errors import UserError, argument
from bnce.runs.model_file import DAMAGED, opened
from bnce.runs.packed_rows import unpack_rows

STATE_FORMAT = "bnce-state-2"
MODEL_FORMAT = "bnce-model-2"
TRANSFORMERS_FORMAT = "pt"  # what the transformers library writes, and insists on
NUM_KEPT_STATES = 2


@dataclass(frozen=True)
class State:
    """A resumable state: its tensors by name, and what is not a tensor."""

    path: Path
    tensors: dict[str, Tensor]
    record: dict[str, Any]
    origin: Mapping[str, str]


def save_state(
    directory: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    record: Mapping[str, Any],
    origin: Mapping[str, str],
) -> Path:
    """Write the state after `step` steps and drop all but the newest ones; `origin` says which run it is of."""
    path = state_file(directory, step)
    earlier = [old.name for old in state_files(directory) if old < path]
    # A state names the one before it, which is kept beside it: so the loss of that one can be seen.
    previous = {"previous": earlier[-1]} if earlier else {}
    write_tensors(path, tensors, STATE_FORMAT, {**origin, **previous, "record": json.dumps(record)})
    for old in state_files(directory)[:-NUM_KEPT_STATES]:
        old.unlink()
    return path


def state_file(directory: Path, step: int) -> Path:
    """Name the state after so many steps."""
    return directory / f"state-{step:012d}.safetensors"


def state_files(directory: Path) -> list[Path]:
    """List the states of a run, oldest first."""
    return sorted(directory.glob("state-*.safetensors"))


def remove_states(directory: Path) -> None:
    """Delete what a run would be resumed from."""
    for path in state_files(directory):
        path.unlink(missing_ok=True)


def load_newest_state(directory: Path, check: Callable[[Path, Mapping[str, str]], None]) -> tuple[State, list[str]]:
    """Read the newest state that is whole; also say, a sentence each, why newer ones were refused.

    `check` refuses, by its origin, a state that this run cannot go on from.
    """
    refused: list[str] = []
    for path in reversed(state_files(directory)):
        try:
            tensors, metadata = read_tensors(path, STATE_FORMAT)
            check(path, metadata)
            return State(path, tensors, json.loads(metadata["record"]), metadata), refused
        except UserError as error:
            refused.append(str(error))
    found = f" {' '.join(refused)}" if refused else ""
    raise UserError(
        f"'{directory}' has no checkpoint to resume from: start the run again with another {argument('out')}.{found}"
    )


def write_tensors(path: Path, tensors: Mapping[str, Tensor], kind: str, metadata: Mapping[str, str]) -> None:
    """Write tensors with their checksum and kind."""
    on_host = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    header = {**metadata, "format": kind}
    header["checksum"] = _checksum(on_host, header)
    with files.atomic_file(path) as partial:
        partial.touch()
        mode = partial.stat().st_mode
        try:
            save_file(on_host, partial, header)
            partial.chmod(mode)  # safetensors makes a file that nobody else may read
            _sort_metadata(partial)
        except SafetensorError as error:
            # A full disk is told in words only: give it the number that others look at.
            if number := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
            raise


def _sort_metadata(path: Path) -> None:
    """Put a file's metadata in order, in which safetensors does not write it: equal runs give equal bytes."""
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(ordered) <= length:  # as it always is, unless a letter is escaped otherwise one day
            file.seek(8)
            file.write(ordered.ljust(length))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors back; a torn, damaged or foreign file is refused."""
    tensors, metadata = _read(path)
    _check(path, tensors, metadata, kind)
    return tensors, metadata


def read_model(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a model as float32, however its rows are packed, and also as transformers saves it: without a checksum."""
    tensors, metadata = _read(path)
    of_transformers = metadata.get("format") == TRANSFORMERS_FORMAT
    if not of_transformers or "checksum" in metadata:
        _check(path, tensors, metadata, TRANSFORMERS_FORMAT if of_transformers else MODEL_FORMAT)
    return unpack_rows(tensors), metadata


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with opened(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def _check(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str], kind: str) -> None:
    if metadata.get("format") != kind:
        raise UserError(f"'{path}' is not a {kind} file: it says '{metadata.get('format', 'nothing')}'.")
    if metadata.pop("checksum", None) != _checksum(tensors, metadata):
        raise UserError(DAMAGED.format(path))


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    total = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        if tensor.numel():
            total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"
