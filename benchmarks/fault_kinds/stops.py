"""Commands with two workers that are asked to stop at a random moment, or that lose a worker: they end at once.

Each is a process that the system starts, in a session of its own. When it has ended, its status, its sentence, the
processes of its session and its files are looked at.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from .bed import Bed
from .files import remove
from .verdict import Outcome, Verdict, is_sentence, result

MAX_SECONDS = 5.0  # to the end
_PATIENCE_SECONDS = 30.0  # to see how much longer it takes
_LEAVING_SECONDS = 1.0  # for processes whose parent has ended
_TEXT_BYTES = 24_000_000  # several blocks for each worker, each of them larger than a pipe
_DOCUMENT_BYTES = 8_000_000
_WORKER = b"multiprocessing.spawn"
_DIED = "worker process died"

KINDS = ("signal prepare", "signal filter", "worker prepare")
COLUMNS = "| command | what happened to it | after (s) | seconds to the end | status |\n|---|---|---:|---:|---:|"


def write_texts(bed: Bed, text: Path | None) -> None:
    """Choose the text that is prepared, or make it up, and write documents that are filtered."""
    bed.text = bed.path / "large.txt"
    if text is None:
        lines = (bed.path / "train.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        chance = Random(1)
        with open(bed.text, "w", encoding="utf-8") as file:
            while file.tell() < _TEXT_BYTES:
                file.write("".join(chance.choices(lines, k=100)) + "\n")
    else:
        bed.text = text.resolve(strict=True)
    with open(bed.text, encoding="utf-8") as source, open(bed.path / "large.jsonl", "w", encoding="utf-8") as file:
        for line in source:
            if file.tell() > _DOCUMENT_BYTES:
                break
            file.write(json.dumps({"text": line}) + "\n")


def expect(kind: str, bed: Bed) -> dict[str, Any]:
    """Run a command that nobody stops; say what it left, and how long it took."""
    begin = time.monotonic()
    with _started(kind, bed) as process:
        if process.wait():
            raise AssertionError(f"{kind}: {_said()}")
    return {"left": _left(), "seconds": time.monotonic() - begin}


def run(bed: Bed, kind: str, chance: Random) -> Verdict:
    """Stop a command at a moment of its life, or kill one of its workers, and see how it ends."""
    how, command = kind.split()
    unbroken = bed.unbroken[kind]
    moment = chance.uniform(0, unbroken["seconds"])
    act = _send_signal if how == "signal" else _kill_worker
    while True:
        with _started(kind, bed) as process:
            begin = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            done = act(process, chance)
            acted = time.monotonic()
            if done is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE_SECONDS)
                ended = time.monotonic()
                status = process.poll()
                remaining = [] if status is None else _remaining(process.pid)
                break
        # It ended before, as it does where the machine has less to do.
        moment *= 0.9
        for path in Path().iterdir():
            remove(path)
    shown = "none" if status is None else str(status if status >= 0 else 128 - status)
    what = f"| {command} | {done} | {acted - begin:.2f} | {ended - acted:.2f} | {shown} |"
    left, said = _left(), _said()
    was_whole = status == 0 and left == unbroken["left"]
    if status is None or (ended - acted > MAX_SECONDS and not was_whole):
        return Verdict("hang", what, f"standard error: {said[-300:]}")
    if "Traceback" in said and not _is_at_start(said):
        return Verdict("traceback", what, said[-600:])
    if remaining:
        return Verdict("litter", what, f"processes that go on: {', '.join(remaining)}")
    # A corpus is there as a whole or not at all; of shards, those that are done.
    if (left and left != unbroken["left"]) if command == "prepare" else not left.items() <= unbroken["left"].items():
        return Verdict("litter", what, f"files: {', '.join(left)}")
    if how == "worker" and not was_whole and not (status == 2 and is_sentence(said.strip()) and _DIED in said):
        return Verdict("unclear", what, f"status {shown}: {said[-300:]}")
    if how == "signal" and not was_whole and shown not in ("130", "143"):
        return Verdict("unclear", what, f"status {shown}: {said[-300:]}")
    return Verdict("ended", what)


@contextlib.contextmanager
def _started(kind: str, bed: Bed) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command as a terminal does; whatever it leaves running is ended."""
    arguments = {
        "prepare": ("prepare", str(bed.text), "--workers", "2"),
        "filter": ("filter", str(bed.path / "small.arpa"), str(bed.path / "large.jsonl")),
    }[kind.split()[1]]
    command = [sys.executable, "-m", "bnce", *arguments, "--out", "out"]
    Path("temporary").mkdir()
    # A process in the background of a shell is born deaf to interrupts, and so would its children be.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with open("../said", "wb") as said:
        process = subprocess.Popen(
            command,
            env={**os.environ, "TMPDIR": str(Path("temporary").absolute())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _send_signal(process: subprocess.Popen[bytes], chance: Random) -> str | None:
    """Send SIGINT or SIGTERM, to all its processes as a terminal does, or to the first one alone."""
    number, goes_to_all = chance.choice((signal.SIGINT, signal.SIGTERM)), chance.random() < 0.5
    if process.poll() is not None:
        return None
    (os.killpg if goes_to_all else os.kill)(process.pid, number)
    return f"{number.name}{' to all its processes' if goes_to_all else ''}"


def _kill_worker(process: subprocess.Popen[bytes], chance: Random) -> str | None:
    """Kill a worker, once there are some."""
    while process.poll() is None:
        workers = [pid for pid, command in _session(process.pid).items() if _WORKER in command]
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
                return "a worker was killed"
        time.sleep(0.01)
    return None


def _remaining(session: int) -> list[str]:
    """Wait a moment until all processes of a session are gone, and name those that are not."""
    end = time.monotonic() + _LEAVING_SECONDS
    while (found := _session(session)) and time.monotonic() < end:
        time.sleep(0.02)
    return [command.replace(b"\0", b" ").decode(errors="replace")[-100:] for command in found.values()]


def _session(number: int) -> dict[int, bytes]:
    """List the processes of a session, with their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, session, *_ = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(session) == number and state != "Z":
                found[int(path.name)] = (path / "cmdline").read_bytes()
    return found


def _said() -> str:
    return Path("../said").read_text(encoding="utf-8", errors="replace")


def _is_at_start(said: str) -> bool:
    """Tell whether Ctrl-C came while Python itself began, before any code of bnce could handle it."""
    return said.rstrip().endswith("KeyboardInterrupt") and "bnce/cli" not in said


def _left() -> dict[str, str]:
    """Give a digest of every file that a command left, without times."""
    return {str(path): _digest(path) for path in sorted(Path().rglob("*")) if path.is_file()}


def _digest(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".json":
        data = json.dumps(result(Outcome(0, data.decode(), ""))).encode()
    return hashlib.blake2b(data, digest_size=16).hexdigest()
