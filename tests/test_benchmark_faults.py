"""A slice of the benchmark of faults finds nothing, and the benchmark sees what there would be to find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fault_kinds.bed import _xxh64
from benchmarks.fault_kinds.verdict import Outcome, judge

ROOT = Path(__file__).parents[1]
GOOD = Outcome(0, '{"ppl_f": 12.5, "seconds": 1.0}\n', "")


def test_a_slice_fails_nowhere() -> None:
    # Without experiments, which are trained as a run is and take as long as all the rest.
    kinds = "corpus,run,input,options,server,kill train,kill prepare,signal prepare,worker prepare"
    options = ["--cases", "60", "--kills", "2", "--stops", "2", "--seed", "7", "--only", kinds]
    command = [sys.executable, "benchmarks/faults.py", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all |" in done.stdout


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Outcome(0, '{"ppl_f": 12.5, "seconds": 7.0}\n', ""), "same"),
        (Outcome(0, '{"ppl_f": 12.6, "seconds": 1.0}\n', ""), "silent"),
        (Outcome(0, '{"ppl_f": 12.6}\n', "Warning: 'counts.npy' is damaged.\n"), "told"),
        (Outcome(2, "", "bnce: 'counts.npy' is damaged: train again.\n"), "refused"),
        (Outcome(2, "", ""), "unclear"),
        (Outcome(2, "", "bnce: one.\nbnce: two.\n"), "unclear"),
        (Outcome(2, "", "bnce: a path with\na line end.\n"), "unclear"),
        (Outcome(2, "", "x.py:3: RuntimeWarning: overflow\nbnce: one sentence.\n"), "unclear"),
        (Outcome(1, "", "Traceback (most recent call last):\n  File …\nValueError: x\n"), "traceback"),
        (Outcome(1, "", "bnce: one sentence.\n"), "unclear"),
        (Outcome(130, "", "Stopped.\n"), "unclear"),
    ],
)
def test_what_a_command_leaves_is_judged(outcome: Outcome, word: str) -> None:
    verdict = judge(outcome, "a case", GOOD, damaged="counts.npy")
    assert verdict.word == word
    assert verdict.failed == (word in ("silent", "unclear", "traceback"))


def test_only_what_nothing_shows_may_go_unseen() -> None:
    other = Outcome(0, '{"ppl_f": 12.6}\n', "")
    assert judge(other, "a case", GOOD, unseen=True).word == "unseen"
    assert judge(Outcome(130, "", ""), "a case", may_stop=True).word == "stopped"


def test_hangs_crashes_and_faults_of_its_own_are_seen(tmp_path: Path) -> None:
    """In a process of its own: it forks."""
    code = """
import os, sys, time
from pathlib import Path
from benchmarks.fault_kinds import process
from benchmarks.fault_kinds.process import Case, may_take_long, run_cases
from benchmarks.fault_kinds.verdict import Verdict

def spin(_):
    while True:
        pass

def long(_):
    may_take_long(0.1)
    time.sleep(60)

def ignore(_):
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spin(_)

process.STOP_SECONDS = 0.5
cases = [
    Case("hang", 1, 0, spin, max_seconds=0.5),
    Case("deaf", 1, 0, ignore, max_seconds=0.5),
    Case("crash", 1, 0, lambda _: os.abort()),
    Case("broken", 1, 0, lambda _: 1 / 0),
    Case("long", 1, 0, long),
    Case("same", 1, 0, lambda chance: Verdict("same", str(chance.random()))),
]
run_cases(iter(cases), Path(sys.argv[1]), 2, lambda case, verdict: print(case.kind, verdict.word, flush=True), False)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.split() for line in done.stdout.splitlines())
    ended = {"hang": "hang", "deaf": "hang", "crash": "crash", "broken": "broken", "long": "stopped", "same": "same"}
    assert found == ended
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "expected"),
    # From the specification's reference implementation.
    [(b"", 0xEF46DB3751D8E999), (b"a", 0xD24EC4F1A98C6E5B), (b"abc", 0x44BC2CF5AD770999)],
)
def test_the_checksum_of_zstd(data: bytes, expected: int) -> None:
    assert _xxh64(data) == expected
