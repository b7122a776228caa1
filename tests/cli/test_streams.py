"""A result that arrives whole, or a sentence that says it does not; and notes that may get lost without harm."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command import Command

from tests.scoring.arpa import write_arpa

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
# As short as a command can be: a note, a result, and a note about it.
SCRIPT = """
import sys
from bnce import cli
from bnce.cli import console

def command(app):
    console.stderr.print("a note")
    with console.progress_bar() as bar:
        bar.update(bar.add_task("working", total=1), completed=1)
    print("result\\n" * 30_000, end="")
    sys.stderr.write("another note\\n")

cli.run_app = command
cli.main()
"""
HELP = "import sys; from bnce import cli; sys.argv = ['bnce', 'score', '--help']; cli.main()"
RESULT = b"result\n" * 30_000

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")


def shell(redirection: str, *, unbuffered: bool = False, script: str = SCRIPT) -> subprocess.CompletedProcess[bytes]:
    """Run a script by a shell that opens or closes its streams."""
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    words = ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, script]
    return subprocess.run(words, env=environment, capture_output=True, timeout=120)


@needs_full
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_standard_error_that_is_closed_or_full_loses_no_result(redirection: str) -> None:
    done = shell(redirection)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == RESULT


def test_a_reader_of_the_notes_who_leaves_loses_no_result() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=writing)
    os.close(writing)
    assert (done.returncode, done.stdout) == (0, RESULT)


@needs_full
@pytest.mark.parametrize("script", [SCRIPT, HELP], ids=["command", "help"])
@pytest.mark.parametrize("unbuffered", [False, True])
def test_standard_output_that_is_full_is_told(unbuffered: bool, script: str) -> None:
    done = shell(">/dev/full", unbuffered=unbuffered, script=script)
    assert done.returncode == 2
    assert done.stderr.endswith(
        b"bnce: Cannot write to standard output (No space left on device): redirect it to another place.\n"
    )
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize("redirection", [">&-", "<&- >&-"])
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("script", [SCRIPT, HELP], ids=["command", "help"])
def test_standard_output_that_is_closed_is_told(redirection: str, unbuffered: bool, script: str) -> None:
    done = shell(redirection, unbuffered=unbuffered, script=script)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        b"bnce: Standard output is closed, so what the command prints is lost; files that it writes are not. "
        b"Redirect standard output to a file, or to /dev/null."
    )
    assert b"Exception ignored" not in done.stderr


def test_a_reader_of_the_result_who_had_enough_hears_nothing() -> None:
    done = shell("| head -n 1")
    assert done.stdout == b"result\n"
    assert b"Error" not in done.stderr
    assert b"bnce:" not in done.stderr


def test_a_pipe_that_does_not_wait_gets_everything() -> None:
    """Some programs hand over a pipe that says at once when it is full, as Node.js does."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    read = bytearray()

    def drain() -> None:
        while data := os.read(reading, 4096):
            read.extend(data)

    process = subprocess.Popen([sys.executable, "-c", SCRIPT], env=ENVIRONMENT, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    reader = threading.Thread(target=drain)
    reader.start()
    _, told = process.communicate(timeout=120)
    reader.join(timeout=60)
    os.close(reading)
    assert process.returncode == 0, told
    assert bytes(read) == RESULT


@needs_full
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_command_keeps_its_result_without_standard_error(
    bnce: Command, texts: Path, tmp_path: Path, redirection: str
) -> None:
    pytest.importorskip("kenlm")  # which is imported in a tenth of the time that PyTorch takes
    arguments = ["score", str(write_arpa(tmp_path)), str(texts / "test.txt")]
    expected = bnce(*arguments)
    assert expected.stderr
    words = ["sh", "-c", f'exec "$0" -m bnce "$@" {redirection}', sys.executable, *arguments]
    done = subprocess.run(words, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, expected.stdout)
