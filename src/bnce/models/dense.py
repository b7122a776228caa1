"""A dense ReLu layer, as the bodies have it before the output.

Legend: E inputs, D outputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce import kernels


@kernels.with_twin("dense")
def dense_relu(input: Tensor, weight_DE: Tensor, bias_D: Tensor) -> Tensor:
    """Compute max(0, x·W + b) for rows of any shape."""
    return torch.relu(F.linear(input, weight_DE, bias_D))
