"""Requests to the server: bodies, headers, methods, paths and ways of sending that no client should use."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from .bed import Bed
from .damage import NASTY_TEXT, NASTY_VALUES
from .verdict import Verdict

BODIES: dict[str, Any] = {
    "/score": {"sentences": ["ba be da", "fu xyzzy"], "exact": True},
    "/rescore": {
        "utterances": [{"id": "one", "hypotheses": [{"text": "ba be", "am": -1.5, "lm": -2}, {"text": "ba bo"}]}],
        "lm_weight": 0.5,
    },
    "/next": {"prompt": "ba be", "k": 3, "mode": "normalised"},
}
METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "post", "X" * 30, "G\u00c9T", ""]
TARGETS = [
    "/", "/nothing", "//score", "/score/", "/../../etc/passwd", "/%2e%2e/etc/passwd", "/score?x=1", "/%00", "/%ff", "*",
    "/" + "a" * 3000, "/next?prompt=ba&k=3", "/health?k=-1", "/health?%ff", "/health", "/metrics",
    "/openapi.json", "http://elsewhere/score", "score", "/score#a", "/page.js",
    "/next?" + "&".join(f"a{n}=1" for n in range(500)),
]  # fmt: skip
HEADERS = [
    ("Content-Type", "text/plain"), ("Content-Type", ""), ("Content-Type", "application/json; charset=latin-1"),
    ("Content-Length", "-1"), ("Content-Length", "x"), ("Content-Length", "1"), ("Content-Length", "9" * 30),
    ("Content-Length", "+5"), ("Content-Length", "0x10"), ("Transfer-Encoding", "chunked"),
    ("Transfer-Encoding", "gzip"), ("Transfer-Encoding", "chunked, chunked"), ("Content-Encoding", "gzip"),
    ("Expect", "100-continue"), ("Expect", "x"), ("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Host", ""),
    ("Host", "evil.example"), ("Host", "a, b"), ("Accept", "text/html"), ("Range", "bytes=0-1"), ("Cookie", "a" * 4000),
    ("X-Long", "a" * 20_000), ("X\u00e9", "1"), ("X Y", "1"), ("X-Nul", "\0"), ("Origin", "http://evil.example"),
    ("Forwarded", "for=1.2.3.4"), ("Content-Length", "10\r\nContent-Length: 11"), ("Authorization", "Bearer x"),
]  # fmt: skip
ANSWER_SECONDS = 40.0  # the server gives an unfinished request 30


@dataclass(frozen=True)
class Request:
    """Bytes to send, in pieces, and what may come of them."""

    pieces: list[bytes]
    what: str
    same: str = ""  # the endpoint whose plain answer it must have
    is_head: bool = False


class Server:
    """`bnce serve` in a process of its own."""

    def __init__(self, bed: Bed, log: Path) -> None:
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            os.chdir(bed.path)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with open(log / "out", "wb") as out, open(log / "errors", "wb") as errors:
                os.dup2(out.fileno(), 1)
                os.dup2(errors.fileno(), 2)
            from bnce.cli import main

            sys.argv = ["bnce", "serve", "run", "--port", "0", "--json"]
            try:
                main()
            except SystemExit as ended:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(ended.code if isinstance(ended.code, int) else 0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        bed.port = self._wait()

    def _wait(self) -> int:
        for _ in range(600):
            with contextlib.suppress(OSError, ValueError):
                return int(json.loads((self.log / "out").read_text(encoding="utf-8"))["url"].rpartition(":")[2])
            time.sleep(0.1)
        raise SystemExit(f"The server did not start: {(self.log / 'errors').read_text(encoding='utf-8')}")

    def stop(self) -> Verdict:
        """Ask it to end, and judge what it wrote in all that time."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        _, status = os.waitpid(self.pid, 0)
        said = (self.log / "errors").read_text(encoding="utf-8", errors="replace")
        if "Traceback" in said or " failed: " in said:
            return Verdict("traceback", "the server's standard error", said[-1000:])
        if status:
            return Verdict("crash", "the server, at its end", f"wait status {status}: {said[-500:]}")
        return Verdict("same", "the server ended")


def run(bed: Bed, chance: Random) -> Verdict:
    """Send a bad request and judge the answer; then the server must still be well."""
    request = chance.choice(MAKERS)(chance)
    begin = time.monotonic()
    try:
        status, headers, body = exchange(bed.port, request.pieces, request.is_head)
    except TimeoutError:
        return Verdict("hang", request.what, f"no answer within {ANSWER_SECONDS:g} s")
    except OSError as error:
        return Verdict("unclear", request.what, f"no answer: {error}")
    verdict = _judge(bed, request, status, headers, body)
    if verdict.failed:
        return verdict
    try:
        well = exchange(bed.port, [b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])[0]
    except OSError as error:
        return Verdict("crash", request.what, f"the server is gone after {time.monotonic() - begin:.1f} s: {error}")
    return verdict if well == 200 else Verdict("crash", request.what, f"/health says {well} afterwards")


def _judge(bed: Bed, request: Request, status: int, headers: bytes, body: bytes) -> Verdict:
    if request.same:
        wanted = exchange(bed.port, [plain(request.same)])
        if (status, body) == (wanted[0], wanted[2]):
            return Verdict("same", request.what)
        return Verdict("silent", request.what, f"{status} {body[:200]!r}, not {wanted[0]} {wanted[2][:200]!r}")
    if status >= 500 and status != 504:
        return Verdict("unclear", request.what, f"{status} {body[:300]!r}")
    if status == 400 and b"text/plain" in headers:  # what is no HTTP never reaches the endpoints
        return Verdict("refused" if body.strip() else "unclear", request.what)
    if status >= 400 and not request.is_head:
        try:
            detail = json.loads(body)["detail"]
        except (ValueError, KeyError, TypeError):
            return Verdict("unclear", request.what, f"{status} without a sentence: {body[:300]!r}")
        if not isinstance(detail, str) or not detail.strip():
            return Verdict("unclear", request.what, f"{status} with the detail {str(detail)[:300]}")
    return Verdict("refused" if status >= 400 else "done", request.what)


def exchange(port: int, pieces: list[bytes], is_head: bool = False) -> tuple[int, bytes, bytes]:
    """Send pieces and read one answer: status, header, body."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS) as connection:
        # The server may answer, and close, before all is sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                connection.sendall(piece)
        data = b""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            header, blank, body = data.partition(b"\r\n\r\n")
            if blank and header.split()[1:2] == [b"100"]:
                data = body
                continue
            length = _length(header)
            if blank and (is_head or (length is not None and len(body) >= length)):
                return int(header.split()[1]), header, body[:length]
            if time.monotonic() > deadline:
                raise TimeoutError
            chunk = connection.recv(2**16)
            if not chunk:
                if blank and length is None:
                    return int(header.split()[1]), header, body
                raise ConnectionError(f"the connection was closed after {data[:100]!r}")
            data += chunk


def _length(header: bytes) -> int | None:
    found = [line.split(b":")[1] for line in header.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(found[0]) if found else None


def plain(path: str, body: bytes | None = None, method: str = "POST", extra: str = "") -> bytes:
    """Write a request as every client does."""
    body = json.dumps(BODIES[path]).encode() if body is None else body
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{extra}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode("utf-8", "surrogateescape") + body


def _path(chance: Random) -> str:
    return chance.choice(list(BODIES))


def _bad_bytes(chance: Random) -> Request:
    path = _path(chance)
    body = bytearray(json.dumps(BODIES[path]).encode())
    place = chance.randrange(len(body))
    how = chance.choice(["flipped", "cut", "put in", "replaced", "dropped", "none"])
    if how == "flipped":
        body[place] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del body[place:]
    elif how == "put in":
        body[place:place] = chance.choice(NASTY_TEXT)
    elif how == "replaced":
        body[:] = chance.choice([chance.randbytes(50), *NASTY_TEXT, b"null", b"[]", b"{}", b'"a"', b"1"])
    elif how == "dropped":
        del body[place : place + 3]
    else:
        body[:] = b""
    return Request([plain(path, bytes(body))], f"{path} with bytes {how} at {place}")


def _bad_value(chance: Random) -> Request:
    path = _path(chance)
    body = copy.deepcopy(BODIES[path])
    spots: list[tuple[Any, Any]] = []

    def walk(parent: Any) -> None:
        for key in list(parent) if isinstance(parent, dict) else range(len(parent)):
            spots.append((parent, key))
            if isinstance(parent[key], dict | list):
                walk(parent[key])

    walk(body)
    parent, key = chance.choice(spots)
    how = chance.choice(["value", "value", "value", "dropped", "unknown", "long", "many", "deep"])
    if how == "dropped":
        del parent[key]
    elif how == "unknown":
        body["unknown"] = chance.choice(NASTY_VALUES)
    elif how == "long":
        parent[key] = "ba " * chance.choice([2000, 50_000])
    elif how == "many":
        parent[key] = [chance.choice(["ba", 1, None])] * chance.choice([2000, 100_000])
    elif how == "deep":
        deep: Any = []
        for _ in range(chance.choice([50, 900])):
            deep = [deep]
        parent[key] = deep
    else:
        parent[key] = chance.choice([*NASTY_VALUES, float("nan"), float("inf"), 10**400, "\ud800", "<b>", "ba\nbe"])
    return Request([plain(path, json.dumps(body).encode())], f"{path} with {key}: {how}")


def _bad_header(chance: Random) -> Request:
    path = _path(chance)
    chosen = chance.sample(HEADERS, chance.choice([1, 1, 2]))
    extra = "".join(f"{name}: {value}\r\n" for name, value in chosen)
    return Request([plain(path, extra=extra)], f"{path} with {[(name, value[:20]) for name, value in chosen]}")


def _bad_target(chance: Random) -> Request:
    method, target = chance.choice(["GET", "GET", "POST", *METHODS]), chance.choice([*TARGETS, *BODIES])
    body = chance.choice([b"", json.dumps(BODIES["/score"]).encode()])
    what = f"{method} {target[:60]} with {len(body)} bytes"
    return Request([plain(target, body, method)], what, is_head=method == "HEAD")


def _bad_line(chance: Random) -> Request:
    line = chance.choice([
        b"POST /score HTTP/9.9", b"POST /score", b"POST  /score HTTP/1.1", b"\x16\x03\x01\x02\x00",
        b"POST /score HTTP/1.0", b"GET /health HTTP/1.1\r\nHost: a\r\n folded: b", b"\0" * 40,
        b"POST /sc\xffore HTTP/1.1", chance.randbytes(60), b"POST /score HTTP/1.1\r\n: empty", b"A" * 70_000,
        b"POST /score HTTP/1.1\r\n" + b"a: b\r\n" * 2000,
    ])  # fmt: skip
    return Request([line + b"\r\nHost: 127.0.0.1\r\n\r\n"], f"the line {line[:40]!r}")


def _bad_chunks(chance: Random) -> Request:
    path = _path(chance)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    chunk = chance.choice([
        b"x\r\n{}\r\n0\r\n\r\n", b"-1\r\n{}\r\n0\r\n\r\n", b"ffffffffffffffff\r\n{}\r\n", b"2\r\n{}0\r\n\r\n",
        b"2;ext=" + b"a" * 5000 + b"\r\n{}\r\n0\r\n\r\n", b"0\r\n\r\n", b"2\r\n{}\r\n0\r\nTrailer: a\r\n\r\n", b"\r\n",
        b"1\r\n{\r\n" * 50 + b"0\r\n\r\n", b"2 \r\n{}\r\n0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n",
    ])  # fmt: skip
    return Request([head.encode(), chunk], f"{path} with the chunks {chunk[:30]!r}")


def _other_way(chance: Random) -> Request:
    """Send a good request in another way: the answer must be the same."""
    path = _path(chance)
    body = json.dumps(BODIES[path]).encode()
    how = chance.choice(["chunks", "pieces", "spaces", "escapes", "order", "names"])
    if how == "chunks":
        size = chance.choice([1, 3, 17, 1000])
        chunks = [body[place : place + size] for place in range(0, len(body), size)]
        packed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        return Request(
            [f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), packed], f"{path} in chunks of {size}", path
        )
    if how == "pieces":
        whole, size = plain(path), chance.choice([1, 7, 100])
        pieces = [whole[place : place + size] for place in range(0, len(whole), size)]
        return Request(pieces, f"{path} in pieces of {size}", path)
    if how == "spaces":
        body = json.dumps(BODIES[path], indent=chance.choice([1, 8])).encode() + b"\n" * chance.choice([0, 1000])
    elif how == "escapes":
        body = json.dumps(BODIES[path]).replace("ba", "\\u0062a").encode()
    elif how == "order":
        body = json.dumps(dict(reversed(BODIES[path].items()))).encode()
    else:
        sent = (
            plain(path).replace(b"Content-Length", b"cONTENT-lENGTH").replace(b"application/json", b"Application/JSON")
        )
        return Request([sent], f"{path} with names in other letters", path)
    return Request([plain(path, body)], f"{path} with other {how}", path)


MAKERS: list[Callable[[Random], Request]] = [
    _bad_bytes, _bad_bytes, _bad_value, _bad_value, _bad_value, _bad_header, _bad_header, _bad_target, _bad_target,
    _bad_line, _bad_chunks, _other_way, _other_way,
]  # fmt: skip
