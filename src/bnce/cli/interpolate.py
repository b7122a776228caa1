"""`bnce interpolate`: several models and a text in, the weights of their mixture out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce import files
from bnce.cli.console import JsonOption, open_model, print_json, stderr, stdout
from bnce.cli.options import MAY_EXCEED, DeviceOption, ModeOption, SplitLinesOption, is_normalised, option
from bnce.errors import UserError, counted

if TYPE_CHECKING:
    from rich.table import Table

    from bnce.scoring.model import Model


def interpolate(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL", help="Two or more runs, exported runs (ONNX), ARPA files or KenLM binaries."),
    ],
    valid: Annotated[str, option("FILE", "Text to find the weights on; - for standard input.")],
    test: Annotated[str | None, option("FILE", "Also print perplexities on this text.")] = None,
    out: Annotated[
        Path | None, option("FILE.toml", "Write the mixture to FILE.toml. Other commands take it as RUN.")
    ] = None,
    split: SplitLinesOption = False,
    mode: ModeOption = "unnormalised",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Mix language models, with weights that fit a text best.

    Probabilities are mixed word by word; the EM algorithm finds the weights. Every sentence starts without context. A
    word that a model does not know gets the probability of its <unk>.

    \b
    Examples:
      bnce interpolate runs/relu-lstm trigram.arpa --valid valid.txt \\
          --test test.txt --out mixture.toml
      bnce interpolate runs/lstm runs/rnn --valid valid.txt.xz --split \\
          --mode normalised --json
    """
    from bnce.scoring.interpolation import TextScores, find_weights
    from bnce.scoring.loading import model_files, write_mixture
    from bnce.scoring.mixture import MixtureModel

    normalised = is_normalised(mode, "mixing")
    if len(paths) < 2:
        raise UserError(f"Only {len(paths)} model was given: give two or more.")
    for path in paths:
        if path.suffix == ".toml":
            raise UserError(f"'{path}' is a mixture itself: give its components instead.")
    if out is not None:
        if out.suffix != ".toml":
            raise UserError(f"The output file is '{out}': give a name that ends in .toml.")
        files.check_place(out)
        given = (path for path in (valid, test) if path is not None)
        files.refuse_overwriting([out], [*itertools.chain.from_iterable(map(model_files, paths)), *given])
    models = [open_model(path, device) for path in paths]
    # Models that do not go together are refused before any text is scored.
    mixture = MixtureModel(models, [1 / len(models)] * len(models))
    if not normalised:
        mixture.refuse_unnormalised()
    texts = {"valid": valid} if test is None else {"valid": valid, "test": test}
    read = {name: _read(mixture, text, split) for name, text in texts.items()}
    scored = {name: TextScores.of(models, sentences, normalised=normalised) for name, (sentences, _, _) in read.items()}
    weights = find_weights(scored["valid"].comparable)
    reports = {
        name: {**one.report(weights), "num_lines": read[name][1], "num_lines_without_words": read[name][2]}
        for name, one in scored.items()
    }
    if out is not None:
        write_mixture(out, paths, weights.tolist())
    for name, report in reports.items():
        if report["vocabularies_differ"]:
            stderr.print(
                f"Warning: the models know different words of {name}, so perplexities with OOV words cannot be "
                "compared. "
                f"The weights are found on words that all models know ({report['num_known']:,} of "
                f"{report['num_tokens']:,})."
            )
        if num_left_out := report["num_lines_without_words"]:
            have, were = ("has", "was") if num_left_out == 1 else ("have", "were")
            lines = counted(report["num_lines"], "line")
            stderr.print(f"{num_left_out:,} of {lines} of {name} {have} no words and {were} left out.")
    if as_json:
        record = {"models": [str(path) for path in paths], "mode": mode, "weights": weights.tolist(), **reports}
        print_json({**record, "out": None if out is None else str(out)})
        return
    stdout.print(_table(paths, weights.tolist(), reports))
    stdout.print("perplexity per word and </s>; 'known' leaves out words that at least one model does not know")
    how = "with the softmax" if mode == "normalised" else f"with the constant Z ({MAY_EXCEED})"
    what = "sentence" if split else "line, which is one sentence,"
    stdout.print(f"every {what} starts without context; runs {how}")


def _read(model: Model, path: str, split: bool) -> tuple[list[list[str]], int, int]:
    """Read the sentences of a text as the models do, and count its lines and those of them without words."""
    from bnce.text.sources import read_lines

    sentences: list[list[str]] = []
    num_lines = num_left_out = 0
    for line in read_lines(path):
        found = model.normaliser(line) if split else [model.words(line)]
        found = [words for words in found if words]
        sentences += found
        num_lines += 1
        num_left_out += not found
    return sentences, num_lines, num_left_out


def _table(paths: list[Path], weights: list[float], reports: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table("model", "weight")
    for name in reports:
        table.add_column(f"{name} ppl", justify="right")
        table.add_column("known", justify="right")
    for place, (path, weight) in enumerate(zip(paths, weights, strict=True)):
        table.add_row(str(path), f"{weight:.4f}", *_cells(report["components"][place] for report in reports.values()))
    table.add_row("mixture", "", *_cells(report["mixture"] for report in reports.values()))
    return table


def _cells(figures: Any) -> list[str]:
    return [
        "undefined" if value is None else f"{value:.2f}"
        for figure in figures
        for value in (figure["ppl"], figure["ppl_known"])
    ]
