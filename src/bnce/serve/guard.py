"""What stands before the endpoints: by which names the server is called, its token, limits of size and time, counts.

A page of another site can give its own name the address of this machine (DNS rebinding) and then read whatever the
server says to it. That name stands in the header Host, so names that are not the server's own are refused. An address
there is no such name.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import re
import time
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bnce.errors import argument

MAX_BODY_BYTES = 2**18
REQUEST_SECONDS = 30.0
# Of a body that is too large: a client that is still sending would not see the answer.
LINGER_BYTES, LINGER_SECONDS = 2**24, 5.0

# No page of ours needs anything from elsewhere, or may be put into someone else's.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


def is_own_name(header: str, names: Collection[str]) -> bool:
    """Tell whether the value of a header Host is an address, this machine, or one of the names.

    A name can be lm.example.org, *.example.org for all its subdomains, or * for any.
    """
    name = re.sub(r":\d*$", "", header.strip()).lower().rstrip(".")
    if "*" in names or name in ("localhost", *names):
        return True
    if name.endswith((".localhost", *(each[1:] for each in names if each.startswith("*.")))):
        return True
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    return False


class Guard:
    """An ASGI middleware; `open_paths` need no token."""

    def __init__(
        self,
        app: ASGIApp,
        names: Collection[str],
        token: str | None,
        open_paths: Collection[str],
        registry: CollectorRegistry,
    ) -> None:
        self._app, self._names, self._open_paths = app, [name.lower() for name in names], open_paths
        self._authorization = None if token is None else f"Bearer {token}".encode()
        labels = ["endpoint", "status"]
        self._requests = Counter("bnce_requests", "Finished requests; 0: no answer.", labels, registry=registry)
        self._seconds = Histogram("bnce_request_seconds", "From request to answer.", labels[:1], registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status, num_bytes = time.perf_counter(), 0, 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        async def read() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > MAX_BODY_BYTES:
                raise _too_large()
            return message

        try:
            self._check(scope)
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._app(scope, read, answer)
        except HTTPException as refusal:
            await _refuse(refusal, scope, receive, answer)
        except TimeoutError:
            if not status:
                told = f"The request was not sent and answered within {REQUEST_SECONDS:g} seconds: send less at once."
                await _refuse(HTTPException(504, told, {"connection": "close"}), scope, receive, answer)
        finally:
            endpoint = getattr(scope.get("route"), "path", "other")
            self._requests.labels(endpoint, status).inc()
            self._seconds.labels(endpoint).observe(time.perf_counter() - begin)

    def _check(self, scope: Scope) -> None:
        """Refuse a request for what its header says."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not is_own_name(host, self._names):
            told = f"'{host[:100]}' is not a name of this server: start it with {argument('allowed_host')} to allow it."
            raise HTTPException(421, told)
        given = headers.get(b"authorization", b"")
        scope["trusted"] = self._authorization is None or hmac.compare_digest(given, self._authorization)
        if not scope["trusted"] and scope["path"] not in self._open_paths:
            told = "This server needs a token: send the header 'Authorization: Bearer TOKEN'."
            raise HTTPException(401, told, {"www-authenticate": 'Bearer realm="bnce"'})
        # A browser asks before it sends JSON to a server of another site, and is refused.
        if scope["method"] == "POST" and not headers.get(b"content-type", b"").lower().startswith(b"application/json"):
            raise HTTPException(415, "The body must be JSON: send it with the header 'Content-Type: application/json'.")
        if int(headers.get(b"content-length", b"0")) > MAX_BODY_BYTES:
            raise _too_large()


def _too_large() -> HTTPException:
    told = f"The body is larger than {MAX_BODY_BYTES} bytes: send several requests."
    return HTTPException(413, told, {"connection": "close"})


async def _refuse(refusal: HTTPException, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with one sentence; then read what the client still sends, or it would not see the answer."""

    async def linger(message: Message) -> None:
        is_end = message["type"] == "http.response.body"
        await send({**message, "more_body": True} if is_end else message)
        left = LINGER_BYTES if is_end and refusal.status_code == 413 else 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0 and (more := await receive()).get("more_body", False):
                    left -= len(more["body"])
        if is_end:
            await send({"type": "http.response.body", "body": b""})

    await JSONResponse({"detail": refusal.detail}, refusal.status_code, refusal.headers)(scope, receive, linger)
