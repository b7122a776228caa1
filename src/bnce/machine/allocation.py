"""Memory of a command that does the same again and again: what is freed is kept, and what is loaded is left alone."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

# The numbers of malloc's settings, and the largest block that glibc lets it keep: 32 MiB.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BYTES = 2**28, 2**25


@contextlib.contextmanager
def steady_memory() -> Iterator[None]:
    """Keep freed memory for what comes next, and the garbage collector from what is loaded until the block ends.

    Arrays of some MB come and go in every step, and new pages for them take a tenth of the time. To look once through
    all of PyTorch's objects for garbage takes a tenth of a second.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # where the C library is not glibc
        set_malloc = ctypes.CDLL(None).mallopt
        set_malloc(_TRIM_THRESHOLD, _KEPT_BYTES)
        set_malloc(_MMAP_THRESHOLD, _LARGEST_BYTES)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
