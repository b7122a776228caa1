"""Who may ask: by which names the server is called, and the token, where it has one.

A page of another site can give its own name the address of this machine (DNS rebinding) and then read whatever the
server says to it. The name stands in the header Host, so names that are not the server's own are refused. An address
there is no such name.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from bnce.errors import UserError, argument
from bnce.serve.limits import RefusedError

_NAME = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_TOKEN = re.compile(r"[!-~]{16,512}")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host name or address."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


class AllowedHosts:
    """The names and addresses that a request may have in its header Host; the port there does not matter.

    Always: localhost and loopback addresses. Besides what the server listens on, as it was named and its address; where
    that is every address of the machine, every address and the machine's own name. And what `more` names:
    lm.example.org, *.example.org, or * for any.
    """

    def __init__(self, listening: Collection[str] = (), more: Iterable[str] = ()) -> None:
        self._addresses = {_address(host) for host in listening}
        self._any_address = any(address is not None and address.is_unspecified for address in self._addresses)
        self._names = {"localhost", *(host.lower() for host in listening)}
        if self._any_address:
            self._names |= {socket.gethostname().lower(), socket.gethostname().lower().partition(".")[0]}
        self._endings = [".localhost"]
        self._any_name = False
        for name in (name.lower() for name in more):
            address = _address(name.strip("[]"))
            if name == "*":
                self._any_name = True
            elif address is not None:
                self._addresses.add(address)
            elif not _NAME.fullmatch(name):
                raise UserError(
                    f"{argument('allowed_host')} is '{name}': give a name without scheme or port, such as "
                    "lm.example.org, *.example.org for all its subdomains, or * for any name."
                )
            elif name.startswith("*."):
                self._endings.append(name[1:])
            else:
                self._names.add(name)

    def allows(self, header: str) -> bool:
        """Tell whether the value of a header Host is one of ours."""
        name = re.sub(r":\d*$", "", header.strip()).lower().rstrip(".")
        address = _address(name.removeprefix("[").removesuffix("]"))
        if address is not None:
            return self._any_name or self._any_address or address.is_loopback or address in self._addresses
        return self._any_name or name in self._names or name.endswith(tuple(self._endings))


class Access:
    """Decides over requests before their bodies are looked at; paths that are open need no token."""

    def __init__(
        self, hosts: AllowedHosts | None = None, token: str | None = None, open_paths: Collection[str] = ()
    ) -> None:
        if token is not None and not _TOKEN.fullmatch(token):
            raise UserError(
                f"The token has {len(token)} characters: give 16 to 512 letters, digits and marks without blanks; "
                "'openssl rand -hex 32' creates one."
            )
        self._hosts = hosts or AllowedHosts()
        self._token = None if token is None else token.encode()
        self._open_paths = open_paths

    def refusal(self, scope: Mapping[str, Any]) -> RefusedError | None:
        """Give what to answer to whoever may not ask; None to those who may."""
        for value in _headers(scope, b"host"):
            host = value.decode("latin-1")
            if not self._hosts.allows(host):
                return RefusedError(
                    421,
                    f"'{host[:100]}' is not an allowed host name of this server: start it with "
                    f"{argument('allowed_host')} to allow this name.",
                )
        if scope["path"] in self._open_paths or self.trusts(scope):
            return None
        return RefusedError(401, "This server needs a token: send the header 'Authorization: Bearer TOKEN'.")

    def trusts(self, scope: Mapping[str, Any]) -> bool:
        """Tell whether a request has the token, or needs none; how long that takes tells nothing about the token."""
        if self._token is None:
            return True
        values = _headers(scope, b"authorization")
        scheme, _, given = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        return hmac.compare_digest(given.strip(), self._token) and scheme.lower() == b"bearer"


def read_token(token: str | None, path: Path | None) -> str | None:
    """Take the token from the option, or from a file."""
    if path is None:
        if token == "":
            # Of a script whose secret is missing: an open server is not what it asks for.
            raise UserError(
                "The token is empty: give a token of 16 characters or more, or leave out "
                f"{argument('token')} and unset BNCE_TOKEN in the environment."
            )
        return token
    if token:
        raise UserError(
            f"There are two tokens: give either {argument('token_file')} or {argument('token')} (BNCE_TOKEN in "
            "the environment)."
        )
    try:
        with path.open("rb") as file:
            return file.read(4096).decode("latin-1").strip()
    except OSError as error:
        raise UserError(f"The token file '{path}' cannot be read ({error.strerror}): give another file.") from error


def _headers(scope: Mapping[str, Any], name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]
