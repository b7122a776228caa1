"""The surprisal of every word of a table, in bits: `bnce surprisal` for files, `bnce.surprisal` in memory.

Cells stand in the text with a blank between them, and no word of a model spans a blank. So a cell that is cut by itself
has the words that it has in the text, whatever a table calls a word: "England," is a word and a mark, "New York" two.
Cells without a blank between them ("do" and "n't") are cut as one, and each word goes to the cell in which it begins.
`</s>` closes every sentence for the model; its surprisal is no part of any word's.

Legend: R rows, S sentences, N their words, M the words with every `</s>`. NaN is an empty cell.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce import files
from bnce.corpus.cutter import Tokens
from bnce.corpus.vocabulary import UNK
from bnce.data.tables import (
    TEXT,
    TEXT_COLUMNS,
    Table,
    TextTable,
    arrow_columns,
    as_list,
    as_table,
    find_format,
    read_table,
)
from bnce.engine.network import Mode, Query
from bnce.errors import UserError, argument, counted
from bnce.scoring.interpolation import components_of
from bnce.scoring.loading import load
from bnce.scoring.model import Model
from bnce.scoring.results import WordScores, add_up
from bnce.scoring.run_model import RunModel
from bnce.text.normalise import Normaliser
from bnce.text.tokenised import TokenisedSigns

BITS_PER_NAT = 1 / math.log(2)
NUM_CHECKED = 1000  # words at which the constant Z is compared with the softmax
MANY_UNKNOWN = 0.2  # of the rows
MIN_REFUSED = 100  # rows: fewer may be rare words by chance
LONG_RUN = 50  # rows with the same value, on average: that column may name the text
_TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False, "none": False}
_PROBE = "Q"  # a word without marks, put behind a cell to see whether the sentence goes on there

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """What is measured, and which columns of a table are what."""

    word: str = "word"
    text: Sequence[str] = ()
    sentence: str | None = None
    glued: str | None = None
    mode: Mode | None = None
    spell: bool = False
    entropy: bool = False
    prefix: str = ""

    @property
    def columns(self) -> list[str]:
        """The names of the new columns."""
        names = ["surprisal_bits", "word_surprisal_bits", *(["entropy_bits"] if self.entropy else [])]
        return [f"{self.prefix}{name}" for name in (*names, "log10_frequency", "is_unknown", "num_tokens")]


@dataclass
class Rows:
    """Words as they are shown, and what each belongs to: rows of one text, or sentence, are neighbours."""

    words: list[str]
    texts: list[Any]
    sentences: list[Any]
    glued: list[bool]  # to the row before, without a blank
    splits: bool = True  # whether sentences also end where they do in the training text

    @classmethod
    def of(cls, name: str, words: list[Any], texts: list[Any], sentences: list[Any], glued: list[Any]) -> Rows:
        """Take values, one for each row, and refuse what has another meaning."""
        for number, (word, text) in enumerate(zip(words, texts, strict=True), start=1):
            where = f"{name}, row {number}"
            if not isinstance(word, str | None):
                raise UserError(f"{where} has {word!r:.60} as its word: it must be text; name the column of words.")
            if word and not word.isascii() and word.encode(errors="ignore").decode() != word:
                raise UserError(
                    f"{where} has half of a character (a lone surrogate) in its word: fix the text, or leave the row "
                    "empty."
                )
            if any(isinstance(one, list | dict) for one in (text if isinstance(text, tuple) else [text])):
                raise UserError(f"{where} has {text!r:.60} as its text: name a column of numbers or of text.")
        truths = [_TRUTHS.get(str(value).lower()) for value in glued]
        if None in truths:
            number = truths.index(None) + 1
            raise UserError(
                f"{name}, row {number} has {glued[number - 1]!r:.40} in the column of {argument('glued')}: give true "
                "or false."
            )
        return cls([word or "" for word in words], texts, sentences, [bool(one) for one in truths])

    @classmethod
    def of_table(cls, table: Table, options: Options) -> Rows:
        """Take the columns of a table; one of those that are to be added must not be there."""
        for name in options.columns:
            if name in table.names:
                raise UserError(
                    f"{table.name} already has a column '{name}': remove it, or give other names with "
                    f"{argument('prefix')}."
                )
        words = table.column(options.word)
        nothing: list[Any] = [None] * len(words)
        texts = list(zip(*map(table.column, options.text), strict=True)) if options.text else nothing
        sentences, glued = (table.column(name) if name else nothing for name in (options.sentence, options.glued))
        return cls.of(table.name, words, texts, sentences, glued)

    def groups(self) -> Iterator[tuple[int, list[str]]]:
        """Give the first row of each group that is glued together, and its words."""
        begin = 0
        for row in range(1, len(self.words) + 1):
            if row == len(self.words) or not (self.glued[row] and self.goes_on(row)):
                yield begin, self.words[begin:row]
                begin = row

    def goes_on(self, row: int) -> bool:
        """Say whether a row is of the text and the sentence of the one before it."""
        return all(values[row] == values[row - 1] for values in (self.texts, self.sentences))


@dataclass
class Measured:
    """The new columns, sums over all rows, and how the constant Z compares with the softmax."""

    columns: dict[str, NDArray[Any]]
    totals: dict[str, Any]
    mode: Mode
    check: dict[str, Any] | None


class Layout:
    """The words of some rows by text and sentence, and the row in which each begins."""

    def __init__(self, rows: Rows, normaliser: Normaliser) -> None:
        self.num_rows = len(rows.words)
        self.texts: list[list[list[str]]] = []
        self.signs = TokenisedSigns(normaliser)
        place_N: list[int] = []
        cut, last, is_open = cell_cutter(normaliser, rows.splits), dict[Any, int](), False
        for begin, cells in rows.groups():
            text = rows.texts[begin]
            if not begin or text != rows.texts[begin - 1]:
                if text in last:
                    shown = ", ".join(map(str, text)) if isinstance(text, tuple) else text
                    raise UserError(
                        f"Row {begin + 1} belongs to the text '{shown!s:.60}', whose rows ended at row "
                        f"{last[text] + 1}: put the rows of a text next to each other in reading order, or give "
                        f"{argument('text')} one more column, so that each text has its own name."
                    )
                self.texts.append([])
                is_open = False
            is_open = is_open and rows.goes_on(begin)
            last[text] = begin + len(cells) - 1
            whole = "".join(cells)
            self.signs.look(whole, 1)
            sentences, ends = cut(whole)
            places = iter(places_in(normaliser, cells)) if len(cells) > 1 else itertools.repeat(0)
            for number, words in enumerate(sentences):
                is_open = is_open and not number
                if words:
                    self.texts[-1] += [] if is_open else [[]]
                    self.texts[-1][-1] += words
                    is_open = True
                place_N += [begin + next(places) for _ in words]
            is_open = is_open and not ends
        self.row_N = np.array(place_N, dtype=np.int64)
        self.words = [word for sentences in self.texts for words in sentences for word in words]


def measure(model: Model, layout: Layout, options: Options) -> Measured:
    """Compute the columns of all rows."""
    mode, row_N, num_rows = model.choose_mode(options.mode), layout.row_N, layout.num_rows
    # A text is one sequence: its sentences have those before them as context.
    sentences = Tokens.of(itertools.chain.from_iterable(layout.texts))
    text = replace(sentences, num_words_S=add_up(sentences.num_words_S, np.array([*map(len, layout.texts)], dtype=int)))
    scores = model.log_probs(text, mode=mode, spell=options.spell)
    is_end_M = np.zeros(len(text.words), dtype=bool)
    is_end_M[np.cumsum(sentences.num_words_S) - 1] = True
    surprisal_M = -BITS_PER_NAT * scores.log_prob_N
    surprisal_N, end = surprisal_M[~is_end_M], float(surprisal_M[is_end_M].sum())
    known_N, is_word_N, log10_N = _describe(model, layout.words)
    surprisal_N[~known_N & (scores.oov_N[~is_end_M] | (not options.spell))] = np.nan
    unknown_R, surprisal_R = unknown_rows(model, layout), _sum_up(surprisal_N, row_N, num_rows)
    columns: list[NDArray[Any]] = [surprisal_R, _sum_up(surprisal_N[is_word_N], row_N[is_word_N], num_rows)]
    if options.entropy:
        entropy_R = np.full(num_rows, np.nan)
        # That before its first word: rows come in order, and of several values for one place the last one stays.
        entropy_R[row_N[::-1]] = BITS_PER_NAT * _entropies(model, text)[~is_end_M][::-1]
        columns.append(entropy_R)
    columns += [_sum_up(log10_N[is_word_N], row_N[is_word_N], num_rows), unknown_R]
    columns.append(np.bincount(row_N, minlength=num_rows))
    totals = {"num_rows": num_rows, "num_texts": len(layout.texts), "num_sentences": len(sentences)}
    totals |= {"num_unknown": int(unknown_R.sum()), "num_empty": int(np.isnan(surprisal_R).sum())}
    sums = {"surprisal": float(np.nansum(surprisal_R)), "end": end}
    named, check = dict(zip(options.columns, columns, strict=True)), _check(model, text, scores, options.spell)
    return Measured(named, {**totals, **sums}, mode, check)


def _check(model: Model, text: Tokens, scores: WordScores, spell: bool) -> dict[str, Any] | None:
    """Compare the constant Z with the softmax at the first words."""
    if scores.mode == "normalised":
        return None
    lengths = np.diff(np.minimum(np.cumsum(text.num_words_S), NUM_CHECKED), prepend=0)
    exact = model.log_probs(Tokens(text.words[:NUM_CHECKED], lengths), mode="normalised", spell=spell)
    difference = scores.log_prob_N[:NUM_CHECKED] - exact.log_prob_N
    mean, most = (float(difference.mean()), float(np.abs(difference).max())) if len(difference) else (0.0, 0.0)
    return {"num_positions": len(difference), "mean_difference": mean, "max_difference": most}


def _entropies(model: Model, text: Tokens) -> Floats:
    """Compute the entropy before every word of texts, in nats: exactly, −Σ p ln p over the vocabulary."""
    known = {frozenset(part.vocabulary.words): part.name for part in components_of(model)}
    if len(known) > 1:
        first, second = list(known.values())[:2]
        raise UserError(
            f"'{first}' and '{second}' have different vocabularies, so the probabilities of their mixture do not "
            f"sum to 1: leave out {argument('entropy')}, or mix models with the same vocabulary."
        )
    if isinstance(model, RunModel):
        values, _ = model.answer(text.encoded(model.vocabulary), Query(entropy=True))
        assert values.entropy_N is not None
        return values.entropy_N.astype(np.float64)
    found: list[float] = []
    for words in text:
        state = model.start()
        for word in words:
            log_prob_V = model.distribution(state, mode="normalised")
            log_prob_V = log_prob_V[log_prob_V > -np.inf]
            found.append(-float(np.exp(log_prob_V) @ log_prob_V))
            state = model.advance(state, word)
    return np.array(found, dtype=np.float64)


def unknown_rows(model: Model, layout: Layout) -> NDArray[np.bool_]:
    """Say which rows have a word or a mark that the model does not know."""
    known_N, _, _ = _describe(model, layout.words)
    return np.bincount(layout.row_N[~known_N], minlength=layout.num_rows) > 0


def surprisal(
    model: Model | str | Path,
    words: Any,
    *,
    word: str = "word",
    text: Any = None,
    sentence: Any = None,
    glued: Any = None,
    mode: Mode | None = None,
    spell: bool = False,
    entropy: bool = False,
    prefix: str = "",
) -> Any:
    """Measure the surprisal of words in reading order, each with its marks; the result has the type of `words`.

    A list or NumPy array gives a dict of NumPy arrays, in which NaN is an empty cell. A pandas Series or DataFrame
    gives a DataFrame with the same index; what gives its columns to Arrow, as tables of polars and DuckDB do, an Arrow
    table. Of a table `word`, `text`, `sentence` and `glued` name columns (`text` one or several); else the last three
    are values, one per word.
    """
    model = model if isinstance(model, Model) else load(model)
    if isinstance(words, str | bytes):
        raise UserError("The words are one string: give a list of them, such as ['a', 'word.'].")
    options = Options(word, (), sentence, glued, mode, spell, entropy, prefix)
    table = as_table(words)
    if table is not None:
        options = replace(options, text=[text] if isinstance(text, str) else list(text or []))
        rows = Rows.of_table(table, options)
    else:
        shown = as_list(words)
        given = {"text": text, "sentence": sentence, "glued": glued}
        rows = Rows.of("The table", shown, *(_one_each(values, len(shown), name) for name, values in given.items()))
    rows.splits = sentence is None
    added = measure(model, Layout(rows, model.normaliser), options).columns
    if table is not None:
        return table.with_columns(added)
    if hasattr(words, "iloc"):
        return words.to_frame().assign(**added)
    if not hasattr(words, "__arrow_c_stream__") and not hasattr(words, "__arrow_c_array__"):
        return added
    import pyarrow

    return pyarrow.table(arrow_columns(added))


def add_surprisal(
    model: Model, path: str, out: str | Path, options: Options, notice: Callable[[str], object] = lambda sentence: None
) -> tuple[str, Measured]:
    """Write a table again with the new columns; give its format and what was measured."""
    out, form = Path(out), find_format(path)
    out_form = find_format(str(out)) or ("tsv" if form == TEXT else form)
    if form is None:
        raise UserError(f"The name of the table '{path}' does not tell its format: give a name such as words.tsv.")
    if out_form is None or out_form == TEXT or form not in (out_form, TEXT):
        hint = "of the same format" if form != TEXT else "that ends in .tsv, .csv, .parquet or .arrow"
        raise UserError(f"The format of '{path}' is {form}, and the output is '{out}': give an output {hint}.")
    files.check_place(out)
    if form == TEXT and replace(options, mode=None, spell=False, entropy=False, prefix="") != Options():
        raise UserError(
            f"'{path}' is plain text, which has no columns: leave out {argument('word')}, {argument('text')}, "
            f"{argument('sentence')} and {argument('glued')}; a blank line separates texts."
        )
    table = read_table(path, form, out_form)
    places = replace(options, text=TEXT_COLUMNS[:1], sentence=TEXT_COLUMNS[1]) if form == TEXT else options
    rows = Rows.of_table(table, places)
    rows.splits = options.sentence is None
    if isinstance(table, TextTable):
        table.check_words(rows.words)
    layout = Layout(rows, model.normaliser)
    for sentence in _warnings(model, table, rows, layout, options):
        notice(sentence)
    measured = measure(model, layout, options)
    table.write(out, measured.columns)
    return form, measured


def _warnings(model: Model, table: Table, rows: Rows, layout: Layout, options: Options) -> Iterator[str]:
    """Say what makes surprisals mean something else than is expected; refuse a column that has no words."""
    num_unknown, num_filled = int(unknown_rows(model, layout).sum()), len(set(layout.row_N.tolist()))
    if num_unknown == num_filled >= MIN_REFUSED and not options.spell:
        raise UserError(
            f"The model knows no word of the column '{options.word}' of {table.name}: all {num_filled:,} rows are "
            f"unknown. Name the column that has the words with {argument('word')}."
        )
    if num_unknown > MANY_UNKNOWN * num_filled:
        yield (
            f"The model does not know {num_unknown:,} of {counted(num_filled, 'row')} ({num_unknown / num_filled:.0%}):"
            " use a run of such text, or with a larger vocabulary."
        )
    if (looks := layout.signs.notice(table.name)) is not None:
        yield f"{looks} Use the text from before tokenisation, or name a column with {argument('glued')}."
    if not options.text and not isinstance(rows.texts[0] if rows.texts else 0, tuple):
        for name in dict.fromkeys(table.names):
            runs = [repr(value) for value, _ in itertools.groupby(table.column(name))]
            if 1 < len(runs) == len(set(runs)) and len(rows.words) >= LONG_RUN * len(runs):
                yield (
                    f"All {len(rows.words):,} rows are read as one text, but the column '{name}' has only "
                    f"{len(runs)} different values, each in rows that follow each other. If it names the text, give "
                    f"{argument('text', name)}: then no text is context of another."
                )


def cell_cutter(normaliser: Normaliser, splits: bool) -> Callable[[str], tuple[tuple[tuple[str, ...], ...], bool]]:
    """Make what cuts a cell into its words by sentence, the first of which goes on; and tells if the last one ends."""
    normaliser = normaliser if splits else replace(normaliser, sentences="lines")

    @functools.lru_cache(2**16)  # words repeat
    def cut(cell: str) -> tuple[tuple[tuple[str, ...], ...], bool]:
        *whole, last = normaliser(f"{cell} {_PROBE}")
        ends = bool(whole) and len(last) == 1
        return tuple(map(tuple, whole if ends else (*whole, last[:-1]))), ends

    return cut


def places_in(normaliser: Normaliser, cells: Sequence[str]) -> list[int]:
    """Tell for every word of some cells that are written as one in which of them it begins, by counting letters."""
    lines = replace(normaliser, sentences="lines")
    if normaliser.tokens == "spoken":  # words are not written as they are said: a cell has those that are new with it
        num_words = [sum(map(len, lines("".join(cells[:end])))) for end in range(1, len(cells) + 1)]
        places: list[int] = []
        for place, number in enumerate(num_words):
            places += [place] * (min(number, num_words[-1]) - len(places))
        return places

    def fold(text: str) -> str:
        return text.lower() if normaliser.lowercase else text

    # Numbers as they are written, and `</s>` too: the words of a model may be shorter or longer.
    whole = "".join(cells)
    is_cut = normaliser.tokens == "whitespace"
    found = [fold(whole).split()] if is_cut else replace(lines, numbers="keep")(whole)
    begins = itertools.accumulate((len(word) for words in found for word in words), initial=0)
    ends = list(itertools.accumulate(len("".join(fold(cell).split())) for cell in cells))
    return [bisect.bisect_right(ends, begin) for begin, _ in zip(begins, itertools.chain(*found), strict=False)]


def _describe(model: Model, words: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Floats]:
    """Say of every word whether the model knows it, whether it is a word and no mark, and log10 of its frequency."""
    about = {word: (model.is_known(word), any(map(str.isalnum, word))) for word in set(words)}
    known, is_word = zip(*(about[word] for word in words), strict=True) if words else ((), ())
    log10_N, count_V = np.full(len(words), np.nan), model.target_counts
    if count_V is not None:
        word_N = model.vocabulary.encode(words)
        was_seen_N = (word_N != UNK) & (count_V[word_N] > 0)
        log10_N[was_seen_N] = np.log10(count_V[word_N[was_seen_N]] / count_V.sum())
    return np.array(known, dtype=bool), np.array(is_word, dtype=bool), log10_N


def _sum_up(value_N: Floats, row_N: NDArray[np.int64], num_rows: int) -> Floats:
    """Sum values by row; a row with nothing to sum up is empty."""
    sum_R: Floats = np.bincount(row_N, value_N, num_rows).astype(np.float64)
    sum_R[np.bincount(row_N, minlength=num_rows) == 0] = np.nan
    return sum_R


def _one_each(values: Any, num_words: int, name: str) -> list[Any]:
    if values is None:
        return [None] * num_words
    found = [] if isinstance(values, str) else as_list(values)
    if isinstance(values, str) or len(found) != num_words:
        shown = f"'{values}'" if isinstance(values, str) else f"{len(found)} values"
        raise UserError(f"There are {num_words} words, and {name} is {shown}: give one value per word.")
    return found
