"""The command line: one file per command, each a thin shell around the function that does the work."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from bnce.cli.calibrate import calibrate
from bnce.cli.compare import compare
from bnce.cli.console import stdout
from bnce.cli.evaluate import evaluate
from bnce.cli.experiment import experiment
from bnce.cli.export import export
from bnce.cli.failures import fail
from bnce.cli.fetch import fetch
from bnce.cli.filter import filter
from bnce.cli.generate import generate
from bnce.cli.help import HelpCommand
from bnce.cli.info import info
from bnce.cli.interpolate import interpolate
from bnce.cli.ngram import ngram
from bnce.cli.prepare import prepare
from bnce.cli.rescore import rescore
from bnce.cli.run_app import checked, run_app
from bnce.cli.score import score
from bnce.cli.serve import serve
from bnce.cli.streams import drop_stdout, open_streams
from bnce.cli.surprisal import surprisal
from bnce.cli.train import train
from bnce.cli.vocab import vocab
from bnce.errors import naming_options
from bnce.machine.signals import Stopped, raise_on_signals
from bnce.machine.threads import started_many
from bnce.version import __version__

app = typer.Typer(
    name="bnce",
    help="Train and use word language models with very large vocabularies.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        stdout.print(f"bnce {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


for _command in (
    fetch,
    prepare,
    train,
    evaluate,
    calibrate,
    compare,
    experiment,
    info,
    score,
    surprisal,
    filter,
    rescore,
    ngram,
    interpolate,
    generate,
    vocab,
    export,
    serve,
):
    app.command(cls=HelpCommand)(checked(_command))


def main() -> None:
    """Run the command line; what goes wrong is one sentence on standard error, with status 2 for bad input."""
    try:
        _run()
    except SystemExit as end:
        if started_many():
            # At once: threads of PyTorch's that still wait for others may abort a slow end.
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise


def _run() -> None:
    open_streams()
    try:
        try:
            with raise_on_signals(), naming_options():
                run_app(app)
        except Stopped:
            drop_stdout()  # whoever would read it may be what hangs
            raise
        finally:
            # Here, where a failure can be told: Python's own flush at the end only complains.
            sys.stdout.flush()
    except Stopped as stop:
        sys.stderr.write(stop.sentence)
        sys.exit(stop.status)
    except Exception as error:
        sys.exit(fail(error))
