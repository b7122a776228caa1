"""Pieces learned from the words of a text and how often each occurs, by byte-pair encoding."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.pieces import ALPHABET, PieceVocabulary, letters, need_tokenizers
from bnce.corpus.vocabulary import SPECIALS, Vocabulary
from bnce.errors import UserError, argument
from bnce.text.sources import batches

DEFAULT_SIZE = 2**15
# The specials, and a piece for every byte.
MIN_PIECES = len(SPECIALS) + 256
# Far more than anybody uses; room for as many as are asked for is taken before the first is learned.
MAX_PIECES = 2**20

# Words that pieces are learned from: of a larger text as many as are fair. To read these takes seconds.
MAX_LEARNED_WORDS = 2**24
# Different words among them: the rarest of more than a million decide nothing.
MAX_LEARNED_TYPES = 2**20
# Of a word: what is longer is hardly one, and takes a long time to learn from.
MAX_LEARNED_LETTERS = 2**10
MAX_PIECE_LETTERS = 2**8
_FED_CHARACTERS = 2**16


def check_size(size: int) -> None:
    """Refuse too few pieces, and pieces without the package that cuts words into them, before any text is read."""
    if size < MIN_PIECES:
        raise UserError(
            f"A vocabulary of {size} pieces is too small: give {argument('vocab_size')} {MIN_PIECES} or more, since "
            f"each of the 256 bytes, {' and '.join(SPECIALS)} is a piece."
        )
    if size > MAX_PIECES:
        raise UserError(
            f"A vocabulary of {size} pieces is too large: give {argument('vocab_size')} {MAX_PIECES} or less."
        )
    need_tokenizers()


def learn_pieces(
    words: Sequence[str], counts: NDArray[np.int64], size: int, known: Vocabulary | None = None
) -> PieceVocabulary:
    """Learn `size` pieces, the specials included, from words and how often each occurs; the most frequent come first.

    The same words and counts give the same bytes. A text that has fewer pieces gives fewer.
    """
    tokenizers = need_tokenizers()
    if known is not None:
        kept = np.array([word in known for word in words], dtype=bool)
        words, counts = list(itertools.compress(words, kept)), counts[kept]
    learning = tokenizers.Tokenizer(tokenizers.models.BPE())
    learning.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS),
        initial_alphabet=ALPHABET,
        show_progress=False,
        max_token_length=MAX_PIECE_LETTERS,
    )
    fed = batches(_feed(words, counts), len, _FED_CHARACTERS)
    learning.train_from_iterator(map("".join, fed), trainer)
    merges = _without_specials(json.loads(learning.to_str())["model"]["merges"])
    pieces = [*ALPHABET, *map("".join, merges)]
    first = _assemble(pieces, merges, None)
    found = first.encode_each(words)
    weight_V = np.bincount(found.ids, weights=np.repeat(counts, found.lengths), minlength=len(first))[len(SPECIALS) :]
    # Noise by Zipf's law takes ids for ranks.
    by_count = np.argsort(-weight_V, kind="stable")
    return _assemble([pieces[place] for place in by_count], merges, known)


def _assemble(pieces: Sequence[str], merges: Sequence[tuple[str, str]], known: Vocabulary | None) -> PieceVocabulary:
    """Make a tokenizer of a text that is already words and single blanks, with a blank before the first word."""
    tokenizers = need_tokenizers()
    every = [*SPECIALS, *pieces]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({piece: n for n, piece in enumerate(every)}, list(merges)))
    # Words stay apart: a text is cut before every blank.
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(" ", "merged_with_next"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    return PieceVocabulary(every, made.to_str(pretty=True) + "\n", known)


def _without_specials(merges: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Leave out what would spell a special word, as text such as x</s> can, and what is made of that."""
    known = set(ALPHABET)
    kept = []
    for left, right in merges:
        if left in known and right in known and left + right not in SPECIALS:
            known.add(left + right)
            kept.append((left, right))
    return kept


def _feed(words: Sequence[str], counts: NDArray[np.int64]) -> Iterator[str]:
    """Yield words in letters, each as often as it occurs; of very many every n-th, so that none is favoured."""
    total = int(counts.sum())
    if total > MAX_LEARNED_WORDS:
        counts = np.diff(np.cumsum(counts) * MAX_LEARNED_WORDS // total, prepend=0)
    for word, count in zip(words, counts.tolist(), strict=True):
        spelt = f" {letters(word)[:MAX_LEARNED_LETTERS]}"
        while count:
            num_repeats = min(count, 1 + _FED_CHARACTERS // len(spelt))
            yield spelt * num_repeats
            count -= num_repeats
