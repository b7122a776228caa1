"""`bnce.surprisal`: words in memory, as a list, an array, a pandas or Arrow column, or a whole table of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bnce.errors import UserError
from bnce.scoring.loading import load
from bnce.scoring.model import Model
from bnce.tables.columnar import arrow_columns, rows_of
from bnce.tables.columns import Block, Measuring, Row
from bnce.tables.delimited import truth
from bnce.tables.measure import Measurer
from bnce.tables.readers import open_reader
from bnce.tables.surprisal import Columns, check_columns


class Named(NamedTuple):
    """Which columns are what: names of columns of a table, or values, one per word."""

    word: str
    text: Any
    sentence: Any
    glued: Any


def surprisal(
    model: Model | str | Path,
    words: Any,
    *,
    word: str = "word",
    text: Any = None,
    sentence: Any = None,
    glued: Any = None,
    context: str = "text",
    unnormalised: bool = False,
    spell: bool = False,
    base: int | str = 2,
    entropy: bool = False,
    ends: bool = False,
    prefix: str = "",
) -> Any:
    """Measure words in reading order, each as it is shown, its marks included; the result has the kind of `words`.

    A list or NumPy array gives a dict of NumPy arrays, in which NaN is an empty cell. A pandas Series or DataFrame
    gives a DataFrame with the same index, an Arrow array or table a table. Of a table `word`, `text`, `sentence`
    and `glued` name columns (`text` one or several); else the last three are values, one per word.
    """
    if not isinstance(model, Model):
        model = load(model)
    measuring = Measuring(context, not unnormalised, spell, str(base), entropy, ends, prefix)
    given = _Given.of(words)
    rows, split = given.rows(Named(word, text, sentence, glued), measuring), sentence is None
    blocks = list(Measurer(model, measuring, open_reader(model, measuring), split).measure(rows))
    empty: Block = [np.zeros(0, dtype=kind) for kind in measuring.columns.values()]
    return given.with_columns(
        list(measuring.columns), [np.concatenate(parts) for parts in zip(empty, *blocks, strict=True)]
    )


class _Given:
    """Words that are a sequence of strings."""

    def __init__(self, words: Any) -> None:
        self.words = words

    @staticmethod
    def of(words: Any) -> _Given:
        """See what the words are, by what they can do: neither pandas nor Arrow is imported for it."""
        if isinstance(words, str | bytes):
            raise UserError("The words are one string: give a list of them, such as ['a', 'word.'].")
        if hasattr(words, "iloc"):
            return _Frame(words) if hasattr(words, "assign") else _Series(words)
        if hasattr(words, "to_arrow"):  # polars
            words = words.to_arrow()
        if hasattr(words, "append_column"):
            return _ArrowTable(words)
        if type(words).__module__.startswith("pyarrow"):
            return _ArrowArray(words)
        return _Given(words)

    def rows(self, named: Named, measuring: Measuring) -> Iterator[Row]:
        """Give the rows; all but the words are values, one for each."""
        words = _values(self.words)
        num_words = len(words)
        texts = _one_each(named.text, num_words, "text")
        sentences = _one_each(named.sentence, num_words, "sentence")
        glued = _one_each(named.glued, num_words, "glued")
        for number, (shown, of_text, of_sentence, is_glued) in enumerate(
            zip(words, texts, sentences, glued, strict=True), start=1
        ):
            yield Row(_word(shown, number), of_text, of_sentence, truth(is_glued, number, "The table"))

    def with_columns(self, names: Sequence[str], block: Block) -> Any:
        """Give the columns by name."""
        return dict(zip(names, block, strict=True))


class _Series(_Given):
    """A column of pandas."""

    def with_columns(self, names: Sequence[str], block: Block) -> Any:
        """Give a DataFrame with the same index."""
        return self.words.to_frame().assign(**dict(zip(names, block, strict=True)))


class _ArrowArray(_Given):
    """A column of Arrow."""

    def with_columns(self, names: Sequence[str], block: Block) -> Any:
        """Give a table of Arrow."""
        import pyarrow

        return pyarrow.table(arrow_columns(block), names=list(names))


class _Frame(_Given):
    """A table of pandas."""

    def rows(self, named: Named, measuring: Measuring) -> Iterator[Row]:
        """Give the rows, by the names of columns."""
        columns = _columns(named)
        check_columns(list(self.words.columns), columns, measuring, "The table")
        texts = list(zip(*(_values(self.words[name]) for name in columns.text), strict=True)) or None
        others = [None if name is None else _values(self.words[name]) for name in (columns.sentence, columns.glued)]
        return _Given(self.words[columns.word]).rows(Named(columns.word, texts, *others), measuring)

    def with_columns(self, names: Sequence[str], block: Block) -> Any:
        """Give the table with the columns added."""
        return self.words.assign(**dict(zip(names, block, strict=True)))


class _ArrowTable(_Given):
    """A table of Arrow."""

    def rows(self, named: Named, measuring: Measuring) -> Iterator[Row]:
        """Give the rows, by the names of columns."""
        columns = _columns(named)
        check_columns(self.words.schema.names, columns, measuring, "The table")
        return rows_of(self.words, "The table", columns.word, columns.text, columns.sentence, columns.glued)

    def with_columns(self, names: Sequence[str], block: Block) -> Any:
        """Give the table with the columns added."""
        table = self.words
        for name, column in zip(names, arrow_columns(block), strict=True):
            table = table.append_column(name, column)
        return table


def _columns(named: Named) -> Columns:
    texts = [named.text] if isinstance(named.text, str) else list(named.text or [])
    columns = Columns(named.word, texts, named.sentence, named.glued)
    for name in columns.names:
        if not isinstance(name, str):
            raise UserError(f"A column is {name!r:.60}: give the name of a column of the table.")
    return columns


def _values(values: Any) -> list[Any]:
    """Take any column as a list; what is missing, as NaN is in pandas, is None."""
    for method in ("to_pylist", "tolist"):
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    if not isinstance(values, Iterable):
        raise UserError(f"The words are {values!r:.60}: give a list of strings.")
    return [None if isinstance(value, float) and value != value else value for value in values]


def _one_each(values: Any, num_words: int, name: str) -> list[Any]:
    if values is None:
        return [None] * num_words
    found = [None] * num_words if isinstance(values, str) else _values(values)
    if isinstance(values, str) or len(found) != num_words:
        shown = f"'{values}'" if isinstance(values, str) else f"{len(found)} values"
        raise UserError(f"There are {num_words} words, and {name} is {shown}: give one value per word.")
    return found


def _word(shown: Any, number: int) -> str:
    if shown is None or type(shown).__name__ == "NAType":
        return ""
    if not isinstance(shown, str):
        raise UserError(f"Row {number} has {shown!r:.60} as its word: give strings, and None where there is none.")
    return str(shown)
