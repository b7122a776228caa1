"""The number of processes changes nothing: neither the objective nor what a step does."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bnce
from bnce.machine.world import World
from tests.processes.equal_steps import in_processes, train

LOSSES = (
    "bnce",
    "chunk-bnce",
    "snce",
    "softmax",
    "self-normalised-softmax",
    "sampled-softmax",
    "adaptive-softmax",
    "hierarchical-softmax",
    "class-softmax",
    "negative-sampling",
    "blackout",
)
OPTIMISERS = ("sgd", "rowwise", "rowwise-adam")
EVERY = [
    {"loss": loss, "optimiser": optimiser, "sharded": sharded, "in_order": in_order}
    for loss, optimiser, sharded, in_order in itertools.product(LOSSES, OPTIMISERS, (True, False), (True, False))
]
# Every loss with both ways to keep tables, and every optimiser; all combinations take minutes on two cores. What a loss
# sends does not depend on the optimiser, so losses take turns.
SHARDED = (("sgd", True, True), ("rowwise-adam", True, False))
SOME = [
    {"loss": loss, "optimiser": optimiser, "sharded": sharded, "in_order": in_order}
    for number, loss in enumerate(LOSSES)
    for optimiser, sharded, in_order in (SHARDED[number % 2], ("rowwise", False, True))
]
OTHER_BODIES = [
    {
        "loss": "chunk-bnce",
        "optimiser": "rowwise-adam",
        "sharded": True,
        "in_order": True,
        "body": body,
        "num_layers": 2,
    }
    for body in ("transformer", "relu-lstm")
]
RESETS = [
    {"loss": loss, "optimiser": "rowwise", "sharded": sharded, "in_order": True, "body": body, "resets": True}
    for loss, body, sharded in (("bnce", "lstm", True), ("softmax", "ffnn", False), ("chunk-bnce", "transformer", True))
]
DISTINCT = {"loss": "sampled-softmax", "optimiser": "sgd", "sharded": True, "in_order": True, "replacement": False}
CASES = [*(EVERY if os.environ.get("BNCE_EVERY_CASE") else SOME), *OTHER_BODIES, *RESETS, DISTINCT]


def scores_all_words(loss: str) -> bool:
    return bnce.LOSSES.find(loss).scores_all_words


def test_resets_do_matter() -> None:
    case = RESETS[0] | {"sharded": False}
    with_them, without = train(World(), **case), train(World(), **(case | {"resets": False}))
    assert not torch.equal(with_them["body"], without["body"])


@pytest.fixture(scope="module")
def alone() -> list[dict[str, Tensor]]:
    """What one process ends with."""
    return [train(World(), **(case | {"sharded": False})) for case in CASES]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_any_number_of_processes_trains_the_same(size: int, alone: list[dict[str, Tensor]], tmp_path: Path) -> None:
    """In float64, with clipping active: the same to the last bit in a fixed order, to 1e-12 in any."""
    cases = list(zip(CASES, alone, strict=True))
    if size != 2 and not os.environ.get("BNCE_EVERY_CASE"):
        # Four processes on two cores are slow, and whole tables are added up over one and over four as over two.
        cases = [(case, expected) for case, expected in cases if case["sharded"]]
    processes = in_processes(size, str(tmp_path), [case for case, _ in cases])
    for (case, expected), found in zip(cases, processes, strict=True):
        for name, tensor in expected.items():
            # A matrix product may add in another order where it has other rows beside it. The loss is for show.
            if case["in_order"] and not (scores_all_words(case["loss"]) and case["sharded"]) and name != "loss":
                assert torch.equal(found[name], tensor), (case, name)
            else:
                torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12, msg=str((case, name)))
