"""Results on standard output stay whole while a progress bar is drawn on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scoring.arpa import write_arpa

NUM_LINES = 20_000  # enough for a bar


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, bytearray]]:
    """Give a pseudo-terminal to write to, and what was written to it once it is closed."""
    screen, writing = pty.openpty()
    shown = bytearray()

    def watch() -> None:
        with contextlib.suppress(OSError):  # Linux's way to say that nobody writes any more
            while data := os.read(screen, 65536):
                shown.extend(data)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield writing, shown
    finally:
        os.close(writing)
        watching.join()
        os.close(screen)


def run_on_terminal(out: Any, *arguments: object) -> tuple[subprocess.CompletedProcess[bytes], str]:
    """Run a command with a terminal on standard error and `out` on standard output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "100"}
    words = [sys.executable, "-m", "bnce", *map(str, arguments)]
    with terminal() as (writing, shown):
        done = subprocess.run(words, env=environment, stdout=out, stderr=writing, timeout=120)
    return done, shown.decode()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"a model was {number:050}\n" for number in range(NUM_LINES)), encoding="utf-8")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Give a model that needs no PyTorch, which takes longer to import than all the rest of these commands."""
    pytest.importorskip("kenlm")
    return write_arpa(tmp_path)


def test_scores_go_to_a_file_whole_while_the_terminal_shows_a_bar(tmp_path: Path, model: Path, text: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        done, shown = run_on_terminal(out, "score", model, text, "--layout", "srilm", "--per-word")
    assert done.returncode == 0
    printed = (tmp_path / "out").read_text()
    assert printed.count("p( </s> | ") == NUM_LINES
    assert f"file {text}: {NUM_LINES} sentences" in printed
    assert "scoring" in shown
    assert "p( </s> | " not in shown


def test_scores_go_to_a_pipe_whole_while_the_terminal_shows_a_bar(model: Path, text: Path) -> None:
    done, shown = run_on_terminal(subprocess.PIPE, "score", model, text, "--layout", "jsonl")
    assert done.returncode == 0
    assert [json.loads(line)["num_oov"] for line in done.stdout.splitlines()] == [1] * NUM_LINES
    assert "scoring" in shown
    assert "num_oov" not in shown


def test_every_bar_is_made_in_one_place() -> None:
    """A bar made elsewhere would take standard output for itself again."""
    import bnce

    package = Path(bnce.__file__).parent
    makers = [
        path.name
        for path in package.rglob("*.py")
        if "rich.progress" in (text := path.read_text("utf-8")) or "rich.live" in text or ".status(" in text
    ]
    assert makers == ["progress.py"]
