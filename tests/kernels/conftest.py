"""Kernels run on a GPU where there is one, and under Triton's interpreter otherwise (TRITON_INTERPRET=1).

Triton is there for Linux on x86-64 alone. Elsewhere its tests are left out, with a word, and the run passes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
HAS_TRITON = find_spec("triton") is not None

if not HAS_TRITON or (DEVICE.type == "cpu" and not INTERPRETED):
    collect_ignore_glob = ["test_*.py"]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a machine pass for which there is no Triton: nothing to collect would be an error."""
    if not HAS_TRITON and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say that the kernels were not tested."""
    if not HAS_TRITON:
        terminalreporter.section("no Triton", yellow=True)
        terminalreporter.line("The kernels' tests were skipped, because Triton is not installed.", yellow=True)


@pytest.fixture
def device() -> torch.device:
    torch.manual_seed(1)
    return DEVICE


@pytest.fixture
def no_worse() -> Callable[[Tensor, Tensor, Tensor], None]:
    """Hold a fast result to the plain one's own error: err(fast, float64) ≤ 4 · err(plain, float64) + a few ulps."""

    def check(fast: Tensor, plain: Tensor, exact: Tensor) -> None:
        fast, plain, exact = (tensor.detach().double().cpu() for tensor in (fast, plain, exact))
        scale = float(exact.norm()) + 1e-30
        error = float((fast - exact).norm()) / scale
        allowed = 4 * float((plain - exact).norm()) / scale + 4 * torch.finfo(torch.float32).eps
        assert error <= allowed, f"relative error {error:.2e}, allowed {allowed:.2e}"

    return check
