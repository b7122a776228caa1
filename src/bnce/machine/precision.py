"""In which type numbers are multiplied and added: autocast's where it is on, with results in float32 or wider."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Choose the type matrix products are done in: autocast's where it is on, else the tensor's own."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Choose the type that results of products are added up in: float32, or float64 where the products are."""
    return torch.promote_types(dtype, torch.float32)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Widen a tensor to float32; float64 stays as it is."""
    return tensor.to(sum_dtype(tensor.dtype))


def fitted(tensor: Tensor, weight: Tensor) -> Tensor:
    """Give a tensor the type of the weight that it is multiplied by, where autocast does not see to that."""
    device = tensor.device.type
    if tensor.dtype == weight.dtype or (torch.is_autocast_enabled(device) and tensor.dtype != torch.float64):
        return tensor
    return tensor.to(weight.dtype)


def product_in_float32(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices of a narrow type into float32, where possible without rounding to the narrow type between."""
    multiply = torch.bmm if left.ndim == 3 else torch.mm
    if left.dtype.itemsize >= 4:
        return multiply(left, right)
    if left.is_cuda:
        return multiply(left, right, out_dtype=torch.float32)
    return multiply(left, right).float()


@contextlib.contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Say whether a GPU may round the inputs of float32 products to tf32, until the block ends."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
