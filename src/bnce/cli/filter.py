"""`bnce filter`: a model and shards of documents in, the same shards with the perplexity of every document out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.completion import complete
from bnce.cli.console import JsonOption, print_json, progress_bar, stderr, stdout
from bnce.cli.options import MAY_EXCEED, MODE_HELP, MODES, DeviceOption, TrainedModelArgument, choice, flag, option
from bnce.errors import UserError, unknown_name

if TYPE_CHECKING:
    from bnce.filtering.choice import Choice, Distribution
    from bnce.filtering.filter import Job, Progress

AUTO = "auto"


def filter(
    run: TrainedModelArgument,
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
        float | None, option("X", "Keep the documents with a perplexity of at most X.", show_default="all")
    ] = None,
    keep: Annotated[
        str | None,
        option(
            "P%",
            "Keep the P percent with the lowest perplexity. The limit is fitted on a sample and saved. Every document "
            "up to the limit is kept, also if several have exactly this perplexity.",
            show_default="all",
        ),
    ] = None,
    buckets: Annotated[
        str | None,
        option(
            "P,Q",
            "Write head, middle and tail as CCNet does: up to percentile P, up to Q, and above, such as 30,60. "
            "Limits are fitted on a sample and saved.",
            show_default="none",
        ),
    ] = None,
    thresholds: Annotated[
        Path | None, option("FILE", "Use the limits in this thresholds.json, which an earlier command saved.")
    ] = None,
    rest: Annotated[bool, flag("--rest", "Also write the documents that are not kept, to DIR/rest.")] = False,
    sample: Annotated[
        int | None,
        option(
            "N", "Number of documents in the sample. They are the first ones of up to 100 shards.", show_default="5000"
        ),
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Write nothing. Print how the perplexities of the sample are distributed.")
    ] = False,
    scores_only: Annotated[
        bool, flag("--scores-only", "Write only the scores. Each has the number of its record, or the field --id.")
    ] = False,
    id_field: Annotated[
        str | None,
        option("NAME", "With --scores-only: field that names a document.", "--id", show_default="its number"),
    ] = None,
    names: Annotated[
        str, option("A,B,C", "Names of the three fields that are added.")
    ] = "perplexity,num_words,unknown_rate",
    to: Annotated[str | None, choice("jsonl|parquet", "Output format.", show_default="that of the shard")] = None,
    mode: Annotated[
        str,
        option(
            "MODE",
            f"{MODE_HELP} auto: unnormalised if the run has a constant Z.",
            "--mode",
            autocompletion=complete(AUTO, *MODES),
        ),
    ] = AUTO,
    spell: Annotated[
        bool,
        flag("--spell", "Give each unknown word its own probability: p(<unk>) times the probability of its spelling."),
    ] = False,
    precision: Annotated[
        str,
        option(
            "NAME",
            "Precision of matrix products on a GPU: float32, tf32 or bf16 (fastest). The effect of tf32 and bf16 on "
            "perplexities is measured and printed.",
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
        str, option("I/N", "Filter shards I, I+N, I+2N and so on, for array jobs and several GPUs.")
    ] = "1/1",
    workers: Annotated[
        int | None,
        option(
            "N",
            "Number of processes that read text and cut it into words.",
            show_default="on a CPU, one thread of the command; on a GPU, one process per core",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            "ADDRESS",
            "Run on the workers of this Dask scheduler: its address, such as tcp://host:8786, or its scheduler "
            "file. All machines must share the shards, the model and the output directory.",
        ),
    ] = None,
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
      bnce filter runs/wiki web/ --keep 30% --rest --out filtered
      bnce filter runs/wiki web/ --buckets 30,60 --out buckets --errors skip
      bnce filter runs/wiki web/ --thresholds buckets/thresholds.json \\
          --out more --device cuda --precision bf16 --to parquet
    """
    from bnce.filtering.choice import Choice
    from bnce.filtering.cutting import Fields
    from bnce.filtering.engine import Scoring
    from bnce.filtering.filter import ERRORS, NUM_SAMPLED, Job, Progress, look, words_done
    from bnce.filtering.filter import run as run_job
    from bnce.filtering.shard_work import Plan
    from bnce.filtering.writing import Form
    from bnce.machine.cluster import connected
    from bnce.machine.threads import use_threads

    added = tuple(name.strip() for name in names.split(","))
    if len(added) != 3 or not all(added) or len(set(added)) < 3:
        raise UserError(f"--names is '{names}': give three different names, such as perplexity,num_words,unknown_rate.")
    if mode not in (AUTO, *MODES):
        raise unknown_name("mode", mode, (AUTO, *MODES))
    if errors not in ERRORS:
        raise unknown_name("value of --errors", errors, ERRORS)
    if to not in (None, "jsonl", "parquet"):
        raise unknown_name("output format", to, ("jsonl", "parquet"))
    if id_field is not None and not scores_only:
        raise UserError("--id works only with --scores-only: give --scores-only, too.")
    if out is None and not dry_run:
        raise UserError("There is no output directory: give --out DIR, or --dry-run to look at a sample.")
    if cluster is not None and (workers is not None or dry_run):
        raise UserError("--cluster has its own workers: leave out --workers and --dry-run.")
    chosen = Choice.of(max_perplexity, keep, buckets)
    if rest and len(chosen.parts) != 2 and thresholds is None:
        raise UserError("--rest is for documents that are not kept: give --max-perplexity or --keep, too.")
    normalised = None if mode == AUTO else mode == "normalised"
    share = _share(shard)
    fields = Fields(field, id_field, () if scores_only else added, names_options=True)
    scoring = Scoring(str(run.absolute()), normalised, spell, precision, device, fields)
    plan = Plan(out or Path(), Form(to, added, scores_only, id_field), chosen, rest, errors == "skip")
    with _shown() as (show, notice), contextlib.nullcontext() if cluster is None else connected(cluster) as executor:
        job = Job(
            sources,
            scoring,
            plan,
            thresholds,
            NUM_SAMPLED if sample is None else sample,
            share,
            workers,
            executor,
            Progress(show, notice),
        )
        use_threads()
        if dry_run:
            _print_sample(job, look(job), as_json)
            return
        num_before, begin = words_done(job), time.perf_counter()
        summary = run_job(job).to_dict()
        seconds = time.perf_counter() - begin
    num_words = summary["num_words"] - num_before
    speed = num_words / seconds
    if as_json:
        timing = {"seconds": round(seconds, 3), "words_per_second": round(speed)}
        print_json({"run": str(run), "out": str(out), **scoring.described(), **summary, **timing})
        return
    stderr.print(
        f"{num_words:,} words, punctuation marks among them, in {seconds:,.1f} seconds, which include loading the "
        f"model: {speed:,.0f} words per second."
    )
    for line in _report(summary):
        stderr.print(line)


def _share(text: str) -> tuple[int, int]:
    try:
        first, number = map(int, text.split("/"))
    except ValueError:
        raise UserError(f"--shard is '{text}': give I/N with I from 1 to N, such as 3/16.") from None
    return first, number


@contextlib.contextmanager
def _shown() -> Iterator[tuple[Callable[[Progress], None], Callable[[str], None]]]:
    """Give what shows progress, and what tells of documents that cannot be read."""
    with progress_bar("speed", "documents") as bar:
        task = bar.add_task("filtering", total=None, speed="", documents="")
        begin = time.monotonic()

        def show(progress: Progress) -> None:
            speed = progress.num_words / max(1e-9, time.monotonic() - begin)
            bar.update(
                task,
                description=progress.what,
                completed=progress.num_bytes,
                total=progress.total_bytes or None,
                speed=f"{speed:,.0f} words/s",
                documents=f"{progress.num_documents:,} documents",
            )

        yield show, bar.tell


def _print_sample(job: Job, found: tuple[Distribution, Choice, dict[str, float] | None], as_json: bool) -> None:
    from bnce.filtering.choice import BINS

    distribution, chosen, check = found
    if as_json:
        record = {"num_documents": distribution.total, "quantiles": distribution.quantiles()}
        record |= {"counts": {f"{10 ** (place / BINS):.4g}": n for place, n in sorted(distribution.counts.items())}}
        record |= {"parts": list(chosen.parts), "limits": list(chosen.limits), **job.scoring.described()}
        print_json(record if check is None else record | {"precision_check": check})
        return
    stdout.print(f"Perplexities of {distribution.total:,} documents:")
    for line in distribution.picture(chosen.limits):
        stdout.print(line)
    quantiles = ", ".join(f"{100 * float(share):g}%: {value:g}" for share, value in distribution.quantiles().items())
    stdout.print(f"Quantiles (to about 1%): {quantiles}.")
    for line in (*_limits(chosen.parts, chosen.limits), *_checked(check)):
        stdout.print(line)


def _limits(parts: Sequence[str], limits: Sequence[float]) -> list[str]:
    bounds = [f"{part} up to {limit:g}" for part, limit in zip(parts, limits, strict=False)]
    return [f"Limits: {', '.join(bounds)}, {parts[-1]} above."] if limits else []


def _checked(check: dict[str, float] | None) -> list[str]:
    if check is None:
        return []
    return [
        f"Precision: perplexities of {check['num_documents']:g} documents differ from float32 by {check['mean']:.2%} "
        f"on average and {check['max']:.2%} at most."
    ]


def _report(summary: dict[str, Any]) -> list[str]:
    """Say what was done and how, so that numbers can be compared."""
    lines = [
        f"Shards: {summary['num_shards']:,}; documents: {summary['num_documents']:,}; words: "
        f"{summary['num_words']:,}; unknown words: {summary['unknown_rate'] or 0:.2%}; documents without words: "
        f"{summary['num_empty']:,}; skipped because they cannot be read: {summary['num_problems']:,}."
    ]
    if len(summary["parts"]) > 1:
        parts = (
            f"{name} {part['num_documents']:,} documents, {part['num_words']:,} words"
            for name, part in summary["parts"].items()
        )
        lines += [f"{'; '.join(parts)}.", *_limits(list(summary["parts"]), summary["limits"])]
    if summary["perplexity"] is not None:
        quantiles = summary["quantiles"]
        lines.append(
            f"Perplexity of all text: {summary['perplexity']:.5g}; of documents: {quantiles['0.1']:g} (10%), "
            f"{quantiles['0.5']:g} (median), {quantiles['0.9']:g} (90%)."
        )
    how = {
        "n-gram": "of an n-gram model, which ignores earlier sentences",
        "exact": "exactly normalised by the output layer",
        "normalised": "with the softmax",
        "unnormalised": f"with the constant Z ({MAY_EXCEED})",
    }
    lines.append("Perplexities are per token: words, marks and sentence ends (</s>).")
    if summary["probabilities"] is not None:
        lines[-1] += f" Probabilities are {how[summary['probabilities']]}."
    return lines + _checked(summary.get("precision_check"))
