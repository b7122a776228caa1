"""Ports and hosts; tests/cli/test_serve.py has the server as a process."""

from __future__ import annotations

import re
import socket

import pytest

from bnce.errors import UserError
from bnce.use.serve.access import is_loopback
from bnce.use.serve.server import listen


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
    assert not is_loopback("example.org")


def test_any_free_port() -> None:
    listener, url = listen("127.0.0.1", 0)
    with listener:
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)", url).group(1))  # type: ignore[union-attr]
        assert port == listener.getsockname()[1] > 0
        with pytest.raises(UserError, match=rf"Cannot listen on 127.0.0.1:{port} \(Address already in use\): give"):
            listen("127.0.0.1", port)


def test_answers_are_sent_at_once() -> None:
    """asyncio sets TCP_NODELAY where the socket names its protocol, and only there."""
    listener, _ = listen("127.0.0.1", 0)
    with listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_hosts_that_are_not_ours() -> None:
    with pytest.raises(UserError, match="give another --host or --port"):
        listen("203.0.113.7", 0)
    with pytest.raises(UserError, match="Cannot listen on no such host:0"):
        listen("no such host", 0)


def test_an_ipv6_url_has_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener, url = listen("::1", 0)
    except UserError:
        pytest.skip("no IPv6 loopback here")
    with listener:
        assert url == f"http://[::1]:{listener.getsockname()[1]}"
