"""Many processes with a GPU: NCCL inside the captured step, and gloo between processes that share the GPU."""

from __future__ import annotations

from itertools import compress
from pathlib import Path

import pytest
from making import draws_all
from torch import Tensor

from bnce.machine.processes import World
from tests.processes.equal_steps import in_processes, train

CASES = [
    {"loss": loss, "optimiser": optimiser, "in_order": in_order, "dropout": 0.0, "device": "cuda"}
    for loss, optimiser, in_order in (
        ("bnce", "rowwise-adam", False),
        ("bnce", "rowwise", True),
        ("chunk-bnce", "rowwise", False),
        ("chunk-bnce", "rowwise-adam", False),
        ("softmax", "rowwise", False),
        ("softmax", "sgd", True),
        ("self-normalised-softmax", "rowwise", False),
        ("sampled-softmax", "rowwise-adam", False),
        ("adaptive-softmax", "rowwise", False),
    )
]


@pytest.fixture(scope="module")
def in_one() -> list[dict[str, Tensor]]:
    return [train(World(), **case) for case in CASES]


@pytest.mark.parametrize(("backend", "size"), [("nccl", 1), ("gloo", 2)])
def test_processes_train_the_same_on_a_gpu(
    backend: str, size: int, in_one: list[dict[str, Tensor]], tmp_path: Path
) -> None:
    # What is drawn on a GPU depends on which groups a process has; on a CPU it does not, and is compared there.
    compared = [size == 1 or not draws_all(str(case["loss"])) for case in CASES]
    found = in_processes(size, str(tmp_path), [*compress(CASES, compared)], backend)
    for case, one, many in zip(compress(CASES, compared), compress(in_one, compared), found, strict=True):
        for name, tensor in one.items():
            error = float((many[name].double() - tensor.cpu().double()).abs().max())
            assert error <= 1e-4 * max(1.0, float(tensor.abs().max())), (case, name)
