"""Memory of a command: what is freed is kept for what comes next, and garbage is not looked for in what is loaded."""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
from collections.abc import Iterator

# The numbers of malloc's settings, and the largest block that glibc lets it keep: 32 MiB.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BYTES = 2**28, 2**25


# New objects before a look for garbage. Python's 700 would have it look hundreds of times while PyTorch is imported.
_COLLECT_AFTER = 50_000


def look_less_for_garbage() -> None:
    """Let a command start and end sooner: Python would look through all of PyTorch's objects several times.

    With PyTorch imported that is a quarter of the CPU time of a command that does little, half of it at the end.
    """
    gc.set_threshold(_COLLECT_AFTER)
    atexit.register(_end_without_collecting)


def _end_without_collecting() -> None:
    """Keep the collector from a last look, but for Triton: it prints a list of all its objects that are left."""
    if "triton._C.libtriton" not in sys.modules:
        gc.freeze()


def keep_freed(num_bytes: int) -> None:
    """Let malloc keep so many bytes of freed memory for what comes next."""
    import ctypes  # here, because `bnce --help` needs none of this

    with contextlib.suppress(OSError, AttributeError, TypeError):  # where the C library is not glibc
        set_malloc = ctypes.CDLL(None).mallopt
        set_malloc(_TRIM_THRESHOLD, num_bytes)
        set_malloc(_MMAP_THRESHOLD, _LARGEST_BYTES)


@contextlib.contextmanager
def steady_memory() -> Iterator[None]:
    """Keep freed memory for what comes next, and the garbage collector from what is loaded until the block ends.

    Arrays of some MB come and go in every step, and new pages for them take a tenth of the time. To look once through
    all of PyTorch's objects for garbage takes a tenth of a second.
    """
    keep_freed(_KEPT_BYTES)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
