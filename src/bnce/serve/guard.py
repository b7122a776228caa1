"""What stands before the endpoints: who may ask, bodies that are too large or too slow, time limits, and the counting.

A body is read whole before anything else happens, so a slow client holds nothing but its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from bnce import files
from bnce.serve.access import Access
from bnce.serve.limits import Limits, RefusedError
from bnce.serve.metrics import Metrics

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# No page of ours needs anything from elsewhere, or may be put into someone else's.
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
CHARSETS = (b"utf-8", b"utf8", b"us-ascii", b"ascii")  # ASCII is UTF-8, too
FAILED = "The server failed; see its log."
# Nobody gets this status: the client is gone.
CLIENT_GONE = 499
# What is read and dropped of a body that is too large: a client that is still sending would not see the answer.
LINGER_BODIES = 16

logger = logging.getLogger("bnce.serve")


class _Answer:
    """Sends an answer with the headers that all have, and remembers its status; to HEAD without the body."""

    def __init__(self, send: Send, has_body: bool = True) -> None:
        self._send, self._has_body = send, has_body
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
        elif not self._has_body:
            message = {**message, "body": b""}
        await self._send(message)

    async def refuse(self, refusal: RefusedError, close: bool) -> None:
        """Send a refusal; `close` where the body was not read to its end."""
        body = files.to_json({"detail": refusal.sentence}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if refusal.retry_seconds is not None:
            headers.append((b"retry-after", b"%d" % refusal.retry_seconds))
        if refusal.status == http.HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b'Bearer realm="bnce"'))
        if close:
            headers.append((b"connection", b"close"))
        await self({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})


class Guard:
    """An ASGI application around another."""

    def __init__(
        self, app: Application, endpoints: Collection[str], limits: Limits, metrics: Metrics, access: Access
    ) -> None:
        self._app, self._endpoints, self._limits, self._metrics, self._access = app, endpoints, limits, metrics, access
        self._num_held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        is_head = scope["method"] == "HEAD"
        answer = _Answer(send, has_body=not is_head)
        if is_head:  # as GET, less the body
            scope = {**scope, "method": "GET"}
        pieces: list[bytes] = []
        is_read = False
        try:
            no_access = self._access.refusal(scope)
            await self._read(receive, pieces if no_access is None else None)
            is_read = True
            if no_access is not None:
                raise no_access
            # One copy of it is enough.
            pieces[:] = [b"".join(pieces)]
            _check_body(scope, pieces[0])
            await self._run(scope, pieces[0], receive, answer)
        except RefusedError as refusal:
            await answer.refuse(refusal, close=not is_read)
        except _ClientGoneError:
            answer.status = CLIENT_GONE
        except Exception as error:
            # Quoted: a path can spell a line's end.
            logger.error("%r failed: %s: %s", scope["path"], type(error).__name__, error)
            logger.debug("where it failed", exc_info=error)
            if answer.status is None:
                await answer.refuse(RefusedError(500, FAILED), close=False)
        finally:
            self._num_held_bytes -= sum(map(len, pieces))
            endpoint = scope["path"] if scope["path"] in self._endpoints else "other"
            self._metrics.count_request(endpoint, answer.status or CLIENT_GONE, time.perf_counter() - begin)

    async def _read(self, receive: Receive, pieces: list[bytes] | None) -> None:
        """Read a body to its end, within the limits; without a list to put it into, what is read is dropped.

        A client that is still sending would not see an answer that comes before it is read.
        """
        limit = self._limits.max_body_bytes
        too_large = RefusedError(413, f"The body is larger than {limit} bytes: send several requests.")
        num_bytes = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGoneError
                    chunk = message.get("body", b"")
                    more = message.get("more_body", False)
                    num_bytes += len(chunk)
                    if num_bytes > LINGER_BODIES * limit:
                        raise too_large
                    if pieces is not None and num_bytes <= limit:
                        self._hold(pieces, chunk)
        except TimeoutError:
            raise RefusedError(
                408, f"The body did not arrive within {self._limits.body_seconds:g} seconds: send it faster."
            ) from None
        if num_bytes > limit:
            raise too_large

    def _hold(self, pieces: list[bytes], chunk: bytes) -> None:
        if self._num_held_bytes + len(chunk) > self._limits.max_held_bytes:
            raise RefusedError(503, "The server is busy with other data: try again in a second.", 1)
        self._num_held_bytes += len(chunk)
        pieces.append(chunk)

    async def _run(self, scope: Scope, body: bytes, receive: Receive, answer: _Answer) -> None:
        """Let the application answer, as long as somebody waits for it."""
        bodies = [body]

        async def replay() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await gone
            return {"type": "http.disconnect"}

        gone = asyncio.ensure_future(_wait_until_gone(receive))
        work = asyncio.ensure_future(self._app(scope, replay, answer))
        try:
            await asyncio.wait({gone, work}, timeout=self._limits.request_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and gone.done():
                raise _ClientGoneError
            if not work.done() and answer.status is None:
                seconds = self._limits.request_seconds
                raise RefusedError(
                    504, f"The answer took more than {seconds:g} seconds: send a smaller request, or try again later."
                )
            await work
        finally:
            for task in (gone, work):
                if not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task


class _ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _check_body(scope: Scope, body: bytes) -> None:
    """Refuse what cannot be JSON; a browser asks before it sends JSON to a server of another page, and is refused."""
    if scope["method"] != "POST":
        return
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    kind, *parameters = kinds[0].lower().split(b";") if kinds else [b""]
    if kind.strip() != b"application/json":
        raise RefusedError(415, "The body must be JSON: send it with the header 'Content-Type: application/json'.")
    for name, _, value in (one.partition(b"=") for one in parameters):
        charset = value.strip().strip(b"\"'")
        if name.strip() == b"charset" and charset not in CHARSETS:
            raise RefusedError(
                415, f"The body is declared as {charset.decode('ascii', 'replace'):.40}: send JSON in UTF-8."
            )
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise RefusedError(
            400, f"The body is not UTF-8: byte 0x{body[error.start]:02x} at offset {error.start}; send JSON in UTF-8."
        ) from None
