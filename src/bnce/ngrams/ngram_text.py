"""The text that an n-gram model is estimated of, as ids: files of text, or a corpus that is prepared already."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.meter import Progress
from bnce.corpus.numbering import MARK_IDS, MARKS, number_documents
from bnce.corpus.store import Corpus, is_corpus
from bnce.corpus.vocabulary import END, SPECIALS, UNK, Vocabulary
from bnce.errors import UserError, argument
from bnce.ngrams.arpa import START_WORD
from bnce.runs.directory import Run
from bnce.text.blocks import gather
from bnce.text.intake import find_files, read_text, text_bytes
from bnce.text.normalise import Normaliser
from bnce.text.records import DEFAULT_FIELD

Ids = NDArray[Any]


@dataclass(frozen=True)
class NgramText:
    """A text as ids, with the vocabulary they are of; `normaliser` says how it was cut into words."""

    ids: Ids
    vocabulary: Vocabulary
    normaliser: Normaliser

    @property
    def num_sentences(self) -> int:
        """How many sentence ends there are."""
        return int((self.ids == END).sum())

    @property
    def num_oov(self) -> int:
        """How many words are `<unk>`."""
        return int((self.ids == UNK).sum())


def read_vocabulary(path: Path) -> tuple[Vocabulary, Normaliser | None]:
    """Read the words of a run, a corpus or a vocabulary file; the first two know how text is cut into words, too."""
    if is_corpus(path):
        corpus = Corpus.open(path)
        return corpus.vocabulary, corpus.normaliser
    if path.is_dir():
        run = Run.open(path)
        return run.vocabulary, run.normaliser
    return Vocabulary.read(path), None


def read_corpus(path: Path, vocabulary: Vocabulary | None) -> NgramText:
    """Take the training text of a corpus, which must have the vocabulary that is asked for."""
    corpus = Corpus.open(path)
    if vocabulary is not None and vocabulary.digest != corpus.vocabulary.digest:
        raise UserError(
            f"The corpus '{path}' has other words than {argument('vocab')}: give the text it was made from, or prepare "
            "it again with these words."
        )
    ids = np.array(corpus.split("train"))
    _refuse_start(corpus.vocabulary)
    return NgramText(ids, corpus.vocabulary, corpus.normaliser)


def read_files(
    names: Sequence[str],
    normaliser: Normaliser,
    vocabulary: Vocabulary | None,
    progress: Progress,
    check_size: Callable[[int], None],
) -> NgramText:
    """Read files, directories, patterns or standard input; without a vocabulary every word of them is in it.

    `check_size` hears how many tokens there are so far and may refuse them.
    """
    files = find_files(names)
    total = sum(map(text_bytes, files))
    num_bytes = 0

    def advance(more: int) -> None:
        nonlocal num_bytes
        num_bytes += more

    _refuse_start(vocabulary or ())
    growing = {word: number for number, word in enumerate(SPECIALS)}

    def number_words(words: Sequence[str]) -> NDArray[np.int64]:
        if vocabulary is not None:
            return vocabulary.encode(words)
        _refuse_start(words)
        return np.fromiter((growing.setdefault(word, len(growing)) for word in words), np.int64, len(words))

    parts: list[Ids] = []
    num_tokens = 0
    documents = itertools.chain.from_iterable(read_text(name, DEFAULT_FIELD, advance=advance) for name in files)
    for block in gather(documents, "text"):
        words, numbers, _ = number_documents(block, normaliser)
        if not len(numbers):
            continue
        id_of = np.append(MARK_IDS, number_words(words.to_pylist()[len(MARKS) :])).astype(np.int32)
        parts.append(id_of[numbers])
        num_tokens += len(numbers)
        check_size(num_tokens)
        progress(num_bytes, total)
    if not parts:
        raise UserError("The text has no words: give a file with text.")
    ids = np.concatenate(parts)
    return NgramText(ids, Vocabulary(list(growing)) if vocabulary is None else vocabulary, normaliser)


def _refuse_start(words: Container[str]) -> None:
    if START_WORD in words:
        raise UserError(
            f"{START_WORD} is one of the words, but n-gram models keep it for the start of a sentence: remove it from "
            "the text and the vocabulary."
        )
