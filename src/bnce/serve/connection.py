"""Connections that cannot be held for ever: by a header that never ends, a body in crumbs, or an answer nobody reads.

uvicorn takes them as long as the client likes; the time a body takes is the guard's matter.
"""

from __future__ import annotations

import asyncio
import http
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bnce import files
from bnce.serve.limits import Limits
from bnce.serve.metrics import Metrics


class TooManyPiecesError(h11.RemoteProtocolError):
    """A body that comes in so many pieces that reading them costs more than the answer."""


class _Parser(h11.Connection):
    """h11's, with a bound to the pieces of a body: a chunk of one byte costs as much as one of a thousand."""

    def __init__(self, max_pieces: int) -> None:
        super().__init__(h11.SERVER)
        self._max_pieces = max_pieces
        self._num_pieces = 0

    def next_event(self) -> Any:
        """Read on, and count."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_pieces = 0
        elif isinstance(event, h11.Data):
            self._num_pieces += 1
            if self._num_pieces > self._max_pieces:
                raise TooManyPiecesError(
                    f"The body arrives in more than {self._max_pieces} pieces: send larger chunks."
                )
        return event


class LimitedConnection(H11Protocol):
    """One connection; a subclass from `limited_connections` says what the limits are."""

    limits: Limits
    metrics: Metrics
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _is_used = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = _Parser(self.limits.max_body_pieces)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a header, or refuse where there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, "The server has too many connections: try again in a second.", "Retry-After: 1")
        else:
            self._watch_header()

    def data_received(self, data: bytes) -> None:
        """Read on; the time for a header runs from its first byte."""
        if self.transport.is_closing():
            return
        self._is_used = True
        super().data_received(data)
        self._watch_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clocks."""
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._header_timer = self._write_timer = None
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give a client that does not read a time to go on."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the clock: the client has read."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection; what was never read is dropped."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or is too much of it; uvicorn calls it where it catches the parser's error."""
        error = sys.exc_info()[1]
        told = str(error) if isinstance(error, TooManyPiecesError) else "This is not a valid HTTP/1.1 request."
        self._refuse(400, told)

    def _watch_header(self) -> None:
        """Let the clock run while a header is awaited, and only then."""
        between = self.cycle is None or self.cycle.response_complete
        waiting = between and self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if waiting and self._header_timer is None:
            self._header_timer = self.loop.call_later(self.limits.body_seconds, self._header_is_late)
        elif not waiting and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _header_is_late(self) -> None:
        if self._is_used:
            self._refuse(408, f"The header did not arrive within {self.limits.body_seconds:g} seconds: send it faster.")
        else:
            # Browsers open connections ahead, and take whatever comes there for the answer to their next request.
            self.transport.close()

    def _refuse(self, status: int, sentence: str, *headers: str) -> None:
        """Answer before the application does, and end the connection."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = files.to_json({"detail": sentence})
            lines = [
                f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
                "Content-Type: application/json",
                f"Content-Length: {len(body.encode())}",
                "Connection: close",
                *headers,
            ]
            self.transport.write("\r\n".join([*lines, "", body]).encode())
            self.metrics.count_request("none", status, 0.0)
        self.transport.close()


def limited_connections(limits: Limits, metrics: Metrics) -> type[LimitedConnection]:
    """Make the class of connections for one server."""
    return type("Connection", (LimitedConnection,), {"limits": limits, "metrics": metrics})
