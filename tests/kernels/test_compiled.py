"""Every kernel, compiled for a Hopper GPU without one: Triton's interpreter accepts more than its compiler does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("compiled_steps.py")


def test_every_kernel_compiles_for_a_gpu() -> None:
    """With the sizes of the recipes, with every loss, and in both precisions."""
    pytest.importorskip("triton.backends.nvidia")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    times_compiled = json.loads(done.stdout)
    assert len(times_compiled) >= 23
    missing = [name for name, number in times_compiled.items() if not number]
    assert not missing, f"compiled_steps.py does not start {missing}"
