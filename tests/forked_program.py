"""A program `bnce` for shells that tests start: each call is a fork of this process, which has PyTorch already.

A process of its own for every command would take seconds to import it. What is of the process itself (its entry point,
its imports, its end by a signal) is tested in tests/cli, with `python -m bnce`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from bnce.__main__ import main

# It hands over its words, its directory, its environment and its streams, and ends as the command does.
CLIENT = """#!{python} -SE
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"+"], [0, 1, 2])
server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
status = server.recv(1)
sys.exit(status[0] if status else "bnce ended without a status")
"""


def run_shell(
    command: list[str], directory: Path, environment: dict[str, str], programs: Path, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a program on whose path `bnce` is."""
    # A socket's address may have a hundred characters, and a test's directory can have more.
    address = f"\0bnce-{os.getpid()}-{time.monotonic_ns()}"
    with (
        socket.socket(socket.AF_UNIX) as listener,
        open(directory / "out", "w+") as out,
        open(directory / "err", "w+") as err,
    ):
        listener.bind(address)
        listener.listen()
        listener.settimeout(0.05)
        (programs / "bnce").write_text(CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
        (programs / "bnce").chmod(0o755)
        deadline = time.monotonic() + timeout
        with subprocess.Popen(command, cwd=directory, env=environment, stdout=out, stderr=err) as shell:
            children = _serve(listener, shell, deadline)
        for child in children:
            os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, shell.returncode, out.read(), err.read())


def _serve(listener: socket.socket, shell: subprocess.Popen[bytes], deadline: float) -> list[int]:
    """Fork for every call until the shell is through."""
    children = []
    while shell.poll() is None:
        if time.monotonic() > deadline:
            shell.kill()
            raise AssertionError("the commands take too long")
        try:
            caller, _ = listener.accept()
        except TimeoutError:
            continue
        with caller:
            caller.setblocking(True)
            child = os.fork()
            if child == 0:
                listener.close()
                _be_called(caller)
            children.append(child)
    return children


def _be_called(caller: socket.socket) -> None:
    """Run the command as the caller would have, and tell it the status."""
    status = 1
    try:
        _, streams, _, _ = socket.recv_fds(caller, 1, 3)
        told = b""
        while data := caller.recv(65536):
            told += data
        words, directory, environment = json.loads(told)
        os.chdir(directory)
        status = _run(words, streams, environment)
    finally:
        caller.sendall(bytes([status]))
        os._exit(status)


def _run(words: Sequence[str], streams: Sequence[int], environment: Mapping[str, str]) -> int:
    """Run a command in this process, which nothing else is done in; give its status."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    warnings.resetwarnings()
    logging.root.handlers.clear()  # pytest's
    sys.argv = ["bnce", *words]
    status = 0
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


class ForkedBnce:
    """The command `bnce` as a process, which is a fork of this one; it has what tests use of `subprocess.Popen`."""

    def __init__(
        self,
        *words: object,
        environment: Mapping[str, str],
        stdout: int | None = None,
        stderr: int | None = None,
        process_group: bool = False,
    ) -> None:
        """Start it; without descriptors, standard output goes to a pipe, and standard error to a file."""
        self.returncode: int | None = None
        self._told = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(reading)
                if process_group:
                    os.setpgid(0, 0)
                nothing = os.open(os.devnull, os.O_RDONLY)
                out = writing if stdout is None else stdout
                streams = (nothing, out, self._told.fileno() if stderr is None else stderr)
                if stdout is not None:
                    os.close(writing)
                status = _run([*map(str, words)], streams, environment)
            finally:
                os._exit(status)
        if process_group:
            with contextlib.suppress(OSError):  # whoever is first
                os.setpgid(self.pid, self.pid)
        os.close(writing)
        self.stdout = open(reading, encoding="utf-8")  # noqa: SIM115

    def poll(self) -> int | None:
        """Give its status, where it has ended."""
        if self.returncode is None:
            self._ended(os.waitpid(self.pid, os.WNOHANG))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, where it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end, as long as a test may take, and give what it wrote."""
        if self.stdout.closed:
            return "", ""
        out = self.stdout.read()
        if self.returncode is None:
            self._ended(os.waitpid(self.pid, 0))
        self._told.seek(0)
        told = self._told.read()
        self.stdout.close()
        self._told.close()
        return out, told

    def _ended(self, found: tuple[int, int]) -> None:
        if found[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
