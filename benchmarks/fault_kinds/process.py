"""Cases as processes of their own, forked from one that has everything imported: milliseconds in place of seconds."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from .verdict import Outcome, Verdict

MAX_SECONDS = 20.0  # of the processor
MAX_STALL = 5  # times that, by the clock, for one that waits: the machine may be busy
STOP_SECONDS = 10.0
MEMORY_BYTES = 3 * 2**30
FILE_BYTES = 2**30


@dataclass(frozen=True)
class Case:
    """One case, which its kind, the seed and its number decide."""

    kind: str
    seed: int
    number: int
    run: Callable[[Random], Verdict]
    real: bool = False  # in a process that the system starts, as a person's
    max_seconds: float = MAX_SECONDS

    @property
    def name(self) -> str:
        """Name it, and its directory."""
        return f"{self.kind}-{self.seed}-{self.number}"


_is_real = False


def bnce(*arguments: str, stdin: bytes = b"") -> Outcome:
    """Call the command line in the directory of the case."""
    if _is_real:
        command = [sys.executable, "-m", "bnce", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        return Outcome(done.returncode, *(text.decode(errors="replace") for text in (done.stdout, done.stderr)))
    from bnce.cli import main

    with contextlib.ExitStack() as stack:
        given, out, error = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        for file, descriptor in ((given, 0), (out, 1), (error, 2)):
            os.dup2(file.fileno(), descriptor)
        sys.stdin, sys.stdout, sys.stderr = (
            open(descriptor, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            for descriptor, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        sys.argv = ["bnce", *arguments]
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
            status = 1
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for file in (out, error):
            file.seek(0)
        return Outcome(status, *(file.read().decode(errors="replace") for file in (out, error)))


def may_take_long(seconds: float = 2.0) -> None:
    """Say that the case asks for long work: after so many seconds it is politely killed, and must end at once."""
    Path("../long").write_text(str(seconds), encoding="ascii")


@dataclass
class _Running:
    case: Case
    place: Path
    pid: int
    began: float
    told: float | None = None  # when it was asked to stop


def run_cases(cases: Iterator[Case], base: Path, jobs: int, done: Callable[[Case, Verdict], None], keep: bool) -> None:
    """Run cases, `jobs` at a time; each has a directory below `base`, and works in `place` in it."""
    running: dict[int, _Running] = {}
    try:
        _run_cases(cases, base, jobs, done, keep, running)
    finally:
        for one in running.values():
            _end_group(one.pid)


def _run_cases(
    cases: Iterator[Case],
    base: Path,
    jobs: int,
    done: Callable[[Case, Verdict], None],
    keep: bool,
    running: dict[int, _Running],
) -> None:
    waiting = selectors.DefaultSelector()
    while True:
        while len(running) < jobs and (case := next(cases, None)) is not None:
            one = _start(case, base / case.name)
            pidfd = os.pidfd_open(one.pid)
            running[pidfd] = one
            waiting.register(pidfd, selectors.EVENT_READ)
        if not running:
            return
        for key, _ in waiting.select(0.2):
            one = running.pop(key.fd)
            waiting.unregister(key.fd)
            os.close(key.fd)
            _, status = os.waitpid(one.pid, 0)
            _end_group(one.pid)
            done(one.case, _read_verdict(one, status))
            if not keep:
                shutil.rmtree(one.place, ignore_errors=True)
        for one in running.values():
            _watch(one)


def _start(case: Case, place: Path) -> _Running:
    # Two levels: '..' of a case is its own, too.
    (place / "place").mkdir(parents=True)
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _be_case(case, place)
    return _Running(case, place, pid, began)


def _be_case(case: Case, place: Path) -> None:
    """Run the case and leave; nothing of it comes back but its verdict."""
    global _is_real
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(place / "place")
        faulthandler.enable((place / "crash").open("w"))
        faulthandler.register(signal.SIGUSR1, (place / "stack").open("w"), all_threads=False)
        resource.setrlimit(resource.RLIMIT_AS, (_address_bytes() + MEMORY_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ.update(XDG_CACHE_HOME=str(place / "cache"), RES_OPTIONS="timeout:1 attempts:1", COLUMNS="100")
        _is_real = case.real
        verdict = case.run(Random(case.name))
    except BaseException:
        verdict = Verdict("broken", case.name, traceback.format_exc())
    # What the case damaged may be in the way: its own directory is not.
    os.chdir(place)
    Path("verdict").write_text(json.dumps(asdict(verdict)), encoding="utf-8")
    os._exit(0)


def _address_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def _read_verdict(one: _Running, status: int) -> Verdict:
    path = one.place / "verdict"
    was_late = one.told is not None and not (one.place / "long").exists()
    if path.is_file() and not was_late:
        return Verdict(**json.loads(path.read_text(encoding="utf-8")))
    if one.told is not None:
        if (one.place / "long").exists() and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM:
            return Verdict("stopped", one.case.name)
        stack = (one.place / "stack").read_text(encoding="utf-8").splitlines()[:8]
        return Verdict("hang", one.case.name, f"ended after {time.monotonic() - one.began:.0f} s at: {' '.join(stack)}")
    crash = (one.place / "crash").read_text(encoding="utf-8").splitlines()[:12]
    return Verdict("crash", one.case.name, f"wait status {status}: {' '.join(crash)}")


def _watch(one: _Running) -> None:
    """Ask a case that takes too long to stop, and end one that does not."""
    now = time.monotonic()
    if one.told is not None:
        if now > one.told + STOP_SECONDS:
            os.killpg(one.pid, signal.SIGKILL)
        return
    marker = one.place / "long"
    if marker.exists():
        if now > one.began + float(marker.read_text(encoding="ascii") or 2):
            _ask_to_stop(one, now)
    elif now > one.began + one.case.max_seconds and (
        now > one.began + MAX_STALL * one.case.max_seconds or _processor_seconds(one.pid) > one.case.max_seconds
    ):
        _ask_to_stop(one, now)


def _ask_to_stop(one: _Running, now: float) -> None:
    one.told = now
    with contextlib.suppress(ProcessLookupError):
        os.kill(one.pid, signal.SIGUSR1)
        os.kill(one.pid, signal.SIGTERM)


def _processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _end_group(pid: int) -> None:
    """End what a case left running."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
