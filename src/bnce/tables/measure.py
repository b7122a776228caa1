"""The surprisal of every row of a table, in the order of the rows and in bounded memory.

Rows are read in blocks that end where a sentence does. A block goes through the model at once, and every row gets the
sums over its own words. `</s>` closes every sentence for the model; its surprisal is no part of any word's.

Legend: R rows of a block, S its sentences, N their words. NaN is an empty cell.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError, argument
from bnce.scoring.model import Model
from bnce.scoring.results import Floats, SequenceScores
from bnce.tables.cells import cell_cutter, is_word, places_in
from bnce.tables.columns import Block, Measuring, Row, Totals
from bnce.tables.readers import EntropyReader, Reader

BITS_PER_NAT = 1 / math.log(2)
BLOCK_ROWS = 2**13
MAX_SENTENCE_WORDS = 2**18
_KEPT_WORDS = 2**16


@dataclass
class _Segment:
    """Sentences of one text, and the rows that their words are in."""

    begins_text: bool
    sentences: list[list[str]] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)


class Measurer:
    """Measures the rows of a table with a model; `totals` grows meanwhile."""

    def __init__(self, model: Model, measuring: Measuring, reader: Reader, split: bool = True) -> None:
        self.model, self.measuring, self.totals = model, measuring, Totals()
        self.reader, self._cut = reader, cell_cutter(model.normaliser, split)
        self._entropies = EntropyReader(model) if measuring.entropy else None
        self._about = functools.lru_cache(_KEPT_WORDS)(functools.partial(_About.of, model))

    def measure(self, rows: Iterable[Row]) -> Iterator[Block]:
        """Give the columns of the rows, a block at a time; a block may come after later rows were read."""
        open_words: list[str] = []
        open_rows: list[int] = []
        segments: list[_Segment] = []
        seen: dict[Hashable, int] = {}  # the last row of every text
        before: Row | None = None
        begin = 0  # the first row of the block

        def close() -> None:
            nonlocal open_words, open_rows
            if open_words:
                segments[-1].sentences.append(open_words)
                segments[-1].rows.append(open_rows)
                open_words, open_rows = [], []

        for number, group in _numbered(rows):
            row = group[0]
            if before is None or row.text != before.text:
                close()
                if row.text in seen:
                    raise _returns(number + 1, row.text, seen[row.text])
                self.totals.num_texts += 1
                segments.append(_Segment(begins_text=True))
            elif row.sentence != before.sentence:
                close()
            if number - begin >= BLOCK_ROWS and not open_words:
                # What has just begun belongs to the next block.
                yield self._score(segments, number - begin)
                segments, begin = (
                    [_Segment(begins_text=not segments[-1].sentences and segments[-1].begins_text)],
                    number,
                )
            seen[row.text] = number + len(group)
            before = group[-1]
            cells = [_whole(one.word, number + place) for place, one in enumerate(group, start=1)]
            cell = self._cut("".join(cells))
            places = iter(places_in(self.model.normaliser, cells)) if len(cells) > 1 else itertools.repeat(0)
            for place, words in enumerate(cell.sentences):
                if place:
                    close()
                open_words += words
                open_rows += [number - begin + next(places) for _ in words]
            if cell.ends:
                close()
            if max(len(open_words), number - begin - BLOCK_ROWS) > MAX_SENTENCE_WORDS:
                raise UserError(
                    f"The sentence at row {number + 1} has more than {MAX_SENTENCE_WORDS:,} words or rows: give "
                    f"{argument('sentence')} a column with the number of the sentence, or {argument('text')} a "
                    "column with the name of the text."
                )
        close()
        if before is not None:
            yield self._score(segments, seen[before.text] - begin)

    def _of_each(self, reader: Any, segments: Sequence[_Segment]) -> list[Any]:
        """Let a reader read sentences, text by text."""
        found: list[Any] = []
        for segment in segments:
            if segment.begins_text:
                reader.begin_document()
            found += reader.score(segment.sentences)
        return found

    def _score(self, segments: Sequence[_Segment], num_rows: int) -> Block:
        """Score the words, and sum them up for every row."""
        scores: list[SequenceScores] = self._of_each(self.reader, segments)
        rows = [np.array(one, dtype=np.int64) for segment in segments for one in segment.rows]
        word_N = [word for segment in segments for sentence in segment.sentences for word in sentence]
        row_N = np.concatenate([np.zeros(0, dtype=np.int64), *rows])
        surprisal_N = -BITS_PER_NAT * np.concatenate([np.zeros(0), *(one.log_probs[:-1] for one in scores)])
        oov_N = np.concatenate([np.zeros(0, dtype=bool), *(one.oov[:-1] for one in scores)])
        of_word = {word: self._about(word) for word in set(word_N)}
        known_N = np.fromiter((of_word[word].is_known for word in word_N), bool, len(word_N))
        is_word_N = np.fromiter((of_word[word].is_word for word in word_N), bool, len(word_N))
        log10_N = np.fromiter((of_word[word].log10_frequency for word in word_N), float, len(word_N))

        surprisal_N[~known_N & (oov_N | (not self.measuring.spell))] = np.nan

        surprisal_R = _sum_up(surprisal_N, row_N, num_rows)
        unknown_R = np.bincount(row_N[~known_N], minlength=num_rows) > 0
        end_S = -BITS_PER_NAT * np.array([one.log_probs[-1] for one in scores])
        self._count(surprisal_R, unknown_R, end_S)
        columns: Block = [surprisal_R, _sum_up(surprisal_N[is_word_N], row_N[is_word_N], num_rows)]
        if self._entropies is not None:
            entropies = self._of_each(self._entropies, segments)
            entropy_N = BITS_PER_NAT * np.concatenate([np.zeros(0), *(one[:-1] for one in entropies)])
            entropy_R = np.full(num_rows, np.nan)
            # That before its first word: rows come in order, and of several values for one place the last one stays.
            entropy_R[row_N[::-1]] = entropy_N[::-1]
            columns.append(entropy_R)
        columns += [
            _sum_up(log10_N[is_word_N], row_N[is_word_N], num_rows),
            unknown_R,
            np.bincount(row_N, minlength=num_rows),
        ]
        return columns

    def _count(self, surprisal_R: Floats, unknown_R: NDArray[np.bool_], end_S: Floats) -> None:
        empty_R = np.isnan(surprisal_R)
        self.totals.num_rows += len(surprisal_R)
        self.totals.num_sentences += len(end_S)
        self.totals.num_unknown += int(unknown_R.sum())
        self.totals.num_empty += int(empty_R.sum())
        self.totals.surprisal += float(surprisal_R[~empty_R].sum())
        self.totals.end += float(end_S.sum())


class _About(NamedTuple):
    """What a word is, wherever it stands."""

    is_known: bool
    is_word: bool
    log10_frequency: float  # NaN if nobody knows

    @classmethod
    def of(cls, model: Model, word: str) -> _About:
        log10_frequency = model.log10_frequency(word)
        return cls(model.is_known(word), is_word(word), math.nan if log10_frequency is None else log10_frequency)


def _numbered(rows: Iterable[Row]) -> Iterator[tuple[int, list[Row]]]:
    """Put rows that are glued together, and number the first of each group from 0."""
    group: list[Row] = []
    begin = 0
    for number, row in enumerate(rows):
        if group and not (row.is_glued and row[1:3] == group[-1][1:3] and len(group) < MAX_SENTENCE_WORDS):
            yield begin, group
            group, begin = [], number
        group.append(row)
    if group:
        yield begin, group


def _sum_up(value_N: Floats, row_N: NDArray[np.int64], num_rows: int) -> Floats:
    """Sum values by row; a row with nothing to sum up is empty."""
    sum_R: Floats = np.bincount(row_N, value_N, num_rows).astype(np.float64)
    sum_R[np.bincount(row_N, minlength=num_rows) == 0] = np.nan
    return sum_R


def _whole(word: str, number: int) -> str:
    """Refuse what is no text: half of a character, which no model can read."""
    if not word.isascii():
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"Row {number} has half of a character (a lone surrogate) in its word: fix the text, or leave the row "
                "empty."
            ) from error
    return word


def _returns(number: int, text: Hashable, last: int) -> UserError:
    shown = ", ".join(map(str, text)) if isinstance(text, tuple) else str(text)
    return UserError(
        f"Row {number} belongs to the text '{shown:.60}', whose rows ended at row {last}: put the rows of a text "
        f"next to each other in reading order, or give {argument('text')} one more column, so that each text has its "
        "own name."
    )
