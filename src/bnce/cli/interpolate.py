"""`bnce interpolate`: several models and a text in, the weights of their mixture out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce import files
from bnce.cli.console import JsonOption, open_model, print_json, stderr, stdout
from bnce.cli.options import MAY_EXCEED, DeviceOption, ModeOption, option
from bnce.errors import UserError, counted

if TYPE_CHECKING:
    from rich.table import Table

    from bnce.corpus.cutter import Tokens
    from bnce.scoring.model import Model


def interpolate(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL", help="Two or more runs, ARPA files or KenLM binaries."),
    ],
    valid: Annotated[str, option("FILE", "Text to find the weights on, one sentence per line; - for standard input.")],
    out: Annotated[
        Path | None, option("FILE.toml", "Write the mixture to FILE.toml. Other commands take it as RUN.")
    ] = None,
    mode: ModeOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Mix language models, with weights that fit a text best.

    Probabilities are mixed word by word; the EM algorithm finds the weights. Every sentence starts without context. A
    word that a model does not know gets the probability of its <unk>.

    \b
    Examples:
      bnce interpolate runs/relu-lstm trigram.arpa --valid valid.txt \\
          --out mixture.toml
      bnce evaluate mixture.toml --text test.txt
      bnce interpolate runs/lstm runs/rnn --valid valid.txt.xz \\
          --mode normalised --json
    """
    from bnce.scoring.interpolation import TextScores, find_weights
    from bnce.scoring.loading import model_files, write_mixture
    from bnce.scoring.mixture import MixtureModel

    if len(paths) < 2:
        raise UserError(f"Only {len(paths)} model was given: give two or more.")
    for path in paths:
        if path.suffix == ".toml":
            raise UserError(f"'{path}' is a mixture itself: give its components instead.")
    if out is not None:
        if out.suffix != ".toml":
            raise UserError(f"The output file is '{out}': give a name that ends in .toml.")
        files.check_place(out)
        files.refuse_overwriting([out], [*itertools.chain.from_iterable(map(model_files, paths)), valid])
    models = [open_model(path, device) for path in paths]
    # Models that do not go together are refused before any text is scored.
    mixture = MixtureModel(models, [1 / len(models)] * len(models))
    used = mixture.choose_mode(mode)
    tokens, num_lines = _read(mixture, valid)
    num_left_out = num_lines - len(tokens)
    if not len(tokens):
        raise UserError("The text has no sentence: give a text with words.")
    scored = TextScores.of(models, tokens, used)
    weights = find_weights(scored.comparable)
    report = {**scored.report(weights), "num_lines": num_lines, "num_lines_without_words": num_left_out}
    if out is not None:
        write_mixture(out, paths, weights.tolist())
    if report["vocabularies_differ"]:
        stderr.print(
            "Warning: the models know different words of valid, so perplexities with OOV words cannot be compared. "
            f"The weights are found on words that all models know ({report['num_known']:,} of "
            f"{report['num_tokens']:,})."
        )
    if num_left_out:
        have, were = ("has", "was") if num_left_out == 1 else ("have", "were")
        stderr.print(f"{num_left_out:,} of {counted(num_lines, 'line')} of valid {have} no words and {were} left out.")
    if as_json:
        record = {"models": [str(path) for path in paths], "mode": used, "weights": weights.tolist(), "valid": report}
        print_json({**record, "out": None if out is None else str(out)})
        return
    stdout.print(_table(paths, weights.tolist(), report))
    stdout.print("perplexity per word and </s>; 'known' leaves out words that at least one model does not know")
    how = "with the softmax" if used == "normalised" else f"with the constant Z ({MAY_EXCEED})"
    stdout.print(f"every line, which is one sentence, starts without context; runs {how}")


def _read(model: Model, path: str) -> tuple[Tokens, int]:
    """Read the lines of a text that have words, each one sentence, and count all lines."""
    from bnce.corpus.cutter import Tokens
    from bnce.text.records import read_passages

    lines = [model.words(line) for line in itertools.chain.from_iterable(read_passages(path))]
    return Tokens.of(filter(None, lines)), len(lines)


def _table(paths: list[Path], weights: list[float], report: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table("model", "weight")
    table.add_column("valid ppl", justify="right")
    table.add_column("known", justify="right")
    for path, weight, figures in zip(paths, weights, report["components"], strict=True):
        table.add_row(str(path), f"{weight:.4f}", *_cells(figures))
    table.add_row("mixture", "", *_cells(report["mixture"]))
    return table


def _cells(figures: dict[str, float | None]) -> list[str]:
    return ["undefined" if value is None else f"{value:.2f}" for value in (figures["ppl"], figures["ppl_known"])]
