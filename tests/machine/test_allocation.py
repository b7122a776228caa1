"""Memory that is kept, and objects that are not looked through: only for as long as it is asked for, or for good."""

from __future__ import annotations

import ctypes
import gc
import platform
import subprocess
import sys

import pytest

from bnce.machine.allocation import steady_memory

# Rounds in which memory comes and goes: malloc would give back more than twice the largest of the blocks each time.
PROBE = """
import contextlib, resource, sys
from bnce.machine.allocation import steady_memory

def count():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use_memory():
    blocks = [bytearray(20 * 2**20) for _ in range(4)]

with steady_memory() if sys.argv[1] == "steady" else contextlib.nullcontext():
    for _ in range(3):
        use_memory()
    before = count()
    for _ in range(3):
        use_memory()
    print(count() - before)
"""


def test_the_collector_leaves_out_what_is_loaded_until_the_end() -> None:
    with steady_memory():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is glibc's")
def test_freed_memory_is_used_again() -> None:
    def num_faults(how: str) -> int:
        probe = [sys.executable, "-c", PROBE, how]
        return int(subprocess.run(probe, capture_output=True, text=True, check=True).stdout)

    assert num_faults("plain") > 10_000
    assert num_faults("steady") < 100


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with steady_memory():
        assert gc.get_freeze_count() > 1000


@pytest.mark.parametrize("triton", [False, True])
def test_a_command_looks_less_for_garbage_and_not_at_its_end(triton: bool) -> None:
    """With Triton it does look, for Triton would list its objects that are left."""
    # What was registered first runs last.
    probe = f"""
import atexit, gc, sys
if {triton}:
    sys.modules["triton._C.libtriton"] = sys
atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count()))
sys.argv = ["bnce", "--version"]
from bnce.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    threshold, num_frozen = map(int, done.stdout.splitlines()[-1].split())
    assert threshold > 10_000
    assert (num_frozen > 1000) == (not triton)
