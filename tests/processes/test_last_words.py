"""One of many processes that must end lets the first one say why."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("is_told", [True, False])
def test_a_process_that_follows_lets_the_first_one_speak(is_told: bool) -> None:
    """It waits, and ends without a word when it is told to: its own end would stop the first one too soon."""
    code = (
        "import time\n"
        "from bnce.machine import processes\n"
        f"processes._LAST_WORDS_SECONDS = {30.0 if is_told else 0.2}\n"
        "sleep = time.sleep\n"
        "def wait(seconds):\n"
        "    print('waits', seconds, flush=True)\n"
        "    sleep(seconds)\n"
        "time.sleep = wait\n"
        "processes.leave_after_the_first()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"waits {30.0 if is_told else 0.2}\n"
        if is_told:
            process.terminate()
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (2, "")
