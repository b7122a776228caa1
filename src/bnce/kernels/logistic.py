"""The logistic function and its integral, without overflow."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(score):
    """Compute ln(1 + exp(score))."""
    return tl.maximum(score, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(score)))


@triton.jit
def sigmoid(score):
    """Compute 1 / (1 + exp(−score))."""
    small = tl.exp(-tl.abs(score))
    return tl.where(score >= 0.0, 1.0, small) / (1.0 + small)
