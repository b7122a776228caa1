"""The command `bnce`, and `python -m bnce`."""

from __future__ import annotations

import sys

from bnce.machine.allocation import look_less_for_garbage
from bnce.machine.packages import MissingPackageError, explain_missing
from bnce.machine.stopping import end_at_ctrl_c


def main() -> None:
    """Run the command line, or say what to install for it: the layer alone is used without what it needs."""
    with end_at_ctrl_c():
        look_less_for_garbage()
        try:
            from bnce.cli import main as run
        except ModuleNotFoundError as error:
            explained = explain_missing(error, "The command line")
            if not isinstance(explained, MissingPackageError):
                raise
            sys.stderr.write(f"bnce: {explained}\n")
            sys.exit(2)
        run()


if __name__ == "__main__":
    main()
