"""Tables in fewer bits on disk: float16, bf16, or int8 with one scale per row; unpacked they are float32 again.

Only matrices with one row per word are packed. They are nearly all of a model, and a row's error affects only its own
word's score. The body and the bias are small and stay exact.

Legend: V rows of the table, D columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from bnce.errors import UserError, unknown_name

ROW_FORMATS = ("float32", "float16", "bf16", "int8")
SCALE_SUFFIX = ".scale"
_TYPES = {"float16": torch.float16, "bf16": torch.bfloat16}
_INT8_MAX = 127


def pack_rows(tensors: Mapping[str, Tensor], tables: Collection[str], row_format: str) -> dict[str, Tensor]:
    """Replace the matrices among `tables` by their packed form; int8 adds a tensor of scales beside each."""
    if row_format not in ROW_FORMATS:
        raise unknown_name("row format", row_format, ROW_FORMATS)
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if row_format == "float32" or name not in tables or tensor.ndim != 2:
            packed[name] = tensor
        elif row_format in _TYPES:
            packed[name] = _to_type(name, tensor, row_format)
        else:
            packed[name], packed[name + SCALE_SUFFIX] = _to_int8(name, tensor)
    return packed


def unpack_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give every tensor of a model as float32, whichever form it was packed in, in memory of its own.

    What is read from a file is a map of it, at whatever place the file's header leaves: products would round by that.
    """
    unpacked: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(SCALE_SUFFIX):
            continue
        scale_V = tensors.get(name + SCALE_SUFFIX)
        unpacked[name] = tensor.to(torch.float32, copy=True)
        if scale_V is not None:
            unpacked[name].mul_(scale_V.unsqueeze(1))
    return unpacked


def _to_type(name: str, table_VD: Tensor, row_format: str) -> Tensor:
    packed_VD = table_VD.to(_TYPES[row_format])
    if not packed_VD.isfinite().all():
        raise UserError(f"The table '{name}' has values that {row_format} cannot hold: use float32.")
    return packed_VD


def _to_int8(name: str, table_VD: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to 255 even steps between its largest absolute value and the negative of that."""
    scale_V = table_VD.abs().amax(1) / _INT8_MAX
    if not scale_V.isfinite().all():
        raise UserError(f"The table '{name}' has values that are not finite: int8 cannot hold them; use float32.")
    # A row of zeros has scale 0, by which nothing can be divided.
    step_V1 = torch.where(scale_V > 0, scale_V, 1.0).unsqueeze(1)
    # A scale so small that float32 holds few digits of it can push the largest value past the last step.
    return (table_VD / step_V1).round_().clamp_(-_INT8_MAX, _INT8_MAX).to(torch.int8), scale_V
