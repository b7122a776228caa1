"""`bnce serve`: a run behind HTTP, with a page to look at it."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bnce.cli.completion import complete
from bnce.cli.console import JsonOption, print_json, share_cores, stderr
from bnce.cli.options import DeviceOption, ModelArgument, flag, option
from bnce.errors import counted, unknown_name
from bnce.serve.limits import Limits, span

UNPROTECTED = "Everyone who can reach it can use the model: give --token-file, and put a proxy with TLS in front."
UNENCRYPTED = "The token and all texts are sent unencrypted: put a proxy with TLS in front."
LOG_LEVELS = ("debug", "info", "warning", "error")


def _limit(name: str, text: str) -> Any:
    """Make the option of a limit, whose help says its bounds; `Limits` checks them, with one sentence."""
    return typer.Option(metavar="N", help=f"{text} {span(name).capitalize()}.", rich_help_panel="Limits")


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
    token: Annotated[
        str | None,
        option(
            "TEXT",
            "Answer only requests with this token. Other users of the machine can read the command line; "
            "--token-file is safer.",
            envvar="BNCE_TOKEN",
        ),
    ] = None,
    token_file: Annotated[Path | None, option("FILE", "Read the token from a file.")] = None,
    device: DeviceOption = "auto",
    max_batch: Annotated[int, _limit("max_batch", "Words per pass through the model.")] = Limits.max_batch,
    max_wait_ms: Annotated[
        float, _limit("max_wait_ms", "Milliseconds that a request waits, so that others can be scored with it.")
    ] = Limits.max_wait_ms,
    max_body_bytes: Annotated[int, _limit("max_body_bytes", "Bytes per request.")] = Limits.max_body_bytes,
    max_sentences: Annotated[int, _limit("max_sentences", "Sentences per request.")] = Limits.max_sentences,
    max_hypotheses: Annotated[int, _limit("max_hypotheses", "Hypotheses per request.")] = Limits.max_hypotheses,
    max_words: Annotated[int, _limit("max_words", "Words per request.")] = Limits.max_words,
    max_exact_words: Annotated[
        int, _limit("max_exact_words", "Words per request for normalised probabilities.")
    ] = Limits.max_exact_words,
    max_sentence_words: Annotated[
        int, _limit("max_sentence_words", "Words per sentence, hypothesis or prompt.")
    ] = Limits.max_sentence_words,
    max_waiting: Annotated[int, _limit("max_waiting", "Requests that wait for the model.")] = Limits.max_waiting,
    max_waiting_words: Annotated[
        int, _limit("max_waiting_words", "Words in all waiting requests.")
    ] = Limits.max_waiting_words,
    max_connections: Annotated[int, _limit("max_connections", "Open connections.")] = Limits.max_connections,
    body_seconds: Annotated[
        float, _limit("body_seconds", "Seconds for a client to send its request.")
    ] = Limits.body_seconds,
    request_seconds: Annotated[
        float, _limit("request_seconds", "Seconds to answer a request.")
    ] = Limits.request_seconds,
    log_level: Annotated[
        str,
        option(
            "NAME",
            "Log messages of this level and above: debug, info, warning or error.",
            autocompletion=complete(*LOG_LEVELS),
        ),
    ] = "warning",
    access_log: Annotated[bool, flag("--access-log", "Log every request to standard error.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve a model over HTTP, until Ctrl-C.

    Endpoints: /score, /rescore, /next, /healthz, /metrics, /docs, and a page at /. --json prints the URL when the
    server is ready.

    \b
    Examples:
      bnce serve runs/relu-lstm
      bnce serve runs/relu-lstm --port 0 --json
      curl -s -H 'Content-Type: application/json' \\
          -d '{"sentences": ["a sentence"]}' http://127.0.0.1:8000/score
    """
    if log_level not in LOG_LEVELS:
        raise unknown_name("log level", log_level, LOG_LEVELS)

    limits = Limits(
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        max_body_bytes=max_body_bytes,
        max_sentences=max_sentences,
        max_hypotheses=max_hypotheses,
        max_words=max_words,
        max_exact_words=max_exact_words,
        max_sentence_words=max_sentence_words,
        max_waiting=max_waiting,
        max_waiting_words=max_waiting_words,
        max_connections=max_connections,
        body_seconds=body_seconds,
        request_seconds=request_seconds,
    )

    from bnce.serve.access import Access, AllowedHosts, is_loopback, read_token

    # Typer takes a variable that is empty for one that is not there.
    secret = read_token(os.environ.get("BNCE_TOKEN") if token is None else token, token_file)
    # Checked before the model is read, which takes its time.
    Access(AllowedHosts((), allowed_host or ()), secret)

    # PyTorch keeps compiled code for every shape it computes, 1024 of them, and requests have all shapes.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")

    from bnce.scoring.loading import load, needs_torch
    from bnce.serve.app import make_app
    from bnce.serve.metrics import Metrics
    from bnce.serve.server import listen, run_server

    # Before the model, too: a port that is taken should be told at once.
    listener, url = listen(host, port)
    address = listener.getsockname()[0]
    hosts = AllowedHosts((host, address), allowed_host or ())
    with listener:
        if not is_loopback(address):
            stderr.print(
                f"Warning: {host} can be reached from other machines. {UNPROTECTED if secret is None else UNENCRYPTED}"
            )
        num_threads = share_cores(run)
        logging.basicConfig(level=log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
        metrics = Metrics()
        model = load(run, device)
        app = make_app(model, run.resolve().name, limits, metrics, hosts, secret)

        def announce() -> None:
            if as_json:
                print_json({"url": url, "run": str(run), "vocab_size": model.vocab_size, "threads": num_threads})
                # Whoever reads it through a pipe waits for it now.
                sys.stdout.flush()
            where = f"ONNX Runtime, CPU, {counted(num_threads, 'thread')}"
            if needs_torch(run):
                from bnce.machine.devices import choose_device, describe_device

                where = describe_device(choose_device(device))
            stderr.print(f"Serving {run} at {url} on {where} (Ctrl-C to stop)")

        run_server(app, listener, limits, metrics, announce, log_level=log_level, access_log=access_log)
