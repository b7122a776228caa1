"""`bnce filter --processes N`: the command runs copies of itself, each with its share of the shards and one GPU."""

from __future__ import annotations

import sys

from bnce.cli.console import stderr
from bnce.cli.failures import BAD_INPUT
from bnce.errors import UserError
from bnce.machine.copies import run_copies, share_machine, stop_with_starter, take_tasks

SHARES_FROM = "--shares-from"  # the option that makes a command a copy: where it takes the number of its share from
MAX_PROCESSES = 255


def filter_in_copies(num_copies: int, device: str) -> None:
    """Filter the shards of this command in copies of it, and wait until all have ended."""
    from bnce.machine.devices import find_device, name_gpus

    if num_copies > MAX_PROCESSES:
        raise UserError(f"--processes is {num_copies}: give at most {MAX_PROCESSES}, one per GPU.")
    name, *rest = sys.argv[1:]
    copies = run_copies(
        lambda descriptor: [name, SHARES_FROM, str(descriptor), *rest],
        share_machine(name_gpus(find_device(device)), num_copies),
        range(num_copies),
        stderr.print,
    )
    wrong = dict.fromkeys(copy.sentence for copy in copies if copy.status == BAD_INPUT)
    if wrong:
        raise UserError(" ".join(wrong))
    failed = [f"Process {copy.number} {copy.how}" for copy in copies if copy.status]
    if failed:
        raise UserError(f"{' '.join(failed)} The same command continues.")


def take_share(descriptor: int, share: tuple[int, int], num_copies: int) -> tuple[int, int]:
    """Take one of the shares that the shards of the command are divided into, in a copy."""
    stop_with_starter(descriptor)
    number = next(take_tasks(descriptor))
    return share[0] + share[1] * number, share[1] * num_copies
