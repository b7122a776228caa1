"""Names that are the server's own, and tokens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bnce import UserError
from bnce.serve.access import Access, AllowedHosts, read_token

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("bound", "more", "allowed", "refused"),
    [
        (
            "127.0.0.1",
            [],
            [
                "127.0.0.1",
                "127.0.0.1:8000",
                "localhost",
                "LOCALHOST:1",
                "localhost.",
                "a.localhost",
                "[::1]:80",
                "[::1]",
            ],
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "", "*", "evillocalhost"],
        ),
        ("192.0.2.7", [], ["192.0.2.7:80", "localhost"], ["192.0.2.8", "evil.example", "[2001:db8::1]"]),
        ("lm.example.org", [], ["LM.example.org:8000", "127.0.0.1"], ["a.lm.example.org", "192.0.2.7"]),
        # An address is no name that somebody could point here.
        ("0.0.0.0", [], ["192.0.2.7", "[2001:db8::1]:8000", socket.gethostname()], ["evil.example", "999.0.0.1"]),
        ("::", [], ["192.0.2.7", "localhost"], ["evil.example"]),
        (
            "127.0.0.1",
            ["lm.example.org", "*.Example.net", "192.0.2.7"],
            ["lm.example.org:443", "a.example.net", "a.b.example.net", "192.0.2.7"],
            ["example.org", "example.net", "badexample.net", "a.lm.example.org"],
        ),
        ("127.0.0.1", ["*"], ["evil.example", "192.0.2.7", "localhost"], []),
    ],
)
def test_hosts(bound: str, more: list[str], allowed: list[str], refused: list[str]) -> None:
    hosts = AllowedHosts([bound], more)
    assert [host for host in allowed if not hosts.allows(host)] == []
    assert [host for host in refused if hosts.allows(host)] == []


def test_a_host_may_be_called_by_its_address_too() -> None:
    hosts = AllowedHosts(["lm.example.org", "192.0.2.7"])
    assert all(map(hosts.allows, ["lm.example.org", "192.0.2.7:80", "127.0.0.1"]))
    # As --host 0 is bound.
    assert AllowedHosts(["0", "0.0.0.0"]).allows("192.0.2.7")


@pytest.mark.parametrize("name", ["http://lm.example.org", "lm.example.org:8000", "", "a b", "*.*", "lm."])
def test_a_host_is_a_name(name: str) -> None:
    with pytest.raises(UserError, match="give a name without scheme or port, such as"):
        AllowedHosts((), [name])


@pytest.mark.parametrize(
    ("headers", "trusted"),
    [
        ([b"Bearer 0123456789abcdef"], True),
        ([b"bearer  0123456789abcdef"], True),
        ([], False),
        ([b"Bearer"], False),
        ([b"Bearer 0123456789abcde"], False),
        ([b"Bearer 0123456789abcdef0"], False),
        ([b"Basic 0123456789abcdef"], False),
        ([b"0123456789abcdef"], False),
        ([b"Bearer \xff\xfe"], False),
        ([b"Bearer 0123456789abcdef"] * 2, False),
    ],
)
def test_a_token_is_compared_whole(headers: list[bytes], trusted: bool) -> None:
    scope = {"path": "/score", "headers": [(b"authorization", value) for value in headers]}
    access = Access(token=TOKEN, open_paths={"/"})
    assert access.trusts(scope) is trusted
    assert (access.refusal(scope) is None) is trusted
    assert access.refusal({**scope, "path": "/"}) is None
    assert Access().trusts(scope)


@pytest.mark.parametrize("token", ["short", "", "with a blank in it", "x" * 513, "mötley-mötley-mötley"])
def test_a_token_can_be_sent_and_not_guessed(token: str) -> None:
    with pytest.raises(UserError, match=f"^The token has {len(token)} characters: give 16 to 512 letters"):
        Access(token=token)


def test_a_token_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n", encoding="ascii")
    assert read_token(None, path) == read_token("", path) == read_token(TOKEN, None) == TOKEN
    assert read_token(None, None) is None
    with pytest.raises(UserError, match="There are two tokens: give either token_file or token "):
        read_token(TOKEN, path)
    with pytest.raises(UserError, match="cannot be read"):
        read_token(None, tmp_path)
