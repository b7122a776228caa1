"""`bnce demo`: the paper's comparison in small, on text that every machine has."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bnce.cli.compare import publish
from bnce.cli.console import JsonOption, open_corpus, stderr, stdout
from bnce.cli.display import shown_training
from bnce.cli.options import DeviceOption, SettingsOption, option, row_config, warn_of_unused
from bnce.errors import UserError

if TYPE_CHECKING:
    from bnce.config import RunConfig
    from bnce.training.experiment import PlannedRow

RECIPE, MODEL, LOSSES = "demo", "relu-lstm", ("softmax", "snce", "bnce")
TITLE = "A small version of the paper's comparison"
PROMPT, NUM_SENTENCES, TEMPERATURE = "this function", 5, 0.7


def demo(
    out: Annotated[Path, option("DIR", "Directory for the three runs and the report.", "--out", "-o")] = Path("demo"),
    settings: SettingsOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train three small models and compare them in a table.

    The text is the docstrings of the installed Python packages. A ReLu-LSTM is trained on 400,000 tokens with each of
    three losses: softmax, shared NCE (S-NCE) and batch NCE (B-NCE). This takes about 3 minutes on two CPU cores. The
    same command continues a demo that was stopped, and prints the table of a finished demo again.

    \b
    Examples:
      bnce demo
      bnce demo --out /tmp/demo --device cpu
    """
    from bnce.machine.devices import choose_device
    from bnce.report.comparison import compare_runs
    from bnce.scoring.loading import load
    from bnce.scoring.sampling import Sampling
    from bnce.training.experiment import PlannedRow, train_rows

    rows = [PlannedRow(MODEL, loss, place=loss) for loss in LOSSES]

    def make_config(row: PlannedRow) -> RunConfig:
        return row_config(RECIPE, row, None, settings)

    opened = open_corpus(make_config(rows[0]).corpus)
    warn_of_unused(settings, [MODEL])
    failed: dict[str, str] = {}
    train_rows(
        rows,
        out,
        make_config,
        opened,
        choose_device(device),
        functools.partial(shown_training, opened),
        failed.__setitem__,
        command="bnce demo",
    )
    if failed:
        raise UserError(" ".join(f"{name} failed: {why}" for name, why in failed.items()))
    publish(compare_runs([out / row.name for row in rows], TITLE), out / "report", as_json)
    if not as_json:
        stdout.print("\nSentences that the B-NCE model makes up:")
        for sentence in load(out / "bnce", device).generate(PROMPT, NUM_SENTENCES, sampling=Sampling(TEMPERATURE)):
            stdout.print(sentence)
    stderr.print(f"\nThe report with plots: {out / 'report' / 'report.html'}")
