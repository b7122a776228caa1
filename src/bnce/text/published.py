"""The published corpora by name: how each is read, and what those who publish results on it have settled on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bnce.errors import UserError
from bnce.text.billion_words import MIN_COUNT, check_release, read_shards, release_bytes
from bnce.text.normalise import Normaliser
from bnce.text.sources import Advance, Document, source_bytes
from bnce.text.wikipedia import VOCAB_SIZE, MarkupNormaliser, check_dump, read_articles
from bnce.text.wikitext import find_kind, find_normaliser, read_wikitext, wikitext_bytes

Read = Callable[[str, str, Advance | None], Iterator[tuple[str, Document]]]


@dataclass(frozen=True)
class Benchmark:
    """A corpus with splits of its own; `read` takes a path, what to do about bad bytes, and whom to tell."""

    what: str
    read: Read
    check: Callable[[str], object]
    normaliser: Callable[[str], Normaliser]
    num_bytes: Callable[[str], int] = source_bytes
    # What takes the text as it is read to words, where that is more than what is stored with the corpus.
    cutter: Callable[[Normaliser], Normaliser] = lambda normaliser: normaliser
    vocab_size: int | None = None
    min_count: int | None = None


BENCHMARKS = {
    "ltcb": Benchmark(
        what="enwik9, plain or compressed",
        read=read_articles,
        check=check_dump,
        normaliser=lambda path: Normaliser(),
        cutter=lambda normaliser: MarkupNormaliser(**normaliser.to_dict()),
        vocab_size=VOCAB_SIZE,
    ),
    "obwb": Benchmark(
        what="the tar.gz of the release, or the unpacked directory",
        read=read_shards,
        check=check_release,
        normaliser=lambda path: Normaliser(lowercase=False, tokens="whitespace", sentences="lines"),
        num_bytes=release_bytes,
        min_count=MIN_COUNT,
    ),
    "wikitext": Benchmark(
        what="the directory or .zip with wiki.train.tokens and the other files",
        read=read_wikitext,
        check=find_kind,
        normaliser=find_normaliser,
        num_bytes=wikitext_bytes,
    ),
}


def find_benchmark(sources: Sequence[str]) -> Benchmark | None:
    """Find the benchmark that the first source names; a file of that name is meant by `./NAME`."""
    benchmark = BENCHMARKS.get(sources[0]) if sources else None
    if benchmark is None:
        for name in sources[1:]:
            if name in BENCHMARKS:
                raise UserError(
                    f"'{name}' is the name of a corpus and cannot be combined with other sources: give `{name} PATH`, "
                    f"or ./{name} for a file."
                )
        return None
    if len(sources) != 2:
        raise UserError(
            f"'{sources[0]}' needs one path but got {len(sources) - 1}: give {benchmark.what}. "
            f"For a file of that name, write ./{sources[0]}."
        )
    benchmark.check(sources[1])
    return benchmark
