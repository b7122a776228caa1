"""The command `bnce`, and `python -m bnce`."""

from __future__ import annotations

import atexit
import gc
import os
import sys

from bnce.machine.signals import Stopped, raise_on_signals

# Turns of a waiting OpenMP thread's loop before it sleeps: microseconds. GNU's runtime has it spin for milliseconds.
SPIN_COUNT = "1000"
_COLLECT_AFTER = 50_000  # new objects; Python's 700 would have it look hundreds of times while PyTorch is imported


def main() -> None:
    """Run the command line, or say what to install for it: the layer alone is used without what it needs."""
    # With PyTorch's objects, to look for garbage takes a quarter of the time of a command that does little.
    gc.set_threshold(_COLLECT_AFTER)
    atexit.register(_end_without_collecting)
    # Threads meet after every operation, thousands of times per second. Where another process wants the same cores, one
    # would spin away its share of a core while the one it waits for is not running. It is read when PyTorch is loaded.
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    try:
        with raise_on_signals():
            from bnce.cli import main as run

            run()
    except ModuleNotFoundError as error:
        from bnce.machine.packages import MissingPackageError, explain_missing

        explained = explain_missing(error, "The command line")
        if not isinstance(explained, MissingPackageError):
            raise
        sys.stderr.write(f"bnce: {explained}\n")
        sys.exit(2)
    except Stopped as stop:
        sys.stderr.write(stop.sentence)
        sys.exit(stop.status)


def _end_without_collecting() -> None:
    """Keep the collector from a last look, but for Triton: it prints a list of all its objects that are left."""
    if "triton._C.libtriton" not in sys.modules:
        gc.freeze()


if __name__ == "__main__":
    main()
