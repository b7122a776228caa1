"""A Dask scheduler and workers, each a process of its own as on a cluster of machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


class Machines:
    """A scheduler and its workers, with their logs in a directory; `file` is the scheduler file."""

    def __init__(self, directory: Path, num_workers: int = 2) -> None:
        self.directory = directory
        self.file = directory / "scheduler.json"
        options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show")
        self.scheduler = self._start("scheduler", *options)
        self.workers = [self._start("worker", f"--name=w{n}", "--no-nanny", "--nthreads=1") for n in range(num_workers)]
        # A scheduler's file is there before its text is.
        self._wait_for(lambda: self._has_address() and self._num_registered() == num_workers)
        self.address: str = json.loads(self.file.read_text())["address"]

    def _start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        log = self.directory / f"{kind}-{len(list(self.directory.glob('*.log')))}.log"
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(self.file), *options]
        if kind == "worker":
            command += ["--no-dashboard", "--local-directory", str(self.directory)]
        with open(log, "wb") as file:
            return subprocess.Popen(command, stdout=file, stderr=file, cwd=self.directory)

    def _has_address(self) -> bool:
        return self.file.exists() and self.file.read_text().endswith("}")

    def _num_registered(self) -> int:
        return sum("Registered to" in log.read_text() for log in self.directory.glob("worker-*.log"))

    def _wait_for(self, happens: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not happens():
            assert time.monotonic() < end, [log.read_text() for log in self.directory.glob("*.log")]
            time.sleep(0.05)

    def stop(self) -> None:
        """End all processes; they were told nothing, as when a machine is switched off."""
        for process in (*self.workers, self.scheduler):
            # One that was stopped hears of nothing else.
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.wait()
