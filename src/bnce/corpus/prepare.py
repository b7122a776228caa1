"""Text in, corpus directory out: source → blocks of documents → numbered words → vocabulary → ids.

The text is read a single time, so that a pipe will do and nothing is cut into words twice. In the first pass
workers number the words of a block, by first occurrence there, and keep the numbered block in a scratch file;
the counts they give back decide the vocabulary. In the second they turn numbers into ids. Memory does not grow
with the text: a few blocks are in work, and the counts have a bound (`tally`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np

from bnce.corpus.encoding import NumberedWords, Numbering, StoredBlock, describe, encode_corpus
from bnce.corpus.manifest import SPLITS, SplitStatistics, sum_statistics
from bnce.corpus.meter import Meter, Progress
from bnce.corpus.numbering import MARKS, number_block
from bnce.corpus.sharing import check_shared, deal_out, see_files
from bnce.corpus.spelling import SPELLING_FILE
from bnce.corpus.store import Corpus, Ids
from bnce.corpus.tally import Tally
from bnce.corpus.vocabulary import MIN_SIZE, SPECIALS, Vocabulary
from bnce.corpus.word_choice import choose_words, describe_untrained, train_spelling
from bnce.errors import UserError, argument
from bnce.files import atomic_directory
from bnce.machine.workers import Processes, map_in_order
from bnce.text.blocks import Block, Cut, gather
from bnce.text.intake import find_files, read_text, text_bytes
from bnce.text.normalise import Normaliser
from bnce.text.published import find_benchmark
from bnce.text.records import DEFAULT_FIELD
from bnce.text.shares import Share
from bnce.text.sources import check_errors, refuse_second_stdin
from bnce.text.tokenised import TokenisedSigns

DEFAULT_FRACTION = 0.02
DEFAULT_SEED = 1


def prepare(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    vocab_size: int | None = None,
    min_count: int | None = None,
    vocabulary_file: str | Path | None = None,
    normaliser: Normaliser | None = None,
    fraction: float = DEFAULT_FRACTION,
    seed: int = DEFAULT_SEED,
    field: str = DEFAULT_FIELD,
    errors: str = "strict",
    num_workers: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
    notice: Callable[[str], object] | None = None,
) -> Corpus:
    """Make a corpus directory of text; a source is a file, directory or pattern, "-" (standard input) or "docstrings".

    `valid` and `test` are sources too; without them whole documents are drawn from the training text, a `fraction` of
    them for each; with a fraction of 0 and a `valid` there is no test split. If the first
    source is the name of a benchmark, the second is its path: it has its own splits and its own default vocabulary. The
    vocabulary and the counts for noise come from the training split alone; `min_count` is 1, or 2 where <unk> would
    not be trained otherwise (`word_choice`).

    The tasks run in `num_workers` processes, or on an `executor`, which runs `num_workers` at once; its workers must
    see the directory of `out`. The same text gives the same bytes wherever they run, and however many there are.
    `progress` is given the bytes done and the bytes in all (0: unknown). `notice` gets warnings about the text.
    """
    several = [sources] if isinstance(sources, str | Path) else sources
    paths, out = [str(source) for source in several], Path(out)
    given = {name: str(source) for name, source in (("valid", valid), ("test", test)) if source is not None}
    cut = Cut(seed, {name: fraction for name in ("valid", "test") if name not in given})
    _check_settings(out, cut, fraction, vocab_size, 1 if min_count is None else min_count, num_workers, errors)
    benchmark = find_benchmark(paths)
    if benchmark is not None:
        if given or (fraction, seed) != (DEFAULT_FRACTION, DEFAULT_SEED):
            raise UserError(
                f"'{paths[0]}' has its own splits: leave out {argument('valid')}, {argument('test')} and "
                f"{argument('fraction')}."
            )
        given = dict.fromkeys(SPLITS, paths[1])
        normaliser = normaliser or benchmark.normaliser(paths[1])
        if vocab_size is None and min_count is None and vocabulary_file is None:
            vocab_size, min_count = benchmark.vocab_size, benchmark.min_count
    vocabulary: Vocabulary | None = None
    if vocabulary_file is not None:
        if vocab_size is not None or min_count not in (None, 1):
            raise UserError(
                f"The vocabulary '{vocabulary_file}' is used as it is: leave out {argument('vocab_size')} and "
                f"{argument('min_count')}."
            )
        vocabulary = Vocabulary.read(vocabulary_file)
        _check_vocab_size(len(vocabulary))
    normaliser = normaliser or Normaliser()
    signs = TokenisedSigns(normaliser)
    names: dict[str | None, list[str]] = {}
    if benchmark is not None:
        meter = Meter(progress, benchmark.num_bytes(paths[1]))
    else:
        refuse_second_stdin([*paths, *given.values()])
        names[None] = find_files(paths)
        names.update({name: find_files([source]) for name, source in given.items()})
        meter = Meter(progress, sum(map(text_bytes, itertools.chain.from_iterable(names.values()))))
    read = functools.partial(read_text, field=field, errors=errors, num_workers=num_workers, advance=meter.read)
    # Another machine has another current directory.
    place = out if executor is None else out.absolute()
    with (
        atomic_directory(place) as directory,
        _scratch(directory) as scratch,
        Processes(num_workers) as processes,
    ):
        if executor is not None:
            check_shared(executor, scratch)
        workers = processes if executor is None else executor
        in_order = functools.partial(map_in_order, workers=workers, at_once=num_workers)
        cutter = benchmark.cutter(normaliser) if benchmark else normaliser
        number = Numbering(cutter, cut, scratch, executor is not None, field, errors)
        tally = Tally(scratch)
        stored: list[StoredBlock] = []
        num_unknown = 0
        texts: Iterable[Iterator[Block | Share]]
        if benchmark is not None:
            # Neighbouring documents of one split are one text.
            by_split = itertools.groupby(benchmark.read(paths[1], errors, meter.read), key=operator.itemgetter(0))
            texts = (gather((document for _, document in run), split) for split, run in by_split)
        elif executor is not None and see_files(executor, itertools.chain.from_iterable(names.values())):
            deal = functools.partial(deal_out, in_order, read=read, signs=signs, field=field, errors=errors)
            texts = (deal(files, split, advance=meter.read) for split, files in names.items())
        else:
            read_all = ((split, itertools.chain.from_iterable(map(read, files))) for split, files in names.items())
            texts = (gather(signs.watch(documents), split) for split, documents in read_all)
        for text in texts:
            # Closed here and now, so that after an error nothing goes on with text nobody wants.
            with contextlib.closing(in_order(number, meter.watch(text))) as counted:
                for found in counted:
                    tally.add(found.words, found.train_counts)
                    stored += found.stored
                    num_unknown += found.num_unknown
                    meter.numbered()
        _check_splits(stored, cut, given)
        if vocabulary is not None:
            num_types, min_count = tally.most_frequent(0).num_types, None
        else:
            max_words = None if vocab_size is None else vocab_size - len(SPECIALS)
            ranking, min_count = choose_words(tally, max_words, min_count, num_unknown)
            vocabulary, num_types = Vocabulary([*SPECIALS, *ranking.words]), ranking.num_types
        train_spelling(tally, vocabulary).write(directory / SPELLING_FILE)
        encode_corpus(stored, directory, vocabulary, normaliser, num_types, min_count, in_order, meter.encoded)
    if notice is not None and benchmark is None and (told := signs.notice("The text")) is not None:
        notice(
            f"{told} Give {argument('tokens', 'whitespace')} and {argument('sentences', 'lines')} to read the "
            "words between blanks as they are and <unk> as the unknown word, or give the text from before tokenisation."
        )
    corpus = Corpus.open(out)
    if notice is not None and (told := describe_untrained(corpus.statistics)) is not None:
        notice(told)
    return corpus


def encode_text(
    path: str | Path,
    vocabulary: Vocabulary,
    normaliser: Normaliser,
    signs: TokenisedSigns | None = None,
) -> tuple[Ids, SplitStatistics]:
    """Encode a text file with a vocabulary at hand, as `prepare` would, to evaluate on it; `signs` look at it."""
    parts = []
    figures = []
    documents = read_text(str(path), DEFAULT_FIELD)
    for block in gather(documents if signs is None else signs.watch(documents), "text"):
        numbered = number_block(block, normaliser, Cut(0, {}))
        words = numbered.words.to_pylist()[len(MARKS) :]
        lengths = (len(word.encode()) for word in words)
        known = NumberedWords.of(vocabulary.encode(words), lengths, len(vocabulary))
        for part in numbered.splits.values():
            parts.append(known.ids[part.numbers])
            num_bytes = int(known.num_bytes[part.numbers].sum())
            figures.append(describe(part, parts[-1], num_bytes))
    if not parts:
        raise UserError(f"'{path}' has no words: give a file with text.")
    return np.concatenate(parts), sum_statistics(figures)


@contextlib.contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """Make a place for numbered blocks, and remove it at the end."""
    scratch, gone = directory / "scratch", directory / "gone"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        # A task that nobody waits for any more may still be running somewhere: now it cannot put a new file there.
        scratch.rename(gone)
    shutil.rmtree(gone)


def _check_settings(
    out: Path, cut: Cut, fraction: float, vocab_size: int | None, min_count: int, num_workers: int, errors: str
) -> None:
    check_errors(errors)
    if not out.name:
        raise UserError(
            f"The output '{out}' is not a new directory: give the path of a directory that does not exist yet."
        )
    most = 1 / max(1, len(cut.fractions))
    if not 0 <= fraction < most:
        raise UserError(
            f"The fraction of documents for each split is {fraction:g}: it must be at least 0 and less than {most:g}."
        )
    if vocab_size is not None:
        _check_vocab_size(vocab_size)
    for what, number in (("minimal count", min_count), ("number of workers", num_workers)):
        if number < 1:
            raise UserError(f"The {what} is {number}: it must be 1 or more.")


def _check_vocab_size(vocab_size: int) -> None:
    if vocab_size < MIN_SIZE:
        raise UserError(
            f"A vocabulary of {vocab_size} words is too small: give at least {MIN_SIZE}, "
            f"including {' and '.join(SPECIALS)}."
        )


def _check_splits(stored: Sequence[StoredBlock], cut: Cut, given: dict[str, str]) -> None:
    found = [(split, part.num_documents) for block in stored for split, part in block.splits.items()]
    num_documents = sum(number for split, number in found if split not in given)
    text = f"The text has {num_documents} document{'' if num_documents == 1 else 's'}"
    for split in SPLITS:
        # No test split is a choice; training and its early stop need the other two.
        if split in dict(found) or (split == "test" and cut.fractions.get(split) == 0):
            continue
        if split in given:
            raise UserError(f"'{given[split]}' has no words for {split}: give a file with text.")
        if split == "train":
            raise UserError(
                f"{text} and none is left for training: give more text, or a smaller {argument('fraction')}."
            )
        raise UserError(
            f"{text} and a fraction of {cut.fractions[split]:g} gives none to {split}: raise "
            f"{argument('fraction')}, or give {argument(split)}; a blank line ends a document."
        )
