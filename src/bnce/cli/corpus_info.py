"""What `bnce info` tells of a corpus: its figures, its commonest words, and whether its batches are fair noise."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from bnce.cli.console import stdout
from bnce.errors import UserError, counted

if TYPE_CHECKING:
    from rich.table import Table

    from bnce.corpus.store import Corpus

_NUM_TOP_WORDS = 20
_BAR_WIDTH = 40


def corpus_record(path: Path, batch_size: int) -> dict[str, Any]:
    """Gather all that is shown, as plain values."""
    import numpy as np

    from bnce.corpus.manifest import LENGTH_BOUNDS
    from bnce.corpus.store import Corpus
    from bnce.corpus.word_choice import describe_untrained

    corpus = Corpus.open(path)
    top = np.argsort(-corpus.target_counts, kind="stable")[:_NUM_TOP_WORDS]
    audit = _audit(corpus, batch_size)
    untrained = describe_untrained(corpus.statistics)
    return {
        **corpus_facts(corpus),
        "normaliser": corpus.normaliser.to_dict(),
        "splits": corpus_splits(corpus),
        "sentence_length_bounds": list(LENGTH_BOUNDS),
        "top_words": [
            {"word": corpus.vocabulary.words[number], "count": int(corpus.target_counts[number])} for number in top
        ],
        "noise_audit": audit,
        "warnings": [*_warnings(audit), *([] if untrained is None else [untrained])],
    }


def _audit(corpus: Corpus, batch_size: int) -> dict[str, Any]:
    from bnce.corpus.audit import audit_sentences, audit_streams

    ids = corpus.split("train")
    if len(ids) < batch_size:
        raise UserError(
            f"The training text has {counted(len(ids), 'token')} and cannot be read as {batch_size} streams: "
            "give a smaller --batch-size."
        )
    batchings = {"parallel_streams": audit_streams, "sentence_aligned": audit_sentences}
    measured = {name: audit(ids, corpus.target_counts, batch_size) for name, audit in batchings.items()}
    record = {name: {**dataclasses.asdict(found), "is_unigram": found.is_unigram} for name, found in measured.items()}
    return {"batch_size": batch_size, "unit": "nats", **record}


def _warnings(audit: dict[str, Any]) -> list[str]:
    streams = audit["parallel_streams"]
    if streams["is_unigram"]:
        return []
    return [
        f"With {audit['batch_size']} parallel streams, the targets of a time step do not follow the unigram "
        f"distribution, as B-NCE requires (KL {streams['kl']:.3f} nats, {streams['kl_by_chance']:.3f} by chance): "
        "shuffle the "
        "documents, or choose another batch size."
    ]


def corpus_facts(corpus: Corpus) -> dict[str, Any]:
    """Give what is known of a corpus as a whole as JSON has it."""
    return {
        "corpus": str(corpus.directory),
        "vocab_size": len(corpus.vocabulary),
        "num_types": corpus.num_types,
        "min_count": corpus.manifest.min_count,
        "vocabulary_digest": corpus.vocabulary.digest,
    }


def corpus_splits(corpus: Corpus) -> dict[str, dict[str, Any]]:
    """Give the figures of all splits as JSON has them."""
    return {name: {**dataclasses.asdict(one), "unk_rate": one.unk_rate} for name, one in corpus.statistics.items()}


def split_table(splits: dict[str, dict[str, Any]], title: str | None = None) -> Table:
    """Make a table of the sizes of splits."""
    from rich.table import Table

    table = Table("split", title=title)
    counted = ("documents", "sentences", "tokens")
    for column in (*counted, "<unk> rate"):
        table.add_column(column, justify="right")
    for name, split in splits.items():
        table.add_row(name, *(f"{split[f'num_{column}']:,}" for column in counted), f"{split['unk_rate']:.2%}")
    return table


def describe_words(vocab_size: int, num_types: int, min_count: int | None) -> str:
    """Say which of the training text's words the vocabulary holds, as far as that is known."""
    if min_count is None:  # a vocabulary that was given
        return f"the training text has {counted(num_types, 'distinct word')}"
    num_words = vocab_size - len(("</s>", "<unk>"))
    if num_words == num_types:
        every = "the only" if num_types == 1 else f"all {num_types:,}"
        return f"{every} distinct word{'s' * (num_types != 1)} of the training text"
    which = f"each occurs at least {min_count} times" if min_count > 1 else "the most frequent ones"
    return f"{num_words:,} of the {num_types:,} distinct words of the training text, {which}"


def print_corpus(record: dict[str, Any]) -> None:
    """Show the record as tables."""
    kept = describe_words(record["vocab_size"], record["num_types"], record["min_count"])
    stdout.print(f"{record['corpus']}: V = {record['vocab_size']:,} with </s> and <unk>; {kept}")
    stdout.print("normaliser: " + ", ".join(f"{key} = {value}" for key, value in record["normaliser"].items()))
    stdout.print(f"vocabulary: sha256 {record['vocabulary_digest']}")
    stdout.print(split_table(record["splits"]))
    _print_lengths(record)
    words = "  ".join(f"{top['word']} {top['count']:,}" for top in record["top_words"])
    stdout.print(f"most frequent words of train, with counts: {words}")
    _print_audit(record["noise_audit"])
    for warning in record["warnings"]:
        stdout.print(f"[bold yellow]warning:[/bold yellow] {escape(warning)}", markup=True)


def _print_lengths(record: dict[str, Any]) -> None:
    lengths = record["splits"]["train"]["sentence_lengths"]
    bounds = record["sentence_length_bounds"]
    names = [f"{low + 1}–{high}" for low, high in zip([0, *bounds], bounds, strict=False)] + [f"over {bounds[-1]}"]
    from rich.table import Table

    table = Table("words per sentence", title="sentence lengths of train", title_justify="left")
    table.add_column("sentences", justify="right")
    table.add_column("")
    for name, count in zip(names, lengths, strict=True):
        table.add_row(name, f"{count:,}", "█" * round(_BAR_WIDTH * count / max(1, *lengths)))
    stdout.print(table)


def _print_audit(audit: dict[str, Any]) -> None:
    title = f"noise audit: KL(targets of a time step ‖ unigram), B = {audit['batch_size']}, nats"
    from rich.table import Table

    table = Table("batching", title=title, title_justify="left")
    for column in ("KL", "by chance", "standard error", "unigram noise"):
        table.add_column(column, justify="right")
    for name, note in (("parallel_streams", ""), ("sentence_aligned", " (not used, for comparison)")):
        found = audit[name]
        figures = (f"{found[key]:.4f}" for key in ("kl", "kl_by_chance", "standard_error"))
        table.add_row(name.replace("_", " ") + note, *figures, "yes" if found["is_unigram"] else "no")
    stdout.print(table)
