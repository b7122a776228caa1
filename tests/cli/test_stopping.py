"""Ctrl-C and SIGTERM in any command: one line, the status that shells know, and no traceback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Command, settings
from run_files import states_of, status_of

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
TOLD = {signal.SIGINT: "by Ctrl-C", signal.SIGTERM: "by a signal (SIGTERM)"}


def stop_in(
    monkeypatch: pytest.MonkeyPatch, place: str, number: int = signal.SIGINT, call: int = 1
) -> Callable[..., Any]:
    """Let a signal come while a function runs that is named as `module.name`, the first time or a later one."""
    calls = 0
    module, _, name = place.rpartition(".")
    plain = getattr(sys.modules[module], name)

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(number)
        return plain(*arguments, **keywords)

    monkeypatch.setattr(place, interrupted)
    return interrupted


SWALLOWING = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    sum(range(10**6))
except BaseException as error:
    raise ImportError("it failed") from error
"""


@pytest.mark.parametrize("name", ["typer", "torch"])
def test_while_libraries_are_loaded(trained: Path, tmp_path: Path, name: str) -> None:
    """Of the command line itself and of a command: what a library's code does with an exception does not matter."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(SWALLOWING, encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "bnce", "evaluate", str(trained)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (found.returncode, found.stdout) == (130, "")
    assert found.stderr == "bnce: Stopped by Ctrl-C before the end.\n"


@pytest.mark.parametrize("number", STATUS)
def test_evaluate(bnce: Command, trained: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    stop_in(monkeypatch, "bnce.evaluation.evaluate._score", number)
    outcome = bnce("evaluate", trained)
    assert (outcome.status, outcome.stdout) == (STATUS[number], "")
    assert outcome.stderr == f"bnce: Stopped {TOLD[number]} before the end.\n"


def test_train_in_the_test(bnce: Command, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is over and saved: what goes on is the test alone."""
    with monkeypatch.context() as patched:
        stop_in(patched, "bnce.training.run.evaluate", signal.SIGTERM)
        outcome = bnce("train", "wiki", "--corpus", corpus, "--out", place / "run", "--json", *settings())
    assert outcome.status == 143
    record = json.loads(outcome.stdout)
    assert (record["status"], record["step"]) == ("stopped", 80)
    assert f"saved at step 80. Continue with  bnce train --out {place / 'run'} --resume" in outcome.stderr
    with monkeypatch.context() as patched:
        patched.setattr("bnce.training.trainer.evaluate", None)  # validation is not evaluated again
        assert bnce("train", "--out", place / "run", "--resume", "--json").json["test"]["num_tokens"] > 0


def test_experiment(bnce: Command, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the row that is stopped, and the same command goes on."""
    options = ["--corpus", corpus, "--rows", "rnn-softmax,rnn-bnce", "--out", place / "grid", *settings()]
    with monkeypatch.context() as patched:
        stop_in(patched, "bnce.training.run.evaluate", signal.SIGTERM, call=2)
        outcome = bnce("experiment", "ltcb", *options)
    assert (outcome.status, outcome.stdout) == (143, "")
    assert "Some rows are not finished; the same command continues them (rnn-bnce)." in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert status_of(place / "grid" / "rnn-softmax") == "finished"
    assert status_of(place / "grid" / "rnn-bnce") == "stopped"
    assert states_of(place / "grid" / "rnn-bnce")
    assert bnce("experiment", "ltcb", *options).status == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, os.kill), (signal.SIGINT, os.killpg), (signal.SIGTERM, os.killpg)]
)
def test_prepare_with_workers(place: Path, number: signal.Signals, send: Callable[[int, int], None]) -> None:
    """Its workers end with it while more text is on its way to them, whether the signal went to them, too, or not."""
    text = place / "text.txt"
    text.write_text("some words of text\n" * 2_000_000, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "bnce", "prepare", str(text), "--out", str(place / "corpus"), "--workers", "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A test run in the background of a shell is born deaf to interrupts, and so would this one be.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # Until it counts words.
    while not list(place.glob(".corpus.*.partial/scratch/*.numbers")):
        assert process.poll() is None
        time.sleep(0.01)
    send(process.pid, number)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (STATUS[number], "")
    assert stderr.splitlines()[-1] == f"bnce: Stopped {TOLD[number]} before the end."
    assert "Traceback" not in stderr
    assert [path.name for path in place.iterdir()] == ["text.txt"]


@pytest.mark.timeout(60)
def test_filter_that_waits_for_a_shard(trained: Path, place: Path) -> None:
    os.mkfifo(place / "shard.jsonl")
    process = subprocess.Popen(
        [sys.executable, "-m", "bnce", "filter", str(trained), str(place / "shard.jsonl"), "--out", str(place / "out")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    writer = None
    while writer is None:
        assert process.poll() is None
        time.sleep(0.01)
        with contextlib.suppress(OSError):  # there is no reader yet
            writer = os.open(place / "shard.jsonl", os.O_WRONLY | os.O_NONBLOCK)
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    os.close(writer)
    assert (process.returncode, stderr) == (143, "bnce: Stopped by a signal (SIGTERM) before the end.\n")
