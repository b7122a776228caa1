"""`bnce info`: what a recipe, a run or a corpus is made of; with --check, whether it and the installation are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from bnce.cli.completion import complete, complete_subject
from bnce.cli.console import JsonOption, print_json, stdout
from bnce.cli.corpus_info import corpus_record, print_corpus
from bnce.cli.options import DeviceOption, SettingsOption, flag, option
from bnce.errors import UserError
from bnce.registry import LOSSES, MODELS

if TYPE_CHECKING:
    from bnce.settings import RunConfig

AUDITED_STREAMS = 400  # the paper's batch
# Sizes of the corpora that the recipes are named after, for counting parameters without them.
RECIPE_VOCAB_SIZES = {"ltcb": 80_000, "wiki": 80_000, "obwb": 793_471, "news": 793_471}


def info(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE|RUN|CORPUS",
            help="Recipe, run directory or corpus directory. --check needs none.",
            show_default=False,
            autocompletion=complete_subject,
        ),
    ] = None,
    model: Annotated[
        str | None, option("NAME", f"For a recipe: {', '.join(MODELS)}.", autocompletion=complete(*MODELS))
    ] = None,
    loss: Annotated[
        str | None, option("NAME", f"For a recipe: {', '.join(LOSSES)}.", autocompletion=complete(*LOSSES))
    ] = None,
    vocab_size: Annotated[
        int | None, option("N", "For a recipe: vocabulary size, in words.", min=3, show_default="the paper's")
    ] = None,
    settings: SettingsOption = None,
    batch_size: Annotated[
        int | None,
        option(
            "N",
            "For a corpus: number of parallel streams for the noise audit.",
            min=2,
            show_default=str(AUDITED_STREAMS),
        ),
    ] = None,
    check: Annotated[
        bool,
        flag(
            "--check",
            "Check the installation, and compare the files of the run or corpus with their hashes and checksums. The "
            "exit status is 1 if something is wrong.",
        ),
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Describe a recipe, a run or a corpus.

    For a recipe or a run: architecture, number of parameters, settings, results. For a corpus: sizes, most frequent
    words, sentence lengths, and the noise audit, which checks whether the words of parallel streams can be the noise
    of B-NCE. With --check: versions, device, every loss on this device compared with float64 on the CPU, and the files
    of a run or corpus compared with their hashes, which finds damage on disk or from copying.

    \b
    Examples:
      bnce info ltcb --model lstm
      bnce info obwb --model relu-lstm --json
      bnce info runs/relu-lstm
      bnce info corpora/wiki --batch-size 1600
      bnce info --check
      bnce info runs/relu-lstm --check --json
    """
    from bnce.recipes import load_recipe, recipe_names

    of_recipe: dict[str, object] = {"--model": model, "--loss": loss, "--vocab-size": vocab_size, "--set": settings}
    of_corpus: dict[str, object] = {"--batch-size": batch_size}
    if check:
        _refuse_unused("--check compares losses and files", "a description", of_recipe | of_corpus)
        _check(subject, device, as_json)
        return
    if subject is None:
        raise UserError("Give a recipe, a run or a corpus, or --check to check the installation.")
    _refuse_unused(f"'{subject}' is only described", "--check", {"--device": device != "auto"})
    path = Path(subject)
    if (path / "corpus.json").is_file():
        _refuse_unused(f"'{path}' is a corpus", "a recipe", of_recipe)
        record = corpus_record(path, batch_size or AUDITED_STREAMS)
    elif (path / "config.toml").is_file():
        _refuse_unused(f"'{path}' is a run", "a recipe", of_recipe)
        _refuse_unused(f"'{path}' is a run", "a corpus", of_corpus)
        record = _run(path)
    elif path.is_dir() and subject not in recipe_names():
        raise UserError(
            f"'{path}' is neither a run nor a corpus: it has no config.toml and no corpus.json. Give a directory from "
            "'bnce train' or 'bnce prepare'."
        )
    else:
        _refuse_unused(f"'{subject}' is a recipe", "a corpus", of_corpus)
        config = load_recipe(subject, model=model, loss=loss, settings=settings or [])
        record = _network(config, vocab_size or _vocab_size(config))
    if as_json:
        print_json(record)
    elif "corpus" in record:
        print_corpus(record)
    else:
        _print(record)


def _check(subject: str | None, device: str, as_json: bool) -> None:
    from bnce.machine.devices import choose_device
    from bnce.report.checks import check_directory, check_installation

    of_files = [] if subject is None else check_directory(Path(subject))
    checks = [*check_installation(choose_device(device)), *of_files]
    well = all(check.well for check in checks)
    if as_json:
        print_json({"well": well, "checks": [dataclasses.asdict(check) for check in checks]})
    else:
        for check in checks:
            mark = "[green]ok[/green]   " if check.well else "[red]wrong[/red]"
            stdout.print(f"{mark} {escape(check.name)}: {escape(check.detail)}", markup=True)
    if not well:
        raise typer.Exit(1)


def _refuse_unused(what: str, wanted: str, options: Mapping[str, object]) -> None:
    """Refuse options that are given for something else than what is described."""
    given = [name for name, value in options.items() if value]
    if given:
        verb, them = ("is", "it") if len(given) == 1 else ("are", "them")
        raise UserError(f"{what}, but {' and '.join(given)} {verb} for {wanted}: leave {them} out.")


def _vocab_size(config: RunConfig) -> int:
    from bnce.corpus.opening import DOCSTRING_WORDS
    from bnce.text.sources import DOCSTRINGS

    return DOCSTRING_WORDS if config.corpus == DOCSTRINGS else RECIPE_VOCAB_SIZES.get(config.recipe, 80_000)


def _network(config: RunConfig, vocab_size: int, counts: dict[str, int] | None = None) -> dict[str, Any]:
    from bnce.models import architecture
    from bnce.settings import SECTIONS, to_tables

    if counts is None:
        from bnce.language_model import count_parameters

        counts = count_parameters(config.model, vocab_size, config.loss)
    return {
        "recipe": config.recipe,
        "model": config.model.name,
        "architecture": architecture(config.model),
        "vocab_size": vocab_size,
        "num_parameters": sum(counts.values()),
        "num_parameters_by_part": counts,
        "settings": {section: to_tables(config)[section] for section in SECTIONS},
    }


def _run(path: Path) -> dict[str, Any]:
    from bnce.evaluation.breakdown import without_detail
    from bnce.files import read_object
    from bnce.runs.directory import Run
    from bnce.runs.metrics import read_metrics
    from bnce.runs.model_file import count_parameters, read_calibration

    run = Run.open(path)
    record: dict[str, Any] = {"run": str(path)}
    record |= _network(run.config, len(run.vocabulary), count_parameters(run))
    if (calibration := read_calibration(run)) is not None:
        record["calibration"] = calibration
    for name in ("summary", "evaluation"):
        file = path / f"{name}.json"
        if file.is_file():
            try:
                record[name] = read_object(file)
            except ValueError as error:
                raise UserError(f"'{file}' is damaged ({error}): train the run again, or remove the file.") from error
    if "evaluation" in record:
        record["evaluation"] = without_detail(record["evaluation"])
    record["metrics"] = read_metrics(run.path).records[-1:]
    return record


def _print(record: dict[str, Any], indent: str = "") -> None:
    for key, value in record.items():
        if isinstance(value, dict):
            stdout.print(f"{indent}[bold]{key}[/bold]", markup=True)
            _print(value, indent + "  ")
        elif isinstance(value, list):
            for item in value:
                _print({key: item}, indent)
        elif isinstance(value, int) and not isinstance(value, bool):
            stdout.print(f"{indent}{key}: {value:,}")
        elif isinstance(value, float):
            stdout.print(f"{indent}{key}: {value:g}")
        else:
            stdout.print(f"{indent}{key}: {value}")
