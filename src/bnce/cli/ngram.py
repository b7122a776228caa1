"""`bnce ngram`: text in, an n-gram model as an ARPA file out."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Annotated

import typer

from bnce import files
from bnce.cli.console import JsonOption, print_json, progress_bar, stderr, stdout
from bnce.cli.options import option, split_numbers
from bnce.errors import UserError


def ngram(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Text files (plain or compressed), record files (.jsonl, .parquet), directories or quoted patterns; - "
            "for standard input. Or one corpus directory: its training text is used.",
        ),
    ],
    out: Annotated[Path, option("FILE", "ARPA file to write.")],
    # KenLM reads these orders.
    order: Annotated[int, option("N", "Length of the longest n-grams in words, from 2 to 6.", min=2, max=6)] = 3,
    vocab: Annotated[
        Path | None,
        option(
            "RUN|FILE",
            "Use the vocabulary of a run, a corpus or a vocab.txt. Text is then cut into words as in that run or "
            "corpus.",
            show_default="all words of the text, cut as 'bnce prepare' cuts it by default",
        ),
    ] = None,
    prune: Annotated[
        str,
        option(
            "N,N,...",
            "Drop n-grams that occur N times or less; one number per order. 0,0,1 drops trigrams that occur once.",
        ),
    ] = "0",
    as_json: JsonOption = False,
) -> None:
    """Estimate an n-gram model of text and write an ARPA file.

    The method is interpolated modified Kneser-Ney. If you want to interpolate the model with a run, give --vocab RUN:
    both then know the same words. The text has to fit into memory.

    \b
    Examples:
      bnce ngram train.txt.xz --vocab runs/relu-lstm --out trigram.arpa
      bnce ngram corpora/wiki --order 4 --prune 0,0,1,2 --out wiki.arpa
      bnce interpolate runs/relu-lstm trigram.arpa --valid valid.txt \\
          --out mixture.toml
    """
    from bnce.corpus.vocabulary import END, UNK
    from bnce.ngrams.arpa import write_arpa
    from bnce.ngrams.kneser_ney import estimate, needed_bytes, pruned_counts
    from bnce.ngrams.ngram_text import read_ngram_text
    from bnce.scoring.loading import model_files
    from bnce.text.sources import expand_sources

    begin = time.perf_counter()
    pruned = pruned_counts(split_numbers(prune, "--prune", "0,0,1"), order)
    files.check_place(out)
    files.refuse_overwriting([out], [*expand_sources(sources), *(model_files(vocab) if vocab is not None else ())])
    available = _available_bytes()

    def check_size(num_tokens: int) -> None:
        if available is not None and needed_bytes(num_tokens, order) > available:
            needed = needed_bytes(num_tokens, order) / 2**30
            raise UserError(
                f"A model of order {order} of {num_tokens:,} tokens or more needs {needed:.2f} GiB of memory, but "
                f"only {available / 2**30:.2f} GiB are free: give text of at most "
                f"{available // needed_bytes(1, order):,} tokens or a lower --order, or use KenLM's lmplz, which works "
                "on disk."
            )

    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        text = read_ngram_text(sources, vocab, functools.partial(show, "reading"), check_size)
        check_size(len(text.ids))
        orders = estimate(text.ids, len(text.vocabulary), pruned, functools.partial(show, "counting"))
        write_arpa(out, text.vocabulary.words, orders, text.normaliser, functools.partial(show, "writing"))
    num_ngrams = [one.num_kept for one in orders]
    record = {
        "out": str(out),
        "order": len(orders),
        "num_tokens": len(text.ids),
        "num_sentences": int((text.ids == END).sum()),
        "num_oov": int((text.ids == UNK).sum()),
        "vocab_size": len(text.vocabulary),
        "vocabulary_digest": text.vocabulary.digest,
        "normaliser": text.normaliser.to_dict(),
        "num_ngrams": num_ngrams,
        "num_pruned": [len(one.key_N) - one.num_kept for one in orders],
        "prune": pruned,
        "discounts": [list(one.discounts) for one in orders],
        "discounts_estimated": [not one.is_fallback for one in orders],
        "out_bytes": out.stat().st_size,
        "seconds": time.perf_counter() - begin,
    }
    for number, one in enumerate(orders, 1):
        if one.is_fallback:
            stderr.print(
                f"warning: the text has too few {number}-grams to estimate their discounts: "
                f"{', '.join(f'{value:g}' for value in one.discounts)} are used."
            )
    if as_json:
        print_json(record)
        return
    stdout.print(
        f"{out}: {', '.join(f'{count:,} {number}-grams' for number, count in enumerate(num_ngrams, 1))} "
        f"of {record['num_tokens']:,} tokens, {record['num_oov']:,} of them <unk>; "
        f"vocabulary {record['vocab_size']:,}, {record['seconds']:.1f} s"
    )


def _available_bytes() -> int | None:
    """Tell how much memory is free; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None
