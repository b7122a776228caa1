"""The server as a process: a port, a loop, and an end that lets running requests finish."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import logging
import math
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from bnce.errors import UserError, argument
from bnce.serve.connection import limited_connections
from bnce.serve.guard import Application
from bnce.serve.limits import Limits
from bnce.serve.metrics import Metrics

KEEP_ALIVE_SECONDS = 30
# Connections that the system keeps until the server takes them.
BACKLOG = 1024
# Files that the process may open besides connections and what it has open when it starts.
SPARE_FILES = 24
# Connections that are taken in one turn of the loop. Those that are too many are told so some turns later, and by then
# there must still be files to spare.
TAKEN_AT_ONCE = 3
# What says that the system has no room for another connection.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# asyncio comes back to a port after a second; this must be over by then.
REST_SECONDS = 0.9
TELL_SECONDS = 30.0

logger = logging.getLogger("bnce.serve")


class _Listener(socket.socket):
    """A port that rests where the system has no room for another connection.

    asyncio leaves the port alone for a second then, but first tries it as often as it takes connections at once, with a
    traceback each time.
    """

    _rests_until = 0.0

    def listen(self, backlog: int = BACKLOG, /) -> None:
        """Listen; asyncio calls it with the number of connections to take at once, which is another thing."""
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        """Take a connection; after a shortage, say for a while that there is none."""
        if time.monotonic() < self._rests_until:
            raise BlockingIOError
        try:
            return super().accept()
        except OSError as error:
            if error.errno in SHORTAGES:
                self._rests_until = time.monotonic() + REST_SECONDS
            raise


class Shortage:
    """Says that connections cannot be taken, once in a while and in one line; other faults of the loop go their way."""

    def __init__(self) -> None:
        self._told_at = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what asyncio has nobody else to tell."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in SHORTAGES:
            loop.default_exception_handler(context)
        elif time.monotonic() - self._told_at > TELL_SECONDS:
            self._told_at = time.monotonic()
            logger.warning(
                "New connections wait, because the system cannot open more (%s): allow more files (ulimit -n), "
                "or lower %s.",
                error.strerror,
                argument("max_connections"),
            )


def fit_to_files(limits: Limits) -> Limits:
    """Allow no more connections than the system allows files, where that can be known and raised no further."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        num_open = len(os.listdir("/dev/fd"))
    except OSError:
        num_open = 2 * SPARE_FILES
    wanted = limits.max_connections + num_open + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    fitting = max(1, most - num_open - SPARE_FILES)
    if fitting >= limits.max_connections:
        return limits
    logger.warning(
        "Accepting at most %d connections at a time instead of %d: the system allows %d open files; allow more (ulimit "
        "-n), "
        "or lower %s.",
        fitting,
        limits.max_connections,
        most,
        argument("max_connections"),
    )
    return dataclasses.replace(limits, max_connections=fitting)


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Take a port, 0 for any free one; gives it with the server's URL."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        # Only with the protocol named does asyncio send at once; else a body waits 40 ms until its header is confirmed.
        listener = _Listener(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    shown = f"[{host}]" if ":" in host else host
    return listener, f"http://{shown}:{listener.getsockname()[1]}"


def _cannot_listen(host: str, port: int, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or str(error)
    return UserError(
        f"Cannot listen on {host}:{port} ({reason}): give another {argument('host')} or {argument('port')}."
    )


class _AnnouncedServer(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(Shortage())
        await super().startup(sockets)
        if self.started:
            # What is there by now stays. To look through it for garbage again and again, which the objects of a large
            # body cause, stopped everything for a tenth of a second each time.
            gc.collect()
            gc.freeze()
            self._announce()


def run_server(
    app: Application,
    listener: socket.socket,
    limits: Limits,
    metrics: Metrics,
    announce: Callable[[], None],
    *,
    log_level: str = "warning",
    access_log: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; then refuse what is new, finish what runs, and return."""
    limits = fit_to_files(limits)
    config = uvicorn.Config(
        app,
        http=limited_connections(limits, metrics),
        ws="none",
        backlog=TAKEN_AT_ONCE,
        lifespan="on",
        loop="asyncio",
        log_config=None,
        # Its warnings are about what clients send: as many lines as they like.
        log_level="error" if log_level == "warning" else log_level,
        access_log=access_log,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(limits.body_seconds + limits.request_seconds),
    )
    if access_log:
        # A request is logged at the level info, and who asks for requests need not ask for everything else.
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    server = _AnnouncedServer(config, announce)
    # uvicorn raises the signal again when all is done, which would end the process with a status of failure.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run([listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
