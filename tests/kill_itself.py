"""Work in a process that kills itself at a place that a test chooses: no clock says how far it has come by then."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any


def kill_self_in(owner: object, name: str, when: Callable[..., bool]) -> None:
    """Have this process killed in the first call of a function of which `when`, with its arguments, says so."""
    plain = getattr(owner, name)

    def kill_self(*arguments: Any, **keywords: Any) -> Any:
        if when(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments, **keywords)

    setattr(owner, name, kill_self)


def killed_in(work: Callable[[], object], owner: object, name: str, when: Callable[..., bool]) -> bool:
    """Work in a process that kills itself in a call of a function; say whether it came to that."""
    # A fork has PyTorch already, whose import takes seconds. It computes in one thread, so none is missed there.
    child = os.fork()
    if child == 0:
        try:
            kill_self_in(owner, name, when)
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
