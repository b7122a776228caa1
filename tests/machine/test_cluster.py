"""A cluster that loses its workers, and what is told of tasks that cannot be done."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from bnce import UserError
from bnce.machine import cluster
from bnce.machine.cluster import Cluster


class Client:
    """A client of Dask whose tasks never end."""

    def __init__(self) -> None:
        self.loop = self
        self.num_threads = {"one": 2, "other": 1}
        self.cancelled: list[str] = []

    def nthreads(self) -> dict[str, int]:
        return self.num_threads

    def submit(self, *given: Any, pure: bool) -> Client:
        assert not pure
        return self

    def add_callback(self, *given: Any) -> None:
        pass

    def cancel(self) -> None:
        self.cancelled.append("task")


def test_workers_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.01)
    client = Client()
    with Cluster(client, "tcp://host:8786") as executor:
        assert executor.num_workers == 3
        forgotten: Future[int] = executor.submit(len, "text")
        client.num_threads = {"one": 2, "other": 1, "another": 4}
        waits: Future[int] = executor.submit(len, "text")
        with pytest.raises(TimeoutError):
            waits.result(0.2)
        assert executor.num_workers == 7
        forgotten.cancel()
        assert client.cancelled == ["task"]
        monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 0.1)
        client.num_threads = {}
        with pytest.raises(UserError, match=r"has had no workers for 0\.1 seconds: start workers, and run it again"):
            waits.result(10)
        executor.submit(len, "text")
    assert client.cancelled == ["task", "task"]


def test_what_is_told_of_tasks() -> None:
    distributed = pytest.importorskip("distributed", reason="the extra cluster is not installed: Dask is not tested")
    broken = pytest.importorskip("distributed.comm.core").CommClosedError("in <TCP>")
    lost = "The scheduler 'tcp://host:8786' was lost or stopped: start it and its workers, and run it again."
    memory = "A task ended every worker that tried it, probably because memory ran out"
    own = UserError("It is the user's.")
    killed = distributed.KilledWorker("task", None, 3)
    with Cluster(Client(), "tcp://host:8786") as executor:
        for error, told in ((killed, memory), (CancelledError(), lost), (broken, lost), (own, str(own))):

            async def fail(error: BaseException = error) -> None:
                raise error

            future: Future[None] = Future()
            asyncio.run(executor._pass_on(fail(), future))
            with pytest.raises(UserError) as caught:
                future.result()
            assert str(caught.value).startswith(told)
        future = Future()
        future.cancel()
        # Nobody waits for it any more, and nothing is made of that.
        asyncio.run(executor._pass_on(asyncio.sleep(0), future))
