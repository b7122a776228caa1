"""Runs this program several times at once, each copy with its share of the machine, until a list of tasks is done.

The tasks are numbers below 256, in a pipe. A copy takes the next one when it is ready, so that each is taken once,
and an empty pipe means that all are taken. The pipe also ties the copies to the process that started them: when its
writing end closes, because that process wants to stop or has died, each copy saves what it has and ends. Signals to
the copies would not do for that: a terminal and a batch system also send theirs, and a second one ends a process at
once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from bnce.machine.stopping import hold_signals

ERROR_PREFIX = "bnce: "  # of the sentence that says why a command ended
_FAILED = (1, 2)  # the statuses of a command that failed, and was not stopped
_LOOK_SECONDS = 0.1  # between two looks at whether a copy has ended or a signal came
_LAST_WORDS_SECONDS = 2.0  # for the output of a copy that has ended; a process that it started may keep it open


@dataclass(frozen=True)
class Ended:
    """How a copy ended: its status (negative: minus the signal), what it printed, and why it failed."""

    number: int
    status: int
    output: str
    sentence: str

    @property
    def how(self) -> str:
        """Say why it did not come to its end."""
        number = -self.status if self.status < 0 else self.status - 128
        if number <= 0:
            return f"failed: {self.sentence or f'it ended with status {self.status}.'}"
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"was ended by {name}{', perhaps because memory ran out' if number == signal.SIGKILL else ''}."


def run_copies(
    arguments: Callable[[int], Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    tasks: Sequence[int],
    tell: Callable[[str], None],
) -> list[Ended]:
    """Run `bnce` once per environment, with arguments that name the pipe's descriptor, and wait until all have ended.

    What a copy writes to standard error is told line by line, after its number; the sentence of a failure is kept
    instead, since several copies may fail for the same reason. Ctrl-C and SIGTERM do what they usually do once all
    copies have saved and ended.
    """
    with hold_signals() as asked_to_stop, contextlib.ExitStack() as stack:
        reading, writing = os.pipe()
        tasks_left = stack.enter_context(os.fdopen(writing, "wb", buffering=0))
        with os.fdopen(reading, "rb", buffering=0):
            tasks_left.write(bytes(tasks))
            os.set_blocking(reading, False)
            copies = []
            for number, environment in enumerate(environments, start=1):
                output = stack.enter_context(tempfile.TemporaryFile())
                copies.append(_Copy(number, arguments(reading), environment, reading, output, tell))
        while running := [copy for copy in copies if copy.process.poll() is None]:
            if asked_to_stop():
                tasks_left.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].process.wait(_LOOK_SECONDS)
        ended = [copy.ended() for copy in copies]
        for copy in ended if asked_to_stop() else []:
            if copy.status in _FAILED:  # to save, for example: nobody will look at what is returned
                tell(f"[{copy.number}] {copy.sentence}")
        return ended


def share_machine(gpus: Sequence[str], num_copies: int) -> list[dict[str, str]]:
    """Give each copy one of the GPUs in turn, or none where there are none, and its share of the cores."""
    shares = [{"LOCAL_WORLD_SIZE": str(num_copies)} for _ in range(num_copies)]
    for number, share in enumerate(shares):
        if gpus:
            share["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    return shares


def take_tasks(descriptor: int) -> Iterator[int]:
    """Take one task after another, in a copy, until none is left."""
    while True:
        try:
            task = os.read(descriptor, 1)
        except BlockingIOError:
            return
        if not task:
            return
        yield task[0]


def stop_with_starter(descriptor: int) -> None:
    """Stop this copy, as by SIGTERM, as soon as the process that started it wants to stop or has died."""
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_wait_for_the_end, args=(descriptor,), name="bnce-starter", daemon=True).start()


def _wait_for_the_end(descriptor: int) -> None:
    waiting = select.poll()
    waiting.register(descriptor, 0)  # to no data: only to the end
    waiting.poll()
    # A batch system may have sent SIGTERM to all processes, and a second one would keep this one from saving.
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        os.kill(os.getpid(), signal.SIGTERM)


class _Copy:
    """One copy of the program, and who listens to it."""

    def __init__(
        self,
        number: int,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        descriptor: int,
        output: IO[bytes],
        tell: Callable[[str], None],
    ) -> None:
        self._number, self._output, self._tell = number, output, tell
        self._sentence = ""
        # A group of its own: Ctrl-C in a terminal goes to the process that started it alone.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bnce", *arguments],
            env={**os.environ, "TERM": "dumb", **environment},  # no bars, also where FORCE_COLOR asks for a terminal's
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            pass_fds=[descriptor],
            process_group=0,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                if line.startswith(ERROR_PREFIX):
                    self._sentence = line.removeprefix(ERROR_PREFIX).rstrip()
                else:
                    self._tell(f"[{self._number}] {line.rstrip()}")

    def ended(self) -> Ended:
        """Say how it ended, once it has."""
        self._listener.join(_LAST_WORDS_SECONDS)
        self._output.seek(0)
        return Ended(
            self._number, self.process.returncode, self._output.read().decode(errors="replace"), self._sentence
        )
