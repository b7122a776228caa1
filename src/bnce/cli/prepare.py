"""`bnce prepare`: text in, corpus directory out."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnce.cli.console import JsonOption, print_json, progress_bar, stdout

if TYPE_CHECKING:
    from bnce.corpus.store import Corpus


def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Text files (plain, .gz, .xz, .bz2 or .zst), [bold]-[/bold] for standard input, or "
            "[bold]docstrings[/bold] for those of the installed Python, which need no file.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The corpus directory to make.")],
    valid: Annotated[str | None, typer.Option(help="Text for the valid split, instead of a cut.")] = None,
    test: Annotated[str | None, typer.Option(help="Text for the test split, instead of a cut.")] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(help="Keep this many words, </s> and <unk> counted.", show_default="all words"),
    ] = None,
    min_count: Annotated[int, typer.Option(help="Drop words that occur less often.")] = 1,
    vocab: Annotated[
        Path | None, typer.Option(help="Use this vocabulary: one word a line, </s> and <unk> first.")
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase/--cased", help="Whether case is folded.")] = True,
    tokens: Annotated[
        str, typer.Option(metavar="words|whitespace", help="Cut words from marks, or only at blanks.")
    ] = "words",
    sentences: Annotated[
        str, typer.Option(metavar="split|lines", help="End sentences after . ! ?, or only with the line.")
    ] = "split",
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

    A document is a run of lines up to a blank one, or 100 lines; valid and test are cut by whole documents.

    [bold]Examples[/bold]

      bnce prepare docstrings --out corpora/docstrings --vocab-size 20000

      bnce prepare train.txt.xz --valid valid.txt --test test.txt --out corpora/wiki --min-count 3

      bnce prepare ptb.txt --tokens whitespace --sentences lines --out corpora/ptb
    """
    # Here, so that `bnce --help` answers without loading NumPy and pyarrow.
    from bnce.corpus.normalise import Normaliser
    from bnce.corpus.prepare import prepare as make_corpus
    from bnce.corpus.workers import num_cores

    start = time.perf_counter()
    with contextlib.ExitStack() as shown:
        bar = progress_bar()
        task = bar.add_task("reading", total=None)

        def progress(done: int, total: int) -> None:
            # Only now, so that a wrong path or setting is answered by one sentence and no bar.
            if not bar.live.is_started:
                shown.enter_context(bar)
            bar.update(task, completed=done, total=total or None)

        corpus = make_corpus(
            sources,
            out,
            valid=valid,
            test=test,
            vocab_size=vocab_size,
            min_count=min_count,
            vocabulary_file=vocab,
            normaliser=Normaliser(lowercase, tokens, sentences),
            valid_fraction=valid_fraction,
            test_fraction=test_fraction,
            seed=seed,
            errors=errors,
            num_workers=num_cores() if workers is None else workers,
            progress=progress,
        )
    seconds = time.perf_counter() - start
    if as_json:
        print_json(_record(corpus, seconds))
    else:
        _print_table(corpus, seconds)


def _record(corpus: Corpus, seconds: float) -> dict[str, object]:
    from dataclasses import asdict

    splits = {name: {**asdict(split), "unk_rate": split.unk_rate} for name, split in corpus.statistics.items()}
    return {
        "corpus": str(corpus.directory),
        "vocab_size": len(corpus.vocabulary),
        "vocabulary_digest": corpus.vocabulary.digest,
        "splits": splits,
        "seconds": round(seconds, 3),
    }


def _print_table(corpus: Corpus, seconds: float) -> None:
    from rich.markup import escape
    from rich.table import Table

    title = f"{corpus.directory}: V = {len(corpus.vocabulary):,} words, made in {seconds:.1f} s"
    table = Table(title=escape(title))
    table.add_column("split")
    for column in ("documents", "sentences", "tokens", "<unk> rate"):
        table.add_column(column, justify="right")
    for name, split in corpus.statistics.items():
        counts = (split.num_documents, split.num_sentences, split.num_tokens)
        table.add_row(name, *(f"{count:,}" for count in counts), f"{split.unk_rate:.2%}")
    stdout.print(table)
