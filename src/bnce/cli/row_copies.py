"""`bnce experiment --processes N`: the command runs copies of itself, which share the rows and tell what failed."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

from bnce.cli.console import print_json, stderr
from bnce.cli.failures import BAD_INPUT
from bnce.errors import UserError
from bnce.machine.copies import Ended, run_copies, share_machine

if TYPE_CHECKING:
    import torch

ROWS_FROM = "--rows-from"  # the option that makes a command a copy: where it takes its rows from


def train_in_copies(places: list[int], num_copies: int, device: torch.device) -> tuple[dict[str, str], bool]:
    """Train the rows at these places; give those that failed with their reasons, and whether all copies ended well."""
    from bnce.machine.devices import name_gpus

    name, *rest = sys.argv[1:]
    copies = run_copies(
        lambda descriptor: [name, ROWS_FROM, str(descriptor), *rest],
        share_machine(name_gpus(device), num_copies),
        places,
        stderr.print,
    )
    wrong = dict.fromkeys(copy.sentence for copy in copies if copy.status == BAD_INPUT)
    if wrong:
        raise UserError(" ".join(wrong))
    for copy in copies:
        if copy.status:
            stderr.print(f"Process {copy.number} {copy.how}")
    failed = {name: why for copy in copies for name, why in _failures(copy).items()}
    return failed, not any(copy.status for copy in copies)


def typed_arguments() -> list[str]:
    """Give the arguments as somebody typed them, without what a copy is told besides."""
    typed = sys.argv[1:]
    return [*typed[:1], *typed[3:]] if typed[1:2] == [ROWS_FROM] else typed


def print_failure(name: str, why: str) -> None:
    """Tell the command that started this copy why a row failed, at once: the copy may be killed later."""
    print_json({"row": name, "failed": why})
    sys.stdout.flush()


def _failures(copy: Ended) -> dict[str, str]:
    failed = {}
    for line in copy.output.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):  # cut off, or printed by some package
            record = json.loads(line)
            failed[str(record["row"])] = str(record["failed"])
    return failed
