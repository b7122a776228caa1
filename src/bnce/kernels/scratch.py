"""Memory with a number per word, in which kernels find equal words: made once and used again."""

from __future__ import annotations

import torch
from torch import Tensor

# Whoever uses it is done before the next begins. Smaller ones are kept, because a captured graph may write to them.
_MADE: dict[torch.device, list[Tensor]] = {}


def scratch(num_words: int, device: torch.device) -> Tensor:
    """Give at least so many int32 numbers on a device, with whatever is in them."""
    made = _MADE.setdefault(device, [])
    if not made or len(made[-1]) < num_words:
        made.append(torch.zeros(num_words, dtype=torch.int32, device=device))
    return made[-1]
