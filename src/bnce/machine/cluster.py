"""A Dask cluster as an executor: tasks run on other machines, and those of a lost worker are run again elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bnce.errors import UserError
from bnce.machine.packages import need
from bnce.version import __version__

if TYPE_CHECKING:
    from distributed import Client

Result = TypeVar("Result")

ANSWER_SECONDS = 5.0  # for a scheduler, and then for its first worker
PATIENCE_SECONDS = 300.0  # with no worker at all: those of a batch system may come back
_LOOK_SECONDS = 1.0


class Cluster(Executor):
    """The workers of a Dask scheduler, as many as there are at any time."""

    def __init__(self, client: Client, address: str) -> None:
        self._client, self._address = client, address
        self._waiting: set[Future[Any]] = set()
        self._is_closed = threading.Event()
        self.num_workers = sum(client.nthreads().values())
        self._watcher = threading.Thread(target=self._watch, name="bnce-cluster", daemon=True)
        self._watcher.start()

    def submit(self, function: Callable[..., Result], /, *given: Any, **named: Any) -> Future[Result]:
        """Run a function on one of the workers."""
        call = functools.partial(function, *given, **named)
        # Not pure: Dask would hash all text to find out whether it has seen it before.
        task = self._client.submit(run_alike, versions(), call, pure=False)
        future: Future[Result] = Future()
        self._waiting.add(future)

        def end(future: Future[Result]) -> None:
            self._waiting.discard(future)
            if future.cancelled():
                with contextlib.suppress(Exception):  # of a scheduler that is gone
                    task.cancel()

        future.add_done_callback(end)
        # Not by Dask's own executor: of a connection that breaks while a result is on its way it never hears.
        loop = self._client.loop
        assert loop is not None
        loop.add_callback(self._pass_on, task, future)
        return future

    async def _pass_on(self, task: Any, future: Future[Any]) -> None:
        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        told: BaseException
        try:
            result = await task
        except KilledWorker:
            told = UserError(
                "A task ended every worker that tried it, probably because memory ran out: give the workers more "
                "memory or fewer threads each, and run it again."
            )
        except (CancelledError, asyncio.CancelledError, CommClosedError):
            told = UserError(
                f"The scheduler '{self._address}' was lost or stopped: start it and its workers, and run it again."
            )
        except BaseException as error:
            told = error
        else:
            with contextlib.suppress(Exception):  # nobody waits for it any more
                future.set_result(result)
            return
        with contextlib.suppress(Exception):
            future.set_exception(told)

    def ask_all(self, function: Callable[..., Result], *given: Any) -> dict[str, Result | BaseException]:
        """Run a short function once on every worker; give what each answers, or the error it has, by its address."""
        answers: dict[str, Result | BaseException] = self._client.run(function, *given, on_error="return")
        return answers

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the workers alone from now on; tasks that nobody waits for any more are cancelled."""
        self._is_closed.set()
        for future in list(self._waiting):
            future.cancel()
        self._watcher.join(ANSWER_SECONDS)

    def _watch(self) -> None:
        """Follow the number of workers, and give up when there has been none for long: Dask would wait forever."""
        had_some_at = time.monotonic()
        while not self._is_closed.wait(_LOOK_SECONDS):
            # What is wrong with the connection is told to whoever waits for a result.
            with contextlib.suppress(Exception):
                num_workers = sum(self._client.nthreads().values())
                if num_workers:
                    had_some_at, self.num_workers = time.monotonic(), num_workers
            if time.monotonic() - had_some_at > PATIENCE_SECONDS:
                told = UserError(
                    f"The cluster has had no workers for {PATIENCE_SECONDS:g} seconds: start workers, and run it again."
                )
                for future in list(self._waiting):
                    with contextlib.suppress(Exception):
                        future.set_exception(told)


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a scheduler by its address or its scheduler file."""
    distributed = need("distributed", "A Dask cluster")
    import dask  # which distributed brings

    # They are for whoever runs the cluster; here one sentence tells what went wrong.
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    settings = {
        "distributed.comm.timeouts.connect": ANSWER_SECONDS,
        # A block of text is well below what a scheduler can pass on.
        "distributed.admin.large-graph-warning-threshold": "1GB",
    }
    with dask.config.set(settings):
        found = _find_scheduler(address)
        with (
            distributed.Client(found, timeout=ANSWER_SECONDS, set_as_default=False, name="bnce") as client,
            _alike(client, found) as cluster,
        ):
            yield cluster


def _find_scheduler(address: str) -> str:
    """Give the address of a scheduler that answers."""
    try:
        found = json.loads(Path(address).read_text())["address"] if Path(address).is_file() else address
        # Before a client, which takes long to give up. What another kind of server answers may lead to any error.
        asyncio.run(_ask_for_name(found))
    except Exception as error:
        raise UserError(
            f"No Dask scheduler answers at '{address}': start one with 'dask scheduler' and give its address, such as "
            "tcp://host:8786, or its scheduler file."
        ) from error
    return str(found)


async def _ask_for_name(address: str) -> None:
    from distributed.core import rpc
    from distributed.security import Security

    secrets = Security().get_connection_args("client")
    async with rpc(address, timeout=ANSWER_SECONDS, connection_args=secrets) as scheduler:
        answer = await asyncio.wait_for(scheduler.identity(), ANSWER_SECONDS)
    if answer["type"] != "Scheduler":
        raise ValueError(f"a {answer['type']} answers")


def _alike(client: Client, address: str) -> Cluster:
    """Refuse a cluster without workers, or with one that would cut text otherwise."""
    try:
        client.wait_for_workers(1, timeout=ANSWER_SECONDS)
    except TimeoutError as error:
        raise UserError(f"The cluster has no workers: start some with 'dask worker {address}'.") from error
    for worker, found in client.run(versions, on_error="return").items():
        if isinstance(found, BaseException):
            raise UserError(
                f"The worker {worker} cannot load bnce ({found}): install bnce {__version__} wherever workers run."
            )
        _refuse_others(versions(), found, f"The worker {worker}")
    return Cluster(client, address)


def versions() -> dict[str, str]:
    """Name what text is cut by: this program, and Python with the letters that it knows."""
    return {"bnce": __version__, "Python": ".".join(platform.python_version_tuple()[:2])}


def run_alike(expected: dict[str, str], task: Callable[[], Result]) -> Result:
    """Run a task, on a worker that may have come late, if it does what every other worker does."""
    _refuse_others(expected, versions(), f"The worker on {platform.node()}")
    return task()


def _refuse_others(expected: dict[str, str], found: dict[str, str], worker: str) -> None:
    for what, version in expected.items():
        if found.get(what) != version:
            raise UserError(
                f"{worker} has {what} {found.get(what)} but this is {what} {version}: install the same version "
                "wherever workers run."
            )
