"""`bnce serve`: a model behind HTTP, with a page to look at it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bnce.cli.console import JsonOption, open_model, print_json, stderr
from bnce.cli.options import DeviceOption, ModelArgument, option
from bnce.errors import UserError

if TYPE_CHECKING:
    from fastapi import FastAPI

UNPROTECTED = "Everyone who can reach it can use the model: give --token-file, and put a proxy with TLS in front."
UNENCRYPTED = "The token and all texts are sent unencrypted: put a proxy with TLS in front."
MAX_CONNECTIONS = 900


def serve(
    run: ModelArgument,
    host: Annotated[
        str, option("ADDRESS", "Address to listen on. 127.0.0.1 can be reached only from this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, option("N", "Port to listen on; 0 for any free port.", min=0, max=65535)] = 8000,
    allowed_host: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Accept requests for this host name, such as lm.example.org or *.example.org; * for any name. May be "
            "given several times.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        option(
            "FILE",
            "Answer only requests with the token in this file. It can also stand in BNCE_TOKEN in the environment.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Serve a model over HTTP, until Ctrl-C.

    Endpoints: /score, /rescore, /next, /health, /metrics, and a page at /. The URL is printed when the server is ready.

    \b
    Examples:
      bnce serve runs/relu-lstm
      bnce serve runs/relu-lstm --port 0 --json
      curl -s -H 'Content-Type: application/json' \\
          -d '{"sentences": ["a sentence"]}' http://127.0.0.1:8000/score
    """
    token = _read_token(token_file)
    names = [host, *(allowed_host or ())]
    for name in names[1:]:
        if "/" in name or ":" in name:
            raise UserError(
                f"--allowed-host is '{name}': give a name without scheme or port, such as lm.example.org, "
                "*.example.org for all its subdomains, or * for any name."
            )

    from bnce.serve.app import make_app

    # Before the model is read, which takes its time: a port that is taken should be told at once.
    listener = _listen(host, port)
    with listener:
        address, port = listener.getsockname()[:2]
        if not address.startswith("127.") and address != "::1":
            stderr.print(f"Warning: {host} can be reached from other machines. {UNENCRYPTED if token else UNPROTECTED}")
            names.append(socket.gethostname())
        model = open_model(run, device)
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

        def announce() -> None:
            if as_json:
                print_json({"url": url, "run": str(run), "vocab_size": model.vocab_size, "device": model.device})
                sys.stdout.flush()  # whoever reads it through a pipe waits for it now
            stderr.print(f"Serving {run} at {url} on {model.device} (Ctrl-C to stop)")

        _run(make_app(model, run.resolve().name, names, token, announce), listener)


def _read_token(path: Path | None) -> str | None:
    """Read the token; an empty one is of a script whose secret is missing, which does not ask for an open server."""
    token = os.environ.get("BNCE_TOKEN")
    if path is not None:
        try:
            token = path.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            raise UserError(f"The token file '{path}' cannot be read ({error.strerror}): give another file.") from error
    if token is not None and not (16 <= len(token) <= 512 and all("!" <= character <= "~" for character in token)):
        raise UserError(
            f"The token has {len(token)} characters: give 16 to 512 letters, digits and marks without blanks; "
            "'openssl rand -hex 32' creates one. Without --token-file and BNCE_TOKEN, no token is asked for."
        )
    return token


def _listen(host: str, port: int) -> socket.socket:
    """Take a port, 0 for any free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        # Only with the protocol named does asyncio send at once; else a body waits 40 ms until its header is confirmed.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # who reads the URL may ask at once
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"Cannot listen on {host}:{port} ({reason}): give another --host or --port.") from error
    return listener


def _run(app: FastAPI, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; then refuse what is new, finish what runs, and return."""
    import uvicorn

    from bnce.serve.guard import REQUEST_SECONDS

    config = uvicorn.Config(
        app,
        ws="none",
        loop="asyncio",
        log_level="error",  # its warnings are about what clients send: as many lines as they like
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(REQUEST_SECONDS) + 1,
    )
    # uvicorn raises the signal again when all is done, which would end the process with a status of failure.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        uvicorn.Server(config).run([listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
