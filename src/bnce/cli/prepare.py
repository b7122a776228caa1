"""`bnce prepare`: text in, corpus directory out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.console import JsonOption, print_json, progress_bar, stderr, stdout
from bnce.cli.corpus_info import describe_words

if TYPE_CHECKING:
    from bnce.corpus.store import Corpus


def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Files of text (plain, .gz, .xz, .bz2, .zst or .zip) or of records (.jsonl, .parquet), directories, "
            "quoted patterns, [bold]-[/bold] for standard input, or [bold]docstrings[/bold] for those of the installed "
            "Python, which need no file. Or a published corpus and its path: [bold]ltcb[/bold] with enwik9, "
            "[bold]obwb[/bold] with its tar.gz or directory, [bold]wikitext[/bold] with its .zip or directory.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The corpus directory to make.")],
    valid: Annotated[str | None, typer.Option(help="Text for the valid split, instead of a cut.")] = None,
    test: Annotated[str | None, typer.Option(help="Text for the test split, instead of a cut.")] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(help="Keep this many words, </s> and <unk> counted.", show_default="all words; 80000 for ltcb"),
    ] = None,
    min_count: Annotated[
        int | None,
        typer.Option(
            help="Drop words that occur less often.",
            show_default="1, or 2 where <unk> would not be trained otherwise; 3 for obwb",
        ),
    ] = None,
    vocab: Annotated[
        Path | None, typer.Option(help="Use this vocabulary: one word a line, </s> and <unk> first.")
    ] = None,
    lowercase: Annotated[
        bool | None,
        typer.Option(
            "--lowercase/--cased", help="Whether case is folded.", show_default="lowercase; cased for obwb and wikitext"
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="words|whitespace",
            help="Cut words from marks, or only at blanks.",
            show_default="words; whitespace for obwb and wikitext",
        ),
    ] = None,
    sentences: Annotated[
        str | None,
        typer.Option(
            metavar="split|lines",
            help="End sentences after . ! ?, or only with the line.",
            show_default="split; lines for obwb and wikitext",
        ),
    ] = None,
    numbers: Annotated[
        str | None,
        typer.Option(
            metavar="keep|zero|word",
            help="Keep numbers, make every digit 0, or every number <num>.",
            show_default="keep",
        ),
    ] = None,
    field: Annotated[str, typer.Option(help="The field of JSON and Parquet records that holds the text.")] = "text",
    valid_fraction: Annotated[float, typer.Option(help="Share of documents cut for valid.")] = 0.02,
    test_fraction: Annotated[float, typer.Option(help="Share cut for test; 0 for no test split.")] = 0.02,
    seed: Annotated[int, typer.Option(help="Draws the documents that are cut.")] = 1,
    errors: Annotated[
        str, typer.Option(metavar="strict|replace", help="Refuse invalid UTF-8 and NULs, or replace them.")
    ] = "strict",
    workers: Annotated[
        int | None, typer.Option(help="Processes; the result is the same.", show_default="one a core")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a corpus directory of text.

    A document is a record, or a run of lines up to a blank one, or 100 lines; valid and test are cut by whole ones.

    [bold]Examples[/bold]

      bnce prepare docstrings --out corpora/docstrings --vocab-size 20000

      bnce prepare train.txt.xz --valid valid.txt --test test.txt --out corpora/wiki --min-count 3

      bnce prepare ptb.txt --tokens whitespace --sentences lines --out corpora/ptb

      bnce prepare articles/ 'more/*.jsonl.gz' --field body --numbers zero --out corpora/mine

      bnce prepare ltcb enwik9.zip --out corpora/ltcb
    """
    # Here, so that `bnce --help` answers without loading NumPy and pyarrow.
    from dataclasses import replace

    from bnce.corpus.benchmarks import find_benchmark
    from bnce.corpus.normalise import Normaliser
    from bnce.corpus.prepare import prepare as make_corpus
    from bnce.corpus.workers import num_cores

    start = time.perf_counter()
    benchmark = find_benchmark(sources)
    settings = {"lowercase": lowercase, "tokens": tokens, "sentences": sentences, "numbers": numbers}
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    normaliser = replace(benchmark.normaliser(sources[1]) if benchmark else Normaliser(), **given)
    notices: list[str] = []
    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        corpus = make_corpus(
            sources,
            out,
            valid=valid,
            test=test,
            vocab_size=vocab_size,
            min_count=min_count,
            vocabulary_file=vocab,
            normaliser=normaliser,
            valid_fraction=valid_fraction,
            test_fraction=test_fraction,
            seed=seed,
            field=field,
            errors=errors,
            num_workers=num_cores() if workers is None else workers,
            progress=progress,
            notice=notices.append,
        )
    for notice in notices:
        stderr.print(f"Warning: {notice}", markup=False)
    seconds = time.perf_counter() - start
    if as_json:
        print_json(_record(corpus, seconds))
    else:
        _print_table(corpus, seconds, is_chosen=min_count is None)


def _record(corpus: Corpus, seconds: float) -> dict[str, object]:
    from dataclasses import asdict

    splits = {name: {**asdict(split), "unk_rate": split.unk_rate} for name, split in corpus.statistics.items()}
    return {
        "corpus": str(corpus.directory),
        "vocab_size": len(corpus.vocabulary),
        "num_types": corpus.num_types,
        "min_count": corpus.manifest.min_count,
        "vocabulary_digest": corpus.vocabulary.digest,
        "splits": splits,
        "seconds": round(seconds, 3),
    }


def _print_table(corpus: Corpus, seconds: float, is_chosen: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    from bnce.corpus.word_choice import MIN_COUNT_FOR_UNKNOWN

    title = f"{corpus.directory}: V = {len(corpus.vocabulary):,} words, made in {seconds:.1f} s"
    table = Table(title=escape(title))
    table.add_column("split")
    for column in ("documents", "sentences", "tokens", "<unk> rate"):
        table.add_column(column, justify="right")
    for name, split in corpus.statistics.items():
        counts = (split.num_documents, split.num_sentences, split.num_tokens)
        table.add_row(name, *(f"{count:,}" for count in counts), f"{split.unk_rate:.2%}")
    stdout.print(table)
    min_count = corpus.manifest.min_count
    told = f"Vocabulary: {describe_words(len(corpus.vocabulary), corpus.num_types, min_count)}."
    if is_chosen and min_count == MIN_COUNT_FOR_UNKNOWN:
        told += " With all of them <unk> would never be trained; --min-count 1 keeps all."
    stdout.print(escape(told))
