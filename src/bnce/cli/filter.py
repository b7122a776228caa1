"""`bnce filter`: a model and shards of documents in, the same shards with the perplexity of every document out."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bnce.cli.completion import complete
from bnce.cli.console import JsonOption, print_json, progress_bar, stderr, stdout
from bnce.cli.options import MAY_EXCEED, DeviceOption, ModelArgument, ModeOption, choice, flag, option
from bnce.errors import UserError, counted, unknown_name

if TYPE_CHECKING:
    from bnce.engine.network import Mode

ERRORS = ("stop", "skip")


def filter(
    run: ModelArgument,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Shards: JSON lines (.jsonl, also .gz, .xz, .bz2 or .zst) and Parquet files, directories or quoted "
            "patterns.",
        ),
    ],
    out: Annotated[
        Path | None, option("DIR", "Output directory. The same command continues after an interruption.", "--out", "-o")
    ] = None,
    field: Annotated[str, option("NAME", "Field or column that holds the text.")] = "text",
    max_perplexity: Annotated[
        str | None,
        option(
            "A[,B]",
            "Keep the documents with a perplexity of at most A. With B, write three parts: head (up to A), middle (up "
            "to B) and tail.",
            show_default="all",
        ),
    ] = None,
    rest: Annotated[bool, flag("--rest", "Also write the documents that are not kept, to DIR/rest.")] = False,
    dry_run: Annotated[
        bool,
        flag(
            "--dry-run",
            "Write nothing. Print percentiles of the perplexities of a sample: 5000 documents, the first ones of up to "
            "100 shards.",
        ),
    ] = False,
    scores_only: Annotated[
        bool, flag("--scores-only", "Write only the scores. Each has the number of its record.")
    ] = False,
    mode: ModeOption = None,
    precision: Annotated[
        str,
        option(
            "NAME",
            "Precision of matrix products on a GPU: float32, tf32 or bf16 (fastest). tf32 and bf16 change perplexities "
            "a little.",
            autocompletion=complete("float32", "tf32", "bf16"),
        ),
    ] = "float32",
    errors: Annotated[
        str,
        choice(
            "stop|skip",
            "What to do with a document that cannot be read: stop with an error, or skip it with a message.",
        ),
    ] = "stop",
    shard: Annotated[
        str, option("I/N", "Filter shards I, I+N, I+2N and so on, for array jobs, several cores and several GPUs.")
    ] = "1/1",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Score documents by perplexity, and keep the best.

    Adds the fields perplexity, num_words and unknown_rate to every record. All other fields stay as they are. A shard
    is written only when it is complete. After an interruption, the same command continues.

    \b
    Examples:
      bnce filter runs/wiki 'web/*.jsonl.zst' --out scored
      bnce filter runs/wiki web/ --dry-run
      bnce filter runs/wiki web/ --max-perplexity 300 --rest --out filtered
      bnce filter runs/wiki web/ --max-perplexity 200,500 --out buckets
      bnce filter runs/wiki web/ --shard 3/8 --out filtered --device cuda
    """
    from bnce.data.document_scorer import DocumentScorer
    from bnce.data.filter import Job, look
    from bnce.data.filter import run as run_job

    limits = _limits(max_perplexity)
    if errors not in ERRORS:
        raise unknown_name("value of --errors", errors, ERRORS)
    if out is None and not dry_run:
        raise UserError("There is no output directory: give --out DIR, or --dry-run to look at a sample.")
    if rest and len(limits) != 1:
        raise UserError("--rest is for documents that are not kept: give --max-perplexity A, too.")
    begin = time.perf_counter()
    with progress_bar() as bar:
        task = bar.add_task("filtering", total=None)

        def show(number: int, total: int) -> None:
            bar.update(task, advance=number, total=total or None)

        scorer = DocumentScorer(run, mode=cast("Mode | None", mode), precision=precision, device=device)
        chosen = (field, limits, rest, scores_only, errors == "skip", _share(shard))
        job = Job(sources, out or Path(), scorer, *chosen, show, bar.tell)
        found = look(job) if dry_run else run_job(job)
    seconds, num_words = time.perf_counter() - begin, found["num_words"] if not dry_run else 0
    if as_json:
        timing = {"seconds": round(seconds, 3), "words_per_second": round(num_words / seconds)}
        print_json({"run": str(run), "out": None if dry_run else str(out), **found, **timing})
        return
    if num_words:
        stderr.print(
            f"{counted(num_words, 'word')}, punctuation marks among them, in {seconds:,.1f} seconds, which include "
            f"loading the model: {num_words / seconds:,.0f} words per second."
        )
    for line in _report(found, "n-gram" if run.is_file() and run.suffix != ".toml" else found["mode"]):
        (stdout if dry_run else stderr).print(line)


def _limits(text: str | None) -> tuple[float, ...]:
    try:
        limits = tuple(map(float, text.split(","))) if text is not None else ()
        if not all(low < high for low, high in itertools.pairwise((0.99, *limits, math.inf))) or len(limits) > 2:
            raise ValueError
    except ValueError:
        raise UserError(
            f"--max-perplexity is '{text}': give a number of 1 or more, such as 300, or two, the smaller one first, "
            "such as 200,500."
        ) from None
    return limits


def _share(text: str) -> tuple[int, int]:
    try:
        first, number = map(int, text.split("/"))
        if not 1 <= first <= number:
            raise ValueError
    except ValueError:
        raise UserError(f"--shard is '{text}': give I/N with I from 1 to N, such as 3/16.") from None
    return first, number


def _report(found: dict[str, Any], how: str | None) -> list[str]:
    """Say what was done and how, so that numbers can be compared."""
    before = f" ({found['num_shards_before']:,} done before)" if found.get("num_shards_before") else ""
    lines = [f"Shards: {found['num_shards']:,}{before}."] if "num_shards" in found else []
    lines += [
        f"Documents: {found['num_documents']:,}; words: {found['num_words']:,}; unknown words: "
        f"{found['unknown_rate'] or 0:.2%}; documents without words: {found['num_empty']:,}; skipped because they "
        f"cannot be read: {found['num_problems']:,}."
    ]
    if len(found["parts"]) > 1:
        parts = (
            f"{name}: {counted(part['num_documents'], 'document')}, {counted(part['num_words'], 'word')}"
            for name, part in found["parts"].items()
        )
        lines.append(f"{'; '.join(parts)}.")
    if found["perplexity"] is not None:
        about = "" if found["percentiles_are_exact"] else "≈ "
        shown = ", ".join(f"{name}%: {about}{value:.5g}" for name, value in found["percentiles"].items())
        lines.append(f"Perplexity of all text: {found['perplexity']:.5g}. Percentiles of documents: {shown}.")
    lines.append("Perplexities are per token: words, marks and sentence ends (</s>).")
    hows = {
        "n-gram": "of an n-gram model, which ignores earlier sentences",
        "normalised": "with the softmax",
        "unnormalised": f"with the constant Z ({MAY_EXCEED})",
    }
    lines[-1] += f" Probabilities are {hows[how]}." if how is not None else ""
    return lines
