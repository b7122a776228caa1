"""The processes that train one model together, as one of them sees the others.

Everything that goes from process to process goes through a `World`. It runs on
`torch.distributed`: NCCL between GPUs, gloo between CPUs, and gloo by way of the CPU where processes share a GPU. A run
of one process has a world, too, in which nothing is sent.

Legend: R processes.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from bnce.errors import UserError, argument
from bnce.machine.threads import num_restarts, started_many

# PyTorch 2.13 renames it, and warns of the old name.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

# Processes wait so long for each other: as long as the first one may take to write a large model to a slow disk.
TIMEOUT_SECONDS = 600.0
_LAST_WORDS_SECONDS = 2.0  # for the first process to say why it ends


class ProcessLostError(UserError):
    """Another process of the run died or does not answer."""


class World:
    """One of R processes."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: torch.device | None = None,
        group: dist.ProcessGroup | None = None,  # None: all processes
    ) -> None:
        """What is sent goes by way of `device`: NCCL sends from GPUs alone, gloo from CPUs alone; None: nothing is."""
        self.rank, self.size, self.device, self.group = rank, size, device, group
        self.is_alone = device is None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and tells."""
        return self.rank == 0

    @property
    def can_be_captured(self) -> bool:
        """Whether a CUDA graph may have exchanges in it: NCCL's, which run on the GPU."""
        return self.device is None or self.device.type == "cuda"

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all processes, in place."""
        if self.device is None:
            return tensor
        staged = tensor.to(self.device)
        with _explained():
            dist.all_reduce(staged, group=self.group)
        return tensor if staged is tensor else tensor.copy_(staged)

    def gather(self, tensor: Tensor) -> Tensor:
        """Give the tensors of all processes, stacked in their order; all have one shape."""
        if self.device is None:
            return tensor.unsqueeze(0)
        staged = tensor.contiguous().to(self.device)
        gathered = staged.new_empty((self.size, *tensor.shape))
        with _explained():
            whole = gathered.flatten(0, min(1, tensor.ndim))
            _ALL_GATHER(whole, staged.reshape(-1, *tensor.shape[1:]), group=self.group)
        return gathered.to(tensor.device)

    def gather_uneven(self, tensor: Tensor) -> list[Tensor]:
        """Give the tensors of all processes, which may differ in their first dimension."""
        size_R = [int(size) for size in self.gather(torch.tensor([len(tensor)], device=tensor.device))]
        padded = tensor.new_zeros((max(size_R), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        return [part[:size] for part, size in zip(self.gather(padded), size_R, strict=True)]

    def any(self, flags: Mapping[str, bool]) -> dict[str, bool]:
        """Say of each flag whether some process has raised it."""
        if self.is_alone:
            return dict(flags)
        total = torch.tensor([float(flag) for flag in flags.values()], device=self.device)
        return dict(zip(flags, (self.sum_(total) > 0).tolist(), strict=True))

    def share(self, value: Any) -> Any:
        """Give everybody what the first process has."""
        shared = [value]
        if not self.is_alone:
            with _explained():
                dist.broadcast_object_list(shared, src=0, device=self.device)
        return shared[0]

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """Wait inside for a GPU that may be waiting for other processes; end this process if that takes too long.

        PyTorch has an eye on what NCCL sends, but not on what is sent by a captured step.
        """
        if self.device is None or self.device.type != "cuda":
            yield
            return

        def give_up() -> None:  # in another thread: the one that waits for the GPU cannot be reached
            sys.stderr.write(f"bnce: {_lost()}\n")
            sys.stderr.flush()
            os._exit(2)

        timer = threading.Timer(TIMEOUT_SECONDS, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def wait(self) -> None:
        """Wait until all processes are here."""
        if not self.is_alone:
            self.sum_(torch.zeros(1, device=self.device))


def device_of_process(name: str) -> str:
    """Name the device of this process: of `auto` and `cuda` its own GPU, where there are enough of them."""
    if name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


def open_world(device: torch.device) -> World:
    """Join the processes that were started together; a process of its own is a world of one."""
    if not started_many():
        return World()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    num_here = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    has_own_gpu = device.type == "cuda" and num_here <= torch.cuda.device_count()
    if has_own_gpu:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
        with _explained():
            # Processes that torchrun starts again would find the addresses of those before them.
            store, _, _ = next(rendezvous("env://", rank, size, timeout=timeout))
            dist.init_process_group(
                "nccl" if has_own_gpu else "gloo",
                store=PrefixStore(f"start-{num_restarts()}", store),
                rank=rank,
                world_size=size,
                timeout=timeout,
                device_id=device if has_own_gpu else None,
            )
        atexit.register(dist.destroy_process_group)
    return World(rank, size, device if has_own_gpu else torch.device("cpu"))


def leave_after_the_first() -> NoReturn:
    """End a process that follows: the first one says why, and must not be stopped as the last before it has."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(2))  # what the first one's end brings the others
    time.sleep(_LAST_WORDS_SECONDS)
    raise SystemExit(2)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Tell in a sentence that another process is gone or hangs."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise ProcessLostError(_lost()) from error


def _lost() -> str:
    return (
        "Another process of the run has ended or did not answer in time. Continue the run with "
        f"{argument('resume', True)}; its newest whole checkpoint is kept."
    )
