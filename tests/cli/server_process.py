"""`bnce serve` as a process of its own, on a port of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class ServerProcess:
    """A running server."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        """Give the port it listens on."""
        return int(self.url.rpartition(":")[2])

    def memory_bytes(self, key: str = "VmRSS") -> int:
        """Read what it holds in memory, or with VmHWM the most it ever held."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{key}:"))

    def holds(self, connection: socket.socket) -> bool:
        """Tell whether the server still has its end of a connection; what the system alone keeps has no inode."""
        ours = f":{connection.getsockname()[1]:04X}"
        rows = [row.split() for row in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
        ends = [row for row in rows if row[1].endswith(f":{self.port:04X}") and row[2].endswith(ours)]
        return any(row[9] != "0" for row in ends)

    def stop(self) -> tuple[int, str]:
        """Ask it to end; gives its status and what it wrote to standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@contextmanager
def serving(run: Path, *options: object) -> Iterator[ServerProcess]:
    """Start a server and wait until it is ready; it is gone when the block ends, however that ends."""
    command = [sys.executable, "-m", "bnce", "serve", run, "--port", 0, "--json", *options]
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: {process.communicate(timeout=10)[1]}")
        yield ServerProcess(process, json.loads(line)["url"])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
