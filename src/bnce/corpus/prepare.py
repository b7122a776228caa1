"""Text in, corpus directory out: source → blocks of documents → numbered words → vocabulary → ids."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bnce.corpus.docstrings import installed_modules, read_docstrings
from bnce.corpus.normalise import Normaliser
from bnce.corpus.numbering import Block, Cut, Tally, number_block
from bnce.corpus.sources import Advance, Document, check_errors, check_source, read_documents, source_bytes
from bnce.corpus.store import SPLITS, Corpus, Ids, SplitStatistics, ids_dtype
from bnce.corpus.vocabulary import MIN_SIZE, SPECIALS, UNK, Vocabulary
from bnce.corpus.workers import ordered_map
from bnce.errors import UserError
from bnce.files import atomic_directory

DOCSTRINGS = "docstrings"
DEFAULT_FRACTION = 0.02

_BLOCK_CHARACTERS = 2**20

Progress = Callable[[int, int], None]


def prepare(
    sources: Sequence[str],
    out: Path,
    *,
    valid: str | None = None,
    test: str | None = None,
    vocab_size: int | None = None,
    min_count: int = 1,
    vocabulary_file: Path | None = None,
    normaliser: Normaliser | None = None,
    valid_fraction: float = DEFAULT_FRACTION,
    test_fraction: float = DEFAULT_FRACTION,
    seed: int = 1,
    errors: str = "strict",
    num_workers: int = 1,
    progress: Progress | None = None,
) -> Corpus:
    """Make a corpus directory of text; a source is a path, "-" (standard input) or "docstrings".

    `valid` and `test` are sources too; without them whole documents are drawn from the training text. The
    vocabulary and the counts for noise come from the training split alone. The same text gives the same bytes
    whatever `num_workers` is. `progress` is told how many bytes of how many were read; 0 of 0 is unknown.
    """
    given = {name: source for name, source in (("valid", valid), ("test", test)) if source is not None}
    fractions = {"valid": valid_fraction, "test": test_fraction}
    cut = Cut(seed, {name: fraction for name, fraction in fractions.items() if name not in given})
    _check_settings(out, cut, vocab_size, min_count, num_workers, errors)
    _check_sources([*sources, *given.values()])
    vocabulary = None
    if vocabulary_file is not None:
        if vocab_size is not None or min_count != 1:
            raise UserError(
                f"The vocabulary '{vocabulary_file}' is taken as it is: leave out --vocab-size and --min-count."
            )
        vocabulary = Vocabulary.read(vocabulary_file)
    normaliser = normaliser or Normaliser()
    number = functools.partial(number_block, normaliser=normaliser, cut=cut)
    read = functools.partial(
        _read, errors=errors, num_workers=num_workers, advance=_watch(progress, [*sources, *given.values()])
    )
    texts = [(None, list(sources)), *((name, [source]) for name, source in given.items())]
    with atomic_directory(out) as directory:
        with Tally(directory) as tally:
            for split, names in texts:
                blocks = _blocks(itertools.chain.from_iterable(map(read, names)), split)
                # Closed here and now, so that after an error no process goes on with text nobody wants.
                with contextlib.closing(ordered_map(number, blocks, num_workers)) as numbered:
                    for block in numbered:
                        tally.add(block)
        _check_splits(tally, cut, given)
        if vocabulary is None:
            vocabulary = Vocabulary.from_counts(tally.train_counts(), vocab_size, min_count)
        tally.write_corpus(vocabulary, normaliser)
    return Corpus.open(out)


def encode_text(
    path: str, vocabulary: Vocabulary, normaliser: Normaliser, errors: str = "strict"
) -> tuple[Ids, SplitStatistics]:
    """Encode a text file with a vocabulary at hand, as `prepare` would, to evaluate on it."""
    parts = []
    num_sentences = num_documents = num_oov = 0
    for block in _blocks(read_documents(path, errors), "text"):
        numbered = number_block(block, normaliser, Cut(0, {}))
        id_of = vocabulary.encode([*SPECIALS, *numbered.words]).astype(ids_dtype(len(vocabulary)))
        for part in numbered.splits.values():
            ids = id_of[part.numbers]
            parts.append(ids)
            num_oov += int(np.count_nonzero(ids == UNK))
            num_sentences += part.num_sentences
            num_documents += part.num_documents
    if not parts:
        raise UserError(f"'{path}' holds no words: give a file with text in it.")
    whole = np.concatenate(parts)
    return whole, SplitStatistics(len(whole), num_sentences, num_documents, num_oov)


def _read(name: str, errors: str, num_workers: int, advance: Advance | None) -> Iterator[Document]:
    if name == DOCSTRINGS:
        return read_docstrings(installed_modules(), num_workers, advance)
    return read_documents(name, errors, advance)


def _blocks(documents: Iterable[Document], split: str | None) -> Iterator[Block]:
    """Gather documents into blocks of bounded size."""
    first = 0
    gathered: list[Document] = []
    num_characters = 0
    for document in documents:
        gathered.append(document)
        num_characters += sum(map(len, document))
        if num_characters >= _BLOCK_CHARACTERS:
            yield Block(split, first, gathered)
            first += len(gathered)
            gathered, num_characters = [], 0
    if gathered:
        yield Block(split, first, gathered)


def _watch(progress: Progress | None, names: Sequence[str]) -> Advance | None:
    """Turn bytes read since the last time into bytes read of all there are."""
    if progress is None:
        return None
    total = done = 0
    for name in names:
        if name == DOCSTRINGS:
            total += sum(source_bytes(str(path)) for path in installed_modules())
        else:
            total += source_bytes(name)

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, total)

    return advance


def _check_settings(out: Path, cut: Cut, vocab_size: int | None, min_count: int, num_workers: int, errors: str) -> None:
    check_errors(errors)
    if not out.name:
        raise UserError(f"The output '{out}' is no new directory: give the path of one to make.")
    for name, fraction in cut.fractions.items():
        if not 0 <= fraction < 1:
            raise UserError(f"The {name} fraction is {fraction:g}: it must be at least 0 and less than 1.")
    if sum(cut.fractions.values()) >= 1:
        raise UserError(
            f"The valid and test fractions {' and '.join(f'{f:g}' for f in cut.fractions.values())} "
            "leave nothing to train on: their sum must be less than 1."
        )
    if vocab_size is not None and vocab_size < MIN_SIZE:
        raise UserError(
            f"A vocabulary of {vocab_size} words is too small: it must have {MIN_SIZE} or more, "
            f"{' and '.join(SPECIALS)} among them."
        )
    for what, number in (("minimal count", min_count), ("number of workers", num_workers)):
        if number < 1:
            raise UserError(f"The {what} is {number}: it must be 1 or more.")


def _check_sources(names: Sequence[str]) -> None:
    if not names:
        raise UserError(f"There is no text to prepare: give files, or '{DOCSTRINGS}'.")
    for name in names:
        if name != DOCSTRINGS:
            check_source(name)


def _check_splits(tally: Tally, cut: Cut, given: dict[str, str]) -> None:
    num_documents = sum(number for split, number in tally.num_documents.items() if split not in given)
    text = f"The text has {num_documents} document{'' if num_documents == 1 else 's'}"
    for split in SPLITS:
        # No test split is a choice; training and its early stop need the other two.
        if tally.num_tokens(split) or (split == "test" and cut.fractions.get(split) == 0):
            continue
        if split in given:
            raise UserError(f"'{given[split]}' holds no words for {split}: give a file with text in it.")
        if split == "train":
            raise UserError(
                f"{text} and none is left to train on: give more text, or smaller fractions for valid and test."
            )
        raise UserError(
            f"{text} and a fraction of {cut.fractions[split]:g} draws none "
            f"for {split}: raise --{split}-fraction, or give --{split}; a blank line ends a document."
        )
