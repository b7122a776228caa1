"""The text that an n-gram model is estimated of, as ids: files of text, or a corpus that is prepared already."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.meter import Progress
from bnce.corpus.numbering import MARK_IDS, MARKS, number_documents
from bnce.corpus.store import Corpus, is_corpus
from bnce.corpus.vocabulary import SPECIALS, Vocabulary
from bnce.errors import UserError, argument
from bnce.ngrams.arpa import START_WORD
from bnce.runs.directory import Run
from bnce.text.blocks import gather
from bnce.text.intake import find_files, read_text, text_bytes
from bnce.text.normalise import Normaliser
from bnce.text.records import DEFAULT_FIELD

Ids = NDArray[Any]


class NgramText(NamedTuple):
    """A text as ids, with the vocabulary they are of; `normaliser` says how it was cut into words."""

    ids: Ids
    vocabulary: Vocabulary
    normaliser: Normaliser


def read_ngram_text(
    sources: Sequence[str], vocab: Path | None, progress: Progress, check_size: Callable[[int], None]
) -> NgramText:
    """Read a corpus, or files, directories, patterns or standard input; `vocab` says where the words are from.

    That is a run, a corpus or a vocabulary file; the first two know how text is cut into words, too. Without it every
    word of the text is in the vocabulary. `check_size` hears how many tokens there are so far and may refuse them.
    """
    vocabulary, normaliser = (None, Normaliser()) if vocab is None else _read_words(vocab)
    corpora = [source for source in sources if is_corpus(source)]
    if not corpora:
        text = _read_files(sources, vocabulary, normaliser, progress, check_size)
    elif len(sources) > 1:
        raise UserError(f"'{corpora[0]}' is a prepared corpus: give only this corpus, or only text files.")
    else:
        text = _read_corpus(Path(corpora[0]), vocabulary)
    if START_WORD in text.vocabulary:
        raise UserError(
            f"{START_WORD} is one of the words, but n-gram models keep it for the start of a sentence: remove it from "
            "the text and the vocabulary."
        )
    return text


def _read_words(path: Path) -> tuple[Vocabulary, Normaliser]:
    if not path.is_dir():
        return Vocabulary.read(path), Normaliser()
    known = Corpus.open(path) if is_corpus(path) else Run.open(path)
    return known.vocabulary, known.normaliser


def _read_corpus(path: Path, vocabulary: Vocabulary | None) -> NgramText:
    """Take the training text of a corpus, which must have the vocabulary that is asked for."""
    corpus = Corpus.open(path)
    if vocabulary is not None and vocabulary.digest != corpus.vocabulary.digest:
        raise UserError(
            f"The corpus '{path}' has other words than {argument('vocab')}: give the text it was made from, or prepare "
            "it again with these words."
        )
    return NgramText(np.array(corpus.split("train")), corpus.vocabulary, corpus.normaliser)


def _read_files(
    names: Sequence[str],
    vocabulary: Vocabulary | None,
    normaliser: Normaliser,
    progress: Progress,
    check_size: Callable[[int], None],
) -> NgramText:
    growing = {word: number for number, word in enumerate(SPECIALS)}

    def number_words(words: Sequence[str]) -> NDArray[np.int64]:
        if vocabulary is not None:
            return vocabulary.encode(words)
        return np.fromiter((growing.setdefault(word, len(growing)) for word in words), np.int64, len(words))

    files = find_files(names)
    total = sum(map(text_bytes, files))
    num_bytes = num_tokens = 0

    def advance(more: int) -> None:
        nonlocal num_bytes
        num_bytes += more

    parts: list[Ids] = []
    documents = itertools.chain.from_iterable(read_text(name, DEFAULT_FIELD, advance=advance) for name in files)
    for block in gather(documents, "text"):
        words, numbers, _ = number_documents(block, normaliser)
        id_of = np.append(MARK_IDS, number_words(words.to_pylist()[len(MARKS) :])).astype(np.int32)
        parts.append(id_of[numbers])
        num_tokens += len(numbers)
        check_size(num_tokens)
        progress(num_bytes, total)
    if not num_tokens:
        raise UserError("The text has no words: give a file with text.")
    return NgramText(np.concatenate(parts), vocabulary or Vocabulary(list(growing)), normaliser)
