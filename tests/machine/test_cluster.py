"""What is told of a cluster whose tasks cannot be done; tests/cli/test_prepare_cluster.py has one that can."""

from __future__ import annotations

from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from dask_machines import Machines

from bnce import UserError
from bnce.machine.cluster import connected
from bnce.machine.workers import map_in_order

distributed = pytest.importorskip("distributed", reason="the extra cluster is not installed: Dask is not tested")


def test_what_is_told_of_tasks(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    broken = pytest.importorskip("distributed.comm.core").CommClosedError("in <TCP>")
    lost = f"The scheduler '{machines.address}' was lost or stopped: start it and its workers, and run it again."
    memory = "A task ended every worker that tried it, probably because memory ran out"
    killed = distributed.KilledWorker("task", None, 3)
    try:
        for error, told in ((killed, memory), (CancelledError(), lost), (broken, lost), (UserError("own"), "own")):
            with pytest.raises(UserError) as caught, connected(machines.address) as cluster:
                raise error
            assert str(caught.value).startswith(told)
        with connected(str(machines.file)) as cluster:
            assert cluster.num_workers == 2
            assert list(map_in_order(abs, range(-40, 0), cluster)) == list(range(40, 0, -1))
            # Equal items are tasks of their own.
            assert list(map_in_order(abs, [-3] * 9, cluster)) == [3] * 9
            with pytest.raises(TypeError):
                list(map_in_order(abs, ["text"], cluster))
    finally:
        machines.stop()
