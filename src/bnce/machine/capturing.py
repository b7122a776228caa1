"""Work on a GPU that runs a few times as it is, and is then captured as a CUDA graph, to be replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch


class SideStream:
    """A stream on which work runs before it is captured, and is captured."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    def run(self, work: Callable[[], object]) -> None:
        """Run as capturing will: there libraries set up workspaces that they keep, and Triton compiles."""
        # One stream for all runs: each has its own workspaces, and memory that others do not get.
        stream = self._stream = self._stream or torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream(self.device).wait_stream(stream)

    def capture(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Capture work that has run before; nothing is computed."""
        graph = torch.cuda.CUDAGraph()
        # A graph that only a cycle of references has kept would be destroyed while this one is captured, which ends
        # that with an error. PyTorch itself collects before it captures only up to version 2.8.
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            # Other threads, which read, write and look after what is sent, must not end it.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                work()
        finally:
            if was_enabled:
                gc.enable()
        return graph
