"""What a GPU finds wrong with targets, told to the host without its waiting.

A loss of NaN says that something is wrong, but not what. So kernels write the reason where the host can read it: into
memory of the host that the GPU reaches, and only when there is one. Nothing is copied, and nobody waits. The host looks
when it next passes by; the step that went wrong is then over.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Wrong(NamedTuple):
    """What kernels have found since it was last asked for. 0: nothing; as a target, 0 is always a word."""

    num_distinct: int  # different targets in a chunk that was to have fewer
    target: int  # a target that is no word


class WrongTargets:
    """Two numbers that kernels of one layer write."""

    def __init__(self) -> None:
        self._numbers: Tensor | None = None

    def room(self, device: torch.device) -> Tensor | None:
        """Give where to write; None: nowhere, because a CUDA graph is captured and there was no call before."""
        if self._numbers is None:
            is_cuda = device.type == "cuda"
            if is_cuda and torch.cuda.is_current_stream_capturing():
                return None
            self._numbers = torch.zeros(2, dtype=torch.int64, pin_memory=is_cuda)
            self._seen = self._numbers.numpy()
        return self._numbers

    def take(self) -> Wrong | None:
        """Say what was found, and forget it."""
        if self._numbers is None or not (self._seen[0] or self._seen[1]):
            return None
        found = Wrong(int(self._seen[0]), int(self._seen[1]))
        self._numbers.zero_()
        return found

    def __reduce__(self) -> tuple[type[WrongTargets], tuple[()]]:
        """Start anew in a copy of the layer: what was found belongs to this one."""
        return WrongTargets, ()
