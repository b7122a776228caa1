"""`bnce experiment alternatives`: every loss with the same search, the final runs, the tables and the plots."""

from __future__ import annotations

import dataclasses
import functools
import math
import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bnce import files
from bnce.cli.console import open_corpus, print_json, stderr, stdout
from bnce.cli.copies import print_failure, train_in_copies, typed_arguments
from bnce.cli.display import shown_training
from bnce.cli.options import row_config, split_names, split_numbers, warn_of_unused
from bnce.errors import UserError
from bnce.kinds.alternatives import ALTERNATIVES
from bnce.kinds.bodies import BODIES
from bnce.machine.stopping import Stopped

if TYPE_CHECKING:
    from bnce.config import RunConfig
    from bnce.training.experiment import PlannedRow

NAME = "alternatives"
MODELS = ("relu-lstm", "transformer")
RECIPES = {"transformer": "transformer"}  # of models whose recipe is not this one:
RECIPE = "wiki"
TRIAL_TOKENS = 0  # all: trials on part of a text choose rates that are too high for the whole
SEEDS = (2, 3)  # not that of the trials


def compare_alternatives(
    corpus: str,
    out: Path,
    *,
    recipe: str | None,
    models: str,
    losses: str,
    settings: Sequence[str] | None,
    budget: float | None,
    keep_models: bool,
    device: str,
    num_threads: int,
    as_json: bool,
    trial_tokens: int | None,
    seeds: str | None,
    num_processes: int = 1,
    tasks: Iterable[int] | None = None,
) -> bool:
    """Train and report; say whether every run is done.

    With several processes, copies of this command search first and train the seeds after the first, each with the
    `tasks` it takes: places in the list of losses and models. The runs of the first seed follow one by one, so that
    their speeds can be compared.
    """
    from bnce.machine.devices import choose_device
    from bnce.report.alternatives import read_alternatives, write_alternatives
    from bnce.scoring.speed import measure_scoring
    from bnce.training.alternatives import Comparing, begun_runs
    from bnce.training.experiment import check_texts, refuse_other_directories

    wanted_models = split_names(models, "model", BODIES.names, MODELS)
    by_name = {alternative.name: alternative for alternative in ALTERNATIVES}
    wanted = split_names(losses, "alternative", list(by_name))
    if tasks is None:
        warn_of_unused(settings, wanted_models)
    opened, chosen = open_corpus(corpus), choose_device(device)
    refuse_other_directories(out)
    check_texts(begun_runs(out), opened)
    failed: dict[str, str] = {}

    def make_config(row: PlannedRow) -> RunConfig:
        return row_config(recipe or RECIPES.get(row.model, RECIPE), row, corpus, settings)

    comparing = Comparing(
        out=out,
        corpus=opened,
        device=chosen,
        make_config=make_config,
        watch=functools.partial(shown_training, opened),
        note_failure=failed.__setitem__ if tasks is None else print_failure,
        measure=lambda path: measure_scoring(path, opened, chosen),
        trial_tokens=trial_tokens or TRIAL_TOKENS,
        seeds=SEEDS if seeds is None else _seeds(seeds),
        command=shlex.join(["bnce", *typed_arguments()]),
        keep_models=keep_models,
        num_threads=num_threads,
        deadline=math.inf if budget is None else time.monotonic() + 60.0 * budget,
    )
    files.make_directory(out)
    pairs = [(model, by_name[name]) for name in wanted for model in wanted_models]
    try:
        if tasks is not None:
            for task in tasks:
                comparing.prepare(*pairs[task])
            return True
        if min(num_processes, len(pairs)) > 1:
            failed |= train_in_copies(list(range(len(pairs))), min(num_processes, len(pairs)), chosen)[0]
        complete = comparing.compare(pairs)
    except Stopped as stop:
        stderr.print("Stopped. The same command continues.")
        raise typer.Exit(stop.status) from None
    written = write_alternatives(out)
    if as_json:
        print_json({"rows": [dataclasses.asdict(line) for line in read_alternatives(out)], "failed": failed})
    else:
        stdout.print(written[0].read_text(encoding="utf-8"))
    stderr.print(f"Wrote {', '.join(path.name for path in written)} to {out}.")
    for name, why in failed.items():
        stderr.print(f"{name} failed: {why}")
    if not complete:
        stderr.print("Some runs are not finished; the same command continues them.")
    return complete and not failed


def _seeds(text: str) -> list[int]:
    seeds = split_numbers(text, "--seeds", "1,2")
    if min(seeds) < 0:
        raise UserError(f"--seeds has {min(seeds)}: give numbers from 0 on.")
    return seeds
