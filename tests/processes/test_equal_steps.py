"""The number of processes changes nothing: neither the objective nor what a step does."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bnce.machine.processes import World
from tests.processes.equal_steps import in_processes, train

LOSSES = ("bnce", "chunk-bnce", "snce", "softmax", "self-normalised-softmax", "sampled-softmax", "adaptive-softmax")
OPTIMISERS = ("sgd", "rowwise", "rowwise-adam")
EVERY = [
    {"loss": loss, "optimiser": optimiser, "in_order": in_order}
    for loss, optimiser, in_order in itertools.product(LOSSES, OPTIMISERS, (True, False))
]
# Every loss and every optimiser; all combinations take minutes on two cores. What a loss sends does not depend on the
# optimiser, so losses take turns.
TURNS = (("sgd", True), ("rowwise-adam", False), ("rowwise", True))
SOME = [
    {"loss": loss, "optimiser": optimiser, "in_order": in_order}
    for number, loss in enumerate(LOSSES)
    for optimiser, in_order in (TURNS[number % 3], TURNS[(number + 1) % 3])
]
OTHER_BODIES = [
    {"loss": "chunk-bnce", "optimiser": "rowwise-adam", "in_order": True, "body": body, "num_layers": 2}
    for body in ("transformer", "relu-lstm")
]
RESETS = [
    {"loss": loss, "optimiser": "rowwise", "in_order": True, "body": body, "resets": True}
    for loss, body in (("bnce", "lstm"), ("softmax", "ffnn"), ("chunk-bnce", "transformer"))
]
DISTINCT = {"loss": "sampled-softmax", "optimiser": "sgd", "in_order": True, "replacement": False}
CASES = [*(EVERY if os.environ.get("BNCE_EVERY_CASE") else SOME), *OTHER_BODIES, *RESETS, DISTINCT]


def test_resets_do_matter() -> None:
    with_them, without = train(World(), **RESETS[0]), train(World(), **(RESETS[0] | {"resets": False}))
    assert not torch.equal(with_them["body"], without["body"])


@pytest.fixture(scope="module")
def alone() -> list[dict[str, Tensor]]:
    """What one process ends with."""
    return [train(World(), **case) for case in CASES]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_any_number_of_processes_trains_the_same(size: int, alone: list[dict[str, Tensor]], tmp_path: Path) -> None:
    """In float64, with clipping active: the same to the last bit in a fixed order, to 1e-12 in any."""
    processes = in_processes(size, str(tmp_path), CASES)
    for case, expected, found in zip(CASES, alone, processes, strict=True):
        for name, tensor in expected.items():
            if case["in_order"] and name != "loss_total":  # the loss is for show
                assert torch.equal(found[name], tensor), (case, name)
            else:
                torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12, msg=str((case, name)))


def test_copies_of_the_tables_stay_equal_to_the_last_bit(tmp_path: Path) -> None:
    """Nothing brings them together again: what each adds up differently would grow, or in an order of its own."""
    case = {"loss": "snce", "in_order": False, "num_steps": 200, "dtype": torch.float32}
    in_processes(4, str(tmp_path), [{**case, "optimiser": optimiser} for optimiser in OPTIMISERS])
