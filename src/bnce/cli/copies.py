"""`--processes N` of `bnce experiment` and `bnce filter`: the command runs copies of itself, which share its work."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bnce.cli.console import print_json, stderr
from bnce.cli.failures import BAD_INPUT
from bnce.errors import UserError
from bnce.machine.copies import Ended, run_copies, share_machine, stop_with_starter, take_tasks

if TYPE_CHECKING:
    import torch

# The options that make a command a copy: where it takes the numbers of its rows, or of its share of the shards, from.
ROWS_FROM, SHARES_FROM = "--rows-from", "--shares-from"
MAX_PROCESSES = 255


def train_in_copies(places: list[int], num_copies: int, device: torch.device) -> tuple[dict[str, str], bool]:
    """Train the rows at these places; give those that failed with their reasons, and whether all copies ended well."""
    copies = _run_in_copies(ROWS_FROM, places, num_copies, device)
    failed = {}
    for copy in copies:
        if copy.status:
            stderr.print(f"Process {copy.number} {copy.how}")
        for line in copy.output.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):  # cut off, or printed by some package
                record = json.loads(line)
                failed[str(record["row"])] = str(record["failed"])
    return failed, not any(copy.status for copy in copies)


def filter_in_copies(num_copies: int, device: str) -> None:
    """Filter the shards of this command in copies of it, and wait until all have ended."""
    from bnce.machine.devices import find_device

    if num_copies > MAX_PROCESSES:
        raise UserError(f"--processes is {num_copies}: give at most {MAX_PROCESSES}, one per GPU.")
    copies = _run_in_copies(SHARES_FROM, range(num_copies), num_copies, find_device(device))
    failed = [f"Process {copy.number} {copy.how}" for copy in copies if copy.status]
    if failed:
        raise UserError(f"{' '.join(failed)} The same command continues.")


def _run_in_copies(option: str, tasks: Sequence[int], num_copies: int, device: torch.device) -> list[Ended]:
    from bnce.machine.devices import name_gpus

    name, *rest = sys.argv[1:]
    copies = run_copies(
        lambda descriptor: [name, option, str(descriptor), *rest],
        share_machine(name_gpus(device), num_copies),
        tasks,
        stderr.print,
    )
    wrong = dict.fromkeys(copy.sentence for copy in copies if copy.status == BAD_INPUT)
    if wrong:
        raise UserError(" ".join(wrong))
    return copies


def become_copy(descriptor: int, device: str) -> str:
    """End with the command that started this copy, and give the device that the copy has."""
    stop_with_starter(descriptor)
    # The GPU that this copy was given is the only one that it sees.
    return "cuda" if device.startswith("cuda:") else device


def take_share(descriptor: int, share: tuple[int, int], num_copies: int) -> tuple[int, int]:
    """Take one of the shares that the shards of the command are divided into, in a copy."""
    number = next(take_tasks(descriptor))
    return share[0] + share[1] * number, share[1] * num_copies


def typed_arguments() -> list[str]:
    """Give the arguments as somebody typed them, without what a copy is told besides."""
    typed = sys.argv[1:]
    return [*typed[:1], *typed[3:]] if typed[1:2] == [ROWS_FROM] else typed


def print_failure(name: str, why: str) -> None:
    """Tell the command that started this copy why a row failed, at once: the copy may be killed later."""
    print_json({"row": name, "failed": why})
    sys.stdout.flush()
