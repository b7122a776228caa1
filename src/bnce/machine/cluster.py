"""A Dask cluster as an executor: tasks run on other machines, and those of a lost worker are run again elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bnce.errors import UserError
from bnce.machine.packages import need
from bnce.version import __version__

if TYPE_CHECKING:
    from distributed import Client

Result = TypeVar("Result")

ANSWER_SECONDS = 5.0  # for a scheduler, and then for its first worker


class Cluster(Executor):
    """The workers of a Dask scheduler, as many as there are at any time."""

    def __init__(self, client: Client) -> None:
        self.client, self._num_workers = client, 1

    @property
    def num_workers(self) -> int:
        """How many tasks run at once."""
        with contextlib.suppress(OSError):  # whoever waits for a result hears of a connection that is lost
            self._num_workers = sum(self.client.nthreads().values())
        return self._num_workers

    def submit(self, function: Callable[..., Result], /, *given: Any, **named: Any) -> Future[Result]:
        """Run a function on one of the workers."""
        # Dask's own future, which has what a map asks of one: Dask's executor never hears of a connection that breaks
        # while a result is on its way. Not pure: Dask would hash all text to find out whether it has seen it before.
        return cast("Future[Result]", self.client.submit(function, *given, **named, pure=False))


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a scheduler by its address or its scheduler file, and refuse workers that would cut text otherwise."""
    distributed = need("distributed", "A Dask cluster")
    import dask  # which distributed brings
    from distributed.comm.core import CommClosedError

    # They are for whoever runs the cluster; here one sentence tells what went wrong.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # A block of text is well below what a scheduler can pass on.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}):
        try:
            found = json.loads(Path(address).read_text())["address"] if Path(address).is_file() else address
            asyncio.run(_wait_for_answer(found))
            client = distributed.Client(found, timeout=ANSWER_SECONDS, set_as_default=False, name="bnce")
        except Exception as error:  # what another kind of server answers may lead to any
            raise UserError(
                f"No Dask scheduler answers at '{address}': start one with 'dask scheduler' and give its address, such "
                "as tcp://host:8786, or its scheduler file."
            ) from error
        with client:
            try:
                _check_workers(client, found)
                yield Cluster(client)
            except distributed.KilledWorker as error:
                raise UserError(
                    "A task ended every worker that tried it, probably because memory ran out: give the workers more "
                    "memory or fewer threads each, and run it again."
                ) from error
            except Exception as error:
                if client.status == "running" and not isinstance(error, CancelledError | CommClosedError):
                    raise
                raise UserError(
                    f"The scheduler '{found}' was lost or stopped: start it and its workers, and run it again."
                ) from error


async def _wait_for_answer(address: str) -> None:
    """Ask before a client does, which waits for ever for a server of another kind, such as the dashboard."""
    from distributed.core import rpc
    from distributed.security import Security

    async with rpc(address, connection_args=Security().get_connection_args("client")) as scheduler:
        await asyncio.wait_for(scheduler.identity(), ANSWER_SECONDS)


def _check_workers(client: Client, address: str) -> None:
    """Refuse a cluster without workers, or with one that would cut text into other words."""
    try:
        client.wait_for_workers(1, timeout=ANSWER_SECONDS)
    except TimeoutError as error:
        raise UserError(f"The cluster has no workers: start some with 'dask worker {address}'.") from error
    for worker, found in client.run(versions).items():
        if found != versions():
            raise UserError(
                f"The worker {worker} has {found} but this is {versions()}: install the same version wherever workers "
                "run."
            )


def versions() -> str:
    """Name what text is cut by: this program, and Python with the letters that it knows."""
    return f"bnce {__version__} on Python {'.'.join(platform.python_version_tuple()[:2])}"
