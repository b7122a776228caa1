"""CPU threads: how many compute, and how they wait for each other.

PyTorch's threads meet after every operation, thousands of times per second, and OpenMP lets the one that arrives first
spin for milliseconds: the quickest way on a quiet machine. Where another process wants the same cores, a thread then
spins away its share of a core while the thread it waits for is not running, and two threads are many times slower
than one. So somebody watches how long the threads wait for a core, and has them sleep instead of spin as long as they
do. The number of threads stays the same all the while, since sums may be rounded differently with another number.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from pathlib import Path

import torch

from bnce.machine.workers import num_cores

INTERVAL_SECONDS = 0.5
# Of every second, how long threads stood in line for a core, all threads together.
BUSY_SHARE = 0.25
QUIET_SHARE = 0.05
NUM_QUIET_INTERVALS = 4  # before threads spin again: work that comes in bursts should not change it every time

_NUMBER_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_TASKS = Path("/proc/self/task")
_MAPS = Path("/proc/self/maps")
_watcher: Watcher | None = None


def use_threads(usual: int = 0) -> int:
    """Compute with `usual` CPU threads, 0 for one per core, and return their number; see that they share cores well.

    The environment variable OMP_NUM_THREADS has its way.
    """
    global _watcher
    number = torch.get_num_threads()  # PyTorch's own: that of the environment, or one per core
    if not any(os.environ.get(name) for name in _NUMBER_VARIABLES):
        number = usual or min(number, num_cores())  # a container may have a share of the machine
    torch.set_num_threads(number)
    if _watcher is None and torch.get_num_threads() > 1:
        runtime = find_runtime()
        if runtime is not None and waiting_seconds() is not None:
            _watcher = Watcher(Sleep(runtime))
            _watcher.start()
    return torch.get_num_threads()


def find_runtime() -> ctypes.CDLL | None:
    """Find the OpenMP runtime that PyTorch has loaded, if it is GNU's, whose threads can be told how to wait."""
    with contextlib.suppress(OSError):
        for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
            path = line.split(maxsplit=5)[-1]
            if Path(path).name.startswith("libgomp"):
                return ctypes.CDLL(path)
    return None


def waiting_seconds() -> float | None:
    """Add up how long the threads of this process have been ready to run without a core; None where it is not told."""
    total, is_told = 0, False
    with contextlib.suppress(OSError):
        for task in _TASKS.iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):  # a thread that has just ended
                total += int((task / "schedstat").read_text(encoding="ascii").split()[1])
                is_told = True
    return total / 1e9 if is_told else None


class Sleep:
    """Has OpenMP's threads sleep rather than spin where they wait, for as long as it is on.

    GNU's runtime spins for a short time only while it has more threads than there are cores. A thread with a team of
    its own, which does nothing, makes it so; when that thread ends, its team ends with it.
    """

    def __init__(self, runtime: ctypes.CDLL) -> None:
        self._runtime = runtime
        self._holder: threading.Thread | None = None
        self._end = threading.Event()

    def turn_on(self) -> None:
        """Have threads sleep."""
        if self._holder is None:
            begun = threading.Event()
            self._end.clear()
            self._holder = threading.Thread(target=self._hold_team, args=(begun,), name="bnce-sleep", daemon=True)
            self._holder.start()
            begun.wait()

    def turn_off(self) -> None:
        """Have threads spin again."""
        if self._holder is not None:
            self._end.set()
            self._holder.join()
            self._holder = None

    def _hold_team(self, begun: threading.Event) -> None:
        num_members = max(2, self._runtime.omp_get_num_procs() - torch.get_num_threads() + 2)
        # What the team runs is a function of the runtime that only returns a number.
        self._runtime.GOMP_parallel(self._runtime.omp_get_num_procs, None, num_members, 0)
        begun.set()
        self._end.wait()


class Watcher(threading.Thread):
    """Looks twice per second at how long threads waited for a core, and has them sleep while that is long."""

    def __init__(self, sleep: Sleep) -> None:
        super().__init__(name="bnce-threads", daemon=True)
        self._sleep = sleep
        self._num_quiet = 0

    def run(self) -> None:
        """Look, until the process ends."""
        looked, waited = time.monotonic(), waiting_seconds() or 0.0
        while True:
            time.sleep(INTERVAL_SECONDS)
            looked_before, looked = looked, time.monotonic()
            waited_before, waited = waited, waiting_seconds() or 0.0
            self.heed((waited - waited_before) / (looked - looked_before))

    def heed(self, share: float) -> None:
        """Act on how much of a second threads waited for a core in the last one."""
        self._num_quiet = self._num_quiet + 1 if share < QUIET_SHARE else 0
        if share > BUSY_SHARE:
            self._sleep.turn_on()
        elif self._num_quiet >= NUM_QUIET_INTERVALS:
            self._sleep.turn_off()
