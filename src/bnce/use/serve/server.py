"""The server as a process: a port, a loop, and an end that lets running requests finish."""

from __future__ import annotations

import math
import signal
import socket
from collections.abc import Callable

import uvicorn

from bnce.errors import UserError
from bnce.use.serve.connection import limited_connections
from bnce.use.serve.guard import Application
from bnce.use.serve.limits import Limits
from bnce.use.serve.metrics import Metrics

KEEP_ALIVE_SECONDS = 30
# Connections that the system keeps until the server takes them.
BACKLOG = 1024


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Take a port, 0 for any free one; gives it with the server's URL."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        # Only with the protocol named does asyncio send at once; else a body waits 40 ms until its header is confirmed.
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    shown = f"[{host}]" if ":" in host else host
    return listener, f"http://{shown}:{listener.getsockname()[1]}"


def _cannot_listen(host: str, port: int, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or str(error)
    return UserError(f"Cannot listen on {host}:{port} ({reason}): give another --host or --port.")


class _AnnouncedServer(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
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
    config = uvicorn.Config(
        app,
        http=limited_connections(limits, metrics),
        ws="none",
        backlog=BACKLOG,
        lifespan="on",
        loop="asyncio",
        log_config=None,
        log_level=log_level,
        access_log=access_log,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(limits.body_seconds + limits.request_seconds),
    )
    server = _AnnouncedServer(config, announce)
    # uvicorn raises the signal again when all is done, which would end the process with a status of failure.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run([listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
