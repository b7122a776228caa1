"""Whether workers on other machines see the same disk, asked before hours go into text that they could not store."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from bnce.errors import UserError
from bnce.machine.workers import Workers


def check_shared(workers: Workers, directory: Path) -> None:
    """Refuse workers that do not see a directory, or cannot write to it."""
    if not workers.are_given:
        return
    # Every machine has a /tmp, but only the shared one holds this file.
    sign = directory / f"{uuid.uuid4().hex}.sign"
    sign.touch()
    for worker, complaint in workers.ask(look_around, sign).items():
        if isinstance(complaint, BaseException):
            raise complaint
        if complaint is not None:
            raise UserError(
                f"{f'The worker {worker}' if worker else 'A worker'} {complaint}: the output must be in a directory "
                "that all workers share, under the same path."
            )
    sign.unlink()


def look_around(sign: Path) -> str | None:
    """Say what keeps this process from working in the directory of a sign; nothing if all is well."""
    if not sign.is_file():
        return f"does not see the directory '{_output(sign)}' as this machine does"
    trial = sign.with_name(f"{uuid.uuid4().hex}.trial")
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(trial.unlink, missing_ok=True)
            trial.write_bytes(b"x")
    except OSError as error:
        return f"cannot write to the directory '{_output(sign)}' ({error.strerror})"
    return None


def _output(sign: Path) -> Path:
    """Name the directory that the user knows: the sign is in the scratch directory of what is not finished there."""
    return sign.parents[2]
