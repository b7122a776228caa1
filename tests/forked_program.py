"""A program `bnce` for shells that tests start: each call is a fork of this process, which has PyTorch already.

A process of its own for every command would take seconds to import it. What is of the process itself (its entry point,
its imports, its end by a signal) is tested in tests/cli, with `python -m bnce`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import warnings
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
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        warnings.resetwarnings()
        sys.argv = ["bnce", *words]
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        caller.sendall(bytes([status]))
        os._exit(status)
