"""`bnce surprisal`: a model and a table of words in, the same table with the surprisal of every word out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bnce import files
from bnce.cli.console import JsonOption, open_model, print_json, stderr
from bnce.cli.options import MAY_EXCEED, DeviceOption, ModelArgument, ModeOption, flag, goes_to_stdout, option
from bnce.errors import UserError, counted

if TYPE_CHECKING:
    from bnce.data.surprisal import Options
    from bnce.engine.network import Mode
    from bnce.scoring.model import Model


def surprisal(
    run: ModelArgument,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="Table with one word per row (TSV, CSV, Parquet or Arrow), or plain text."
        ),
    ],
    out: Annotated[
        Path,
        option(
            "FILE",
            "Output table, in the format of TABLE; TSV if TABLE is plain text. - for standard output.",
        ),
    ],
    word: Annotated[str, option("COLUMN", "Column with the words, with their punctuation marks.")] = "word",
    text: Annotated[
        list[str] | None,
        option(
            "COLUMN",
            "Column with the name or number of the text. A word is predicted from all words before it in its text. May "
            "be given several times.",
            show_default="one text",
        ),
    ] = None,
    sentence: Annotated[
        str | None,
        option(
            "COLUMN",
            "Column with the number of the sentence in its text.",
            show_default="found as in the training text",
        ),
    ] = None,
    glued: Annotated[
        str | None,
        option(
            "COLUMN",
            "Column that is true if there is no blank before the word, as in do + n't.",
            show_default="blanks between all words",
        ),
    ] = None,
    mode: ModeOption = None,
    spell: Annotated[
        bool,
        flag(
            "--spell",
            "Give unknown words the surprisal of <unk> plus that of their spelling. Without this option, their cells "
            "are empty.",
        ),
    ] = False,
    entropy: Annotated[
        bool,
        flag(
            "--entropy",
            "Add a column with the entropy of the prediction of each word, over all words of the vocabulary. For runs.",
        ),
    ] = False,
    prefix: Annotated[
        str, option("TEXT", "Text to put before the names of all new columns.", show_default="none")
    ] = "",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Add the surprisal of every word to a table.

    Rows keep their order, and all other columns stay as they are. Text is cut into words as in training: "England," is
    a word and a comma, and its surprisal is the sum of both.

    \b
    Examples:
      bnce surprisal runs/relu-lstm words.tsv --text story --out surprisal.tsv
      bnce surprisal runs/relu-lstm eyes.csv --word token --out eyes2.csv
      bnce surprisal runs/relu-lstm novel.txt --out words.tsv
      bnce surprisal mixture.toml words.tsv --sentence item --out surprisal.tsv
    """
    from bnce.data.surprisal import Options, add_surprisal
    from bnce.data.tables import COLUMNAR, find_format
    from bnce.scoring.loading import model_files

    if goes_to_stdout(out, as_json):
        if (form := find_format(table)) in COLUMNAR:
            raise UserError(f"'{table}' is a {form} table, which cannot be printed: give --out FILE.{form}.")
        out = Path("/dev/stdout")
    files.refuse_overwriting([out], [table, *model_files(run)])
    options = Options(word, tuple(text or ()), sentence, glued, cast("Mode | None", mode), spell, entropy, prefix)
    model = open_model(run, device)
    found = add_surprisal(model, table, out, options, lambda told: stderr.print(f"Warning: {told}"))
    if as_json:
        about = {"run": str(run), "table": table, "out": str(out), **dataclasses.asdict(options)}
        print_json({**about, "max_context": model.max_context, **found})
        return
    for line in _report(model, options, found):
        stderr.print(line)


def _report(model: Model, options: Options, totals: dict[str, Any]) -> list[str]:
    """Say what was measured and how, so that numbers can be compared."""
    num_summed = totals["num_rows"] - totals["num_empty"]
    summed = f"{counted(num_summed, 'row')} that {'has' if num_summed == 1 else 'have'} one"
    lines = [
        f"Rows: {totals['num_rows']:,}; texts: {totals['num_texts']:,}; sentences: {totals['num_sentences']:,}; "
        f"rows with unknown words: {totals['num_unknown']:,}; rows without a surprisal: {totals['num_empty']:,}.",
        f"Sum of the surprisals of the {summed}: {totals['surprisal']:.7g} bits; of all sentence ends (</s>): "
        f"{totals['end']:.7g} bits.",
    ]
    if model.kind == "n-gram":
        how = "of an n-gram model, which ignores earlier sentences"
    else:
        how = "with the softmax" if totals["mode"] == "normalised" else f"with the constant Z ({MAY_EXCEED})"
        how += "; context: the words before it in the same text"
    lines.append(f"Probabilities are {how}.")
    if totals["format"] != "text" and options.sentence is None and model.normaliser.sentences == "lines":
        lines.append(
            "This model ends sentences only at line ends, and a table has none: every text was one sentence. Name a "
            "column with --sentence to change that."
        )
    return lines
