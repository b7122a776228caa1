"""`bnce demo`: the paper's comparison in small, on text that every machine has."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnce.cli.compare import publish
from bnce.cli.console import JsonOption, ThreadsOption, open_corpus, stderr, stdout
from bnce.cli.display import Display
from bnce.cli.options import DeviceOption, SettingsOption, warn_of_unused
from bnce.errors import UserError

if TYPE_CHECKING:
    from bnce.config import RunConfig
    from bnce.training.experiment import PlannedRow
    from bnce.training.observer import Observer

RECIPE, MODEL, LOSSES = "demo", "relu-lstm", ("softmax", "snce", "bnce")
TITLE = "The paper's comparison in small"
PROMPT, NUM_SENTENCES, TEMPERATURE = "this function", 5, 0.7


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Directory for the three runs and the report.")
    ] = Path("demo"),
    settings: SettingsOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Train three small models and compare them in a table.

    A ReLu-LSTM learns from the docstrings of the installed Python packages, with the softmax, with shared NCE (S-NCE)
    and with B-NCE: 400,000 tokens each, about 3 minutes on two CPU cores. The same command continues a demo that was
    stopped, and shows a finished one again.

    \b
    Examples:
      bnce demo
      bnce demo --out /tmp/demo --device cpu
    """
    from bnce.corpus.opening import corpus_setting
    from bnce.machine.devices import choose_device
    from bnce.recipes.recipe import load_recipe
    from bnce.report.comparison import compare_runs
    from bnce.training.experiment import PlannedRow, train_rows

    rows = [PlannedRow(MODEL, loss, place=loss) for loss in LOSSES]

    def make_config(row: PlannedRow) -> RunConfig:
        config = load_recipe(RECIPE, model=row.model, loss=row.loss, settings=settings or [])
        return dataclasses.replace(config, corpus=corpus_setting(config.corpus))

    opened = open_corpus(make_config(rows[0]).corpus)
    warn_of_unused(settings, [MODEL])

    @contextlib.contextmanager
    def watch(config: RunConfig) -> Iterator[Observer]:
        display = Display(config, len(opened.split("train")), opened.vocabulary.unit)
        with display.bar:
            yield display

    failed: dict[str, str] = {}
    train_rows(
        rows,
        out,
        make_config,
        opened,
        choose_device(device),
        watch,
        failed.__setitem__,
        command="bnce demo",
        num_threads=threads,
    )
    if failed:
        raise UserError(" ".join(f"{name} failed: {why}" for name, why in failed.items()))
    publish(compare_runs([out / row.name for row in rows], TITLE), out / "report", None, as_json)
    if not as_json:
        stdout.print("\nSentences that the B-NCE model makes up:")
        for sentence in _make_up(out / "bnce", device):
            stdout.print(sentence)
    stderr.print(f"\nThe report with plots: {out / 'report' / 'report.html'}")


def _make_up(run: Path, device: str) -> list[str]:
    from bnce.scoring.loading import load
    from bnce.scoring.sampling import Sampling

    return load(run, device).generate(PROMPT, NUM_SENTENCES, sampling=Sampling(TEMPERATURE))
