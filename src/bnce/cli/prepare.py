"""`bnce prepare`: text in, corpus directory out."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.console import JsonOption, print_json, shown_progress, stderr, stdout
from bnce.cli.corpus_info import corpus_facts, corpus_splits, describe_words, split_table
from bnce.cli.options import choice, option

if TYPE_CHECKING:
    from bnce.corpus.store import Corpus


def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Text files (plain, .gz, .xz, .bz2, .zst or .zip), record files (.jsonl, .parquet), directories or "
            "quoted patterns; - for standard input; docstrings for the docstrings of the installed Python packages. "
            "Or a published corpus and its path: ltcb with enwik9, obwb with its .tar.gz, wikitext with its .zip.",
        ),
    ],
    out: Annotated[Path, option("DIR", "Corpus directory to create.", "--out", "-o")],
    valid: Annotated[str | None, option("FILE", "Text of the validation split, instead of a part of SOURCE.")] = None,
    test: Annotated[str | None, option("FILE", "Text of the test split, instead of a part of SOURCE.")] = None,
    vocab_size: Annotated[
        int | None,
        option(
            "N",
            "Keep the N most frequent words, </s> and <unk> included.",
            show_default="all words; 80000 for ltcb",
        ),
    ] = None,
    min_count: Annotated[
        int | None,
        option(
            "N",
            "Keep words that occur N times or more.",
            show_default="1; 2 if <unk> would otherwise never be trained; 3 for obwb",
        ),
    ] = None,
    vocab: Annotated[
        Path | None, option("FILE", "Use this vocabulary: one word per line, </s> and <unk> first.")
    ] = None,
    lowercase: Annotated[
        bool | None,
        typer.Option(
            "--lowercase/--cased",
            help="Convert text to lower case, or keep its case.",
            show_default="lowercase; cased for obwb and wikitext",
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        choice(
            "words|whitespace|spoken",
            "words: separate words from punctuation. whitespace: split at whitespace only. spoken: English as "
            "recognisers write it: lower case, no punctuation, numbers and titles spelled out.",
            "words; whitespace for obwb and wikitext",
        ),
    ] = None,
    sentences: Annotated[
        str | None,
        choice(
            "split|lines",
            "split: a sentence ends after . ! or ? and at the end of a line. lines: only at the end of a line.",
            "split; lines for obwb and wikitext",
        ),
    ] = None,
    numbers: Annotated[
        str | None,
        choice(
            "keep|zero|word",
            "keep: leave numbers as they are. zero: write every digit as 0. word: replace every number with <num>.",
            "keep",
        ),
    ] = None,
    field: Annotated[str, option("NAME", "Field of JSON and Parquet records that holds the text.")] = "text",
    fraction: Annotated[
        float,
        option(
            "F",
            "Fraction of the documents for the validation split, and for the test split, if they have no files. With 0 "
            "and --valid there is no test split.",
        ),
    ] = 0.02,
    errors: Annotated[
        str,
        choice(
            "strict|replace", "Invalid UTF-8 and NUL bytes: strict stops with an error, replace writes U+FFFD instead."
        ),
    ] = "strict",
    workers: Annotated[
        str | None,
        option(
            "N|ADDRESS",
            "Number of processes; or a Dask scheduler, on whose workers to run: its address, such as tcp://host:8786, "
            "or its scheduler file. All machines must then share the output directory. The result does not depend on "
            "the workers.",
            show_default="one per core",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn text into a corpus directory, ready for training.

    A document is one record, or the lines up to a blank line (100 lines at most). Whole documents are chosen for the
    validation and test splits.

    \b
    Examples:
      bnce prepare docstrings --out corpora/docstrings --vocab-size 20000
      bnce prepare train.txt.xz --valid valid.txt --test test.txt \\
          --out corpora/wiki --min-count 3
      bnce prepare ptb.txt --tokens whitespace --sentences lines \\
          --out corpora/ptb
      bnce prepare books/ --tokens spoken --vocab-size 80000 \\
          --out corpora/books
      bnce prepare articles/ 'more/*.jsonl.gz' --field body --numbers zero \\
          --out corpora/mine
      bnce prepare ltcb enwik9.zip --out corpora/ltcb
    """
    # Here, so that `bnce --help` answers without loading NumPy and pyarrow.
    import contextlib
    from dataclasses import replace

    from bnce.corpus.prepare import prepare as make_corpus
    from bnce.machine.cluster import connected
    from bnce.machine.threads import num_cores
    from bnce.text.normalise import Normaliser
    from bnce.text.published import find_benchmark

    start = time.perf_counter()
    benchmark = find_benchmark(sources)
    settings = {"lowercase": lowercase, "tokens": tokens, "sentences": sentences, "numbers": numbers}
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    normaliser = replace(benchmark.normaliser(sources[1]) if benchmark else Normaliser(), **given)
    notices: list[str] = []
    is_number = workers is None or re.fullmatch(r"[+-]?[0-9]{1,9}", workers)
    with (
        shown_progress("reading") as progress,
        contextlib.nullcontext() if is_number else connected(str(workers)) as executor,
    ):
        corpus = make_corpus(
            sources,
            out,
            valid=valid,
            test=test,
            vocab_size=vocab_size,
            min_count=min_count,
            vocabulary_file=vocab,
            normaliser=normaliser,
            fraction=fraction,
            field=field,
            errors=errors,
            num_workers=int(workers) if workers is not None and is_number else num_cores(),
            executor=executor,
            progress=progress,
            notice=notices.append,
        )
    for notice in notices:
        stderr.print(f"Warning: {notice}")
    seconds = time.perf_counter() - start
    if as_json:
        print_json({**corpus_facts(corpus), "splits": corpus_splits(corpus), "seconds": round(seconds, 3)})
    else:
        _print_table(corpus, seconds, is_chosen=min_count is None)


def _print_table(corpus: Corpus, seconds: float, is_chosen: bool) -> None:
    from bnce.corpus.word_choice import MIN_COUNT_FOR_UNKNOWN

    title = f"{corpus.directory}: V = {len(corpus.vocabulary):,} words, prepared in {seconds:.1f} s"
    stdout.print(split_table(corpus_splits(corpus), title=title))
    min_count = corpus.manifest.min_count
    given = "as given; " if min_count is None else ""
    told = f"Vocabulary: {given}{describe_words(len(corpus.vocabulary), corpus.num_types, min_count)}."
    if is_chosen and min_count == MIN_COUNT_FOR_UNKNOWN:
        told += " If all words were kept, <unk> would never be trained. --min-count 1 keeps them all."
    stdout.print(told)
