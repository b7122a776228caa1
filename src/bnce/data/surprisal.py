"""The surprisal of every word of a table, in bits: `bnce surprisal` for files, `bnce.surprisal` in memory.

Cells stand in the text with a blank between them, and no word of a model spans a blank. So a cell that is cut by itself
has the words that it has in the text, whatever a table calls a word: "England," is a word and a mark, "New York" two.
Cells without a blank between them ("do" and "n't") are cut as one, and each word goes to the cell in which it begins.
`</s>` closes every sentence for the model; its surprisal is no part of any word's.

Legend: R rows, S sentences, N their words, M the words with every `</s>`. NaN is an empty cell.
"""

from __future__ import annotations

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
from bnce.data.tables import ArrowTable, Table, as_list, find_format, read_table
from bnce.engine.network import Mode, Query
from bnce.errors import UserError, argument, counted
from bnce.scoring.loading import load
from bnce.scoring.model import Model
from bnce.scoring.results import add_up
from bnce.scoring.run_model import RunModel
from bnce.text.normalise import Normaliser
from bnce.text.tokenised import TokenisedSigns

BITS_PER_NAT = 1 / math.log(2)
MANY_UNKNOWN = 0.2  # of the rows
MIN_REFUSED = 100  # rows: fewer may be rare words by chance
LONG_RUN = 50  # rows with the same value, on average: that column may name the text
_TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False, "none": False}
_PROBE = "Q"  # a word without marks, put behind a cell to see whether the sentence goes on there

Floats = NDArray[np.float64]
Cut = Callable[[str], tuple[list[list[str]], bool]]


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


class Layout:
    """The words of a table by text and sentence, and the row in which each begins.

    Where `splits`, sentences also end where they do in the training text. Rows of one text are neighbours.
    """

    def __init__(self, table: Table, normaliser: Normaliser, options: Options, splits: bool) -> None:
        for name in options.columns:
            if name in table.names:
                hint = f"remove it, or give other names with {argument('prefix')}"
                raise UserError(f"{table.name} already has a column '{name}': {hint}.")
        cells = table.words(options.word)
        self.num_rows = len(cells)
        text_R = [*zip(*map(table.column, options.text), strict=True)] if options.text else [()] * self.num_rows
        sentence_R = table.column(options.sentence) if options.sentence else [None] * self.num_rows
        place_R = list(zip(text_R, sentence_R, strict=True))
        is_glued_R = _truths(table, options.glued) if options.glued else [False] * self.num_rows
        begins = [
            row for row, place in enumerate(place_R) if not (is_glued_R[row] and row and place == place_R[row - 1])
        ]
        self.sentences: list[list[str]] = []
        self.num_sentences_T: list[int] = []
        self.signs = TokenisedSigns(normaliser)
        rows_N: list[int] = []
        cut, last, is_open = cell_cutter(normaliser, splits), dict[Any, int](), False
        for begin, end in itertools.pairwise([*begins, self.num_rows]):
            text = text_R[begin]
            if not begin or text != text_R[begin - 1]:
                if repr(text) in last:
                    raise UserError(
                        f"Row {begin + 1} belongs to the text '{', '.join(map(str, text)):.60}', whose rows ended at "
                        f"row {last[repr(text)]}: put the rows of a text next to each other in reading order, or give "
                        f"{argument('text')} one more column, so that each text has its own name."
                    )
                self.num_sentences_T.append(0)
            last[repr(text)] = end
            whole = "".join(cells[begin:end])
            self.signs.look(whole, 1)
            sentences, ends = cut(whole)
            is_open = is_open and place_R[begin] == place_R[begin - 1]
            for words in filter(None, sentences):
                if not is_open or words is not sentences[0]:
                    self.sentences.append([])
                    self.num_sentences_T[-1] += 1
                self.sentences[-1] += words
                is_open = True
            is_open = is_open and not ends
            rows_N += [begin + place for place in places_in(cut, cells[begin:end])]
        self.row_N = np.array(rows_N, dtype=np.int64)


def _truths(table: Table, name: str) -> list[bool]:
    values = table.column(name)
    truths = [_TRUTHS.get(str(value).lower()) for value in values]
    if None in truths:
        row = truths.index(None)
        where = f"{table.name}, row {row + 1} has {values[row]!r:.40} in the column of {argument('glued')}"
        raise UserError(f"{where}: give true or false.")
    return [bool(one) for one in truths]


def cell_cutter(normaliser: Normaliser, splits: bool) -> Cut:
    """Make what cuts a cell into its words by sentence, the first of which goes on; and tells if the last one ends."""
    normaliser = normaliser if splits else replace(normaliser, sentences="lines")

    @functools.lru_cache(2**16)  # words repeat
    def cut(cell: str) -> tuple[list[list[str]], bool]:
        *whole, last = normaliser(f"{cell} {_PROBE}")
        ends = bool(whole) and len(last) == 1
        return whole if ends else [*whole, last[:-1]], ends

    return cut


def places_in(cut: Cut, cells: Sequence[str]) -> list[int]:
    """Tell for every word of cells that are written as one in which of them it begins: it is there with this one."""
    num_words = [sum(map(len, cut("".join(cells[:end]))[0])) for end in range(1, len(cells) + 1)]
    # What ends a cell may be part of a word when more follows: only words that stay are counted.
    kept = list(itertools.accumulate(reversed(num_words), min))[::-1]
    new = (after - before for before, after in itertools.pairwise([0, *kept]))
    return [place for place, number in enumerate(new) for _ in range(number)]


def measure(model: Model, layout: Layout, options: Options) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Compute the columns of all rows; and sums over these, with the mode of their probabilities."""
    mode, row_N, num_rows = model.choose_mode(options.mode), layout.row_N, layout.num_rows
    if options.spell:
        model.refuse_spelling()
    sentences = Tokens.of(layout.sentences)
    # A text is one sequence: its sentences have those before them as context.
    num_sentences_T = np.array(layout.num_sentences_T, dtype=np.int64)
    text = replace(sentences, num_words_S=add_up(sentences.num_words_S, num_sentences_T))
    scores = model.log_probs(text, mode=mode, spell=options.spell)
    is_end_M = np.zeros(len(text.words), dtype=bool)
    is_end_M[np.cumsum(sentences.num_words_S) - 1] = True
    surprisal_M = -BITS_PER_NAT * scores.log_prob_N
    surprisal_N, end = surprisal_M[~is_end_M], float(surprisal_M[is_end_M].sum())
    words = list(itertools.chain.from_iterable(layout.sentences))
    known_N, is_word_N, log10_N = _describe(model, words)
    surprisal_N[~known_N & (scores.oov_N[~is_end_M] | (not options.spell))] = np.nan
    unknown_R, surprisal_R = np.bincount(row_N[~known_N], minlength=num_rows) > 0, _sum_up(surprisal_N, row_N, num_rows)
    columns: list[NDArray[Any]] = [surprisal_R, _sum_up(surprisal_N[is_word_N], row_N[is_word_N], num_rows)]
    if options.entropy:
        entropy_R = np.full(num_rows, np.nan)
        # That before its first word: rows come in order, and of several values for one place the last one stays.
        entropy_R[row_N[::-1]] = _entropies(model, text)[~is_end_M][::-1]
        columns.append(entropy_R)
    columns += [_sum_up(log10_N[is_word_N], row_N[is_word_N], num_rows), unknown_R]
    columns.append(np.bincount(row_N, minlength=num_rows))
    totals = {"num_rows": num_rows, "num_texts": len(layout.num_sentences_T), "num_sentences": len(sentences)}
    totals |= {"num_unknown": int(unknown_R.sum()), "num_empty": int(np.isnan(surprisal_R).sum())}
    sums = {"mode": mode, "surprisal": float(np.nansum(surprisal_R)), "end": end}
    return dict(zip(options.columns, columns, strict=True)), {**totals, **sums}


def _entropies(model: Model, text: Tokens) -> Floats:
    """Compute the entropy before every word of texts, in bits: exactly, −Σ p log p over the vocabulary."""
    if not isinstance(model, RunModel):
        raise UserError(f"'{model.name}' is not a run, and only runs tell entropies: leave out {argument('entropy')}.")
    values, _ = model.answer(text.encoded(model.vocabulary), Query(entropy=True))
    assert values.entropy_N is not None
    return BITS_PER_NAT * values.entropy_N.astype(np.float64)


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
    """Measure the surprisal of words in reading order, each with its marks.

    Words alone, as a list or an array, give a dict of NumPy arrays, in which NaN is an empty cell; `text`, `sentence`
    and `glued` are values then, one per word. A table gives a table with new columns, and `word`, `text`, `sentence`
    and `glued` name its columns (`text` one or several): a pandas DataFrame gives a DataFrame with the same index; what
    gives its columns to Arrow, as tables of polars and DuckDB do, an Arrow table.
    """
    table: Table
    if not hasattr(words, "columns"):
        given = {"text": text, "sentence": sentence, "glued": glued}
        columns = {"word": as_list(words)} | {name: as_list(one) for name, one in given.items() if one is not None}
        for name, values in columns.items():
            if len(values) != (number := len(columns["word"])):
                raise UserError(f"There are {number} words, and {name} is {len(values)} values: give one per word.")
        table = Table("The table", list(columns), columns.__getitem__)
        word, (text, sentence, glued) = "word", (name if name in columns else None for name in given)
    elif hasattr(words, "iloc"):  # a frame of pandas, which is not imported for it
        table = Table("The table", words.columns, words.__getitem__)
    else:
        import pyarrow

        table = ArrowTable(pyarrow.table(words))
    texts = [text] if isinstance(text, str) else text or []
    options = Options(word, texts, sentence, glued, mode, spell, entropy, prefix)
    model = model if isinstance(model, Model) else load(model)
    added, _ = measure(model, Layout(table, model.normaliser, options, sentence is None), options)
    if isinstance(table, ArrowTable):
        return table.with_columns(added)
    return words.assign(**added) if hasattr(words, "columns") else added


def add_surprisal(
    model: Model, path: str, out: str | Path, options: Options, notice: Callable[[str], object] = lambda sentence: None
) -> dict[str, Any]:
    """Write a table again with the new columns; give its format, their names, and sums over all rows."""
    out, form = Path(out), find_format(path)
    if form is None:
        raise UserError(f"The name of the table '{path}' does not tell its format: give a name such as words.tsv.")
    made = "tsv" if form == "text" else form
    if find_format(str(out)) not in (made, None):
        hint = "of the same format" if form != "text" else "that ends in .tsv"
        raise UserError(f"The format of '{path}' is {form}, and the output is '{out}': give an output {hint}.")
    files.check_place(out)
    splits = options.sentence is None
    if form == "text":
        options = replace(options, text=options.text or ("text",), sentence=options.sentence or "line")
    table = read_table(path, form)
    layout = Layout(table, model.normaliser, options, splits)
    added, totals = measure(model, layout, options)
    for sentence in _warnings(table, layout, options, totals["num_unknown"]):
        notice(sentence)
    table.write(out, added)
    return {**totals, "columns": list(added), "format": form}


def _warnings(table: Table, layout: Layout, options: Options, num_unknown: int) -> Iterator[str]:
    """Say what makes surprisals mean something else than is expected; refuse a column that has no words."""
    num_filled = len(set(layout.row_N.tolist()))
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
    for name in () if options.text else dict.fromkeys(table.names):
        runs = [repr(value) for value, _ in itertools.groupby(table.column(name))]
        if 1 < len(runs) == len(set(runs)) and layout.num_rows >= LONG_RUN * len(runs):
            yield (
                f"All {layout.num_rows:,} rows are read as one text, but the column '{name}' has only {len(runs)} "
                f"different values, each in rows that follow each other. If it names the text, give "
                f"{argument('text', name)}: then no text is context of another."
            )
