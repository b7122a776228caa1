"""`bnce.surprisal`: words in memory, as a list, an array, a pandas or Arrow column, or a whole table of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bnce.errors import UserError
from bnce.scoring.loading import load
from bnce.scoring.model import Model
from bnce.tables.columnar import arrow_columns, rows_of
from bnce.tables.columns import Block, Columns, Measuring, Row, check_columns, truth
from bnce.tables.measure import Measurer
from bnce.tables.readers import open_reader


def surprisal(
    model: Model | str | Path,
    words: Any,
    *,
    word: str = "word",
    text: Any = None,
    sentence: Any = None,
    glued: Any = None,
    normalised: bool = True,
    spell: bool = False,
    entropy: bool = False,
    prefix: str = "",
) -> Any:
    """Measure the surprisal of words in reading order, each with its marks; the result has the type of `words`.

    A list or NumPy array gives a dict of NumPy arrays, in which NaN is an empty cell. A pandas Series or DataFrame
    gives a DataFrame with the same index, an Arrow array or table a table. Of a table `word`, `text`, `sentence`
    and `glued` name columns (`text` one or several); else the last three are values, one per word.
    """
    if not isinstance(model, Model):
        model = load(model)
    measuring = Measuring(normalised, spell, entropy, prefix)
    if isinstance(words, str | bytes):
        raise UserError("The words are one string: give a list of them, such as ['a', 'word.'].")
    if hasattr(words, "to_arrow") and not hasattr(words, "iloc"):  # polars
        words = words.to_arrow()
    if _is_table(words):
        rows = _rows_of_table(words, _columns(word, text, sentence, glued), measuring)
    else:
        rows = _rows(words, text, sentence, glued)
    blocks = list(Measurer(model, measuring, open_reader(model, measuring), sentence is None).measure(rows))
    empty: Block = [np.zeros(0, dtype=kind) for kind in measuring.columns.values()]
    found = [np.concatenate(parts) for parts in zip(empty, *blocks, strict=True)]
    return _with_columns(words, dict(zip(measuring.columns, found, strict=True)))


# What the words are is seen by what they can do: neither pandas nor Arrow is imported for it.


def _is_table(words: Any) -> bool:
    return hasattr(words, "assign") or hasattr(words, "append_column")


def _rows(words: Any, text: Any, sentence: Any, glued: Any) -> Iterator[Row]:
    """Give the rows of a sequence of words; all but the words are values, one for each."""
    shown = _values(words)
    texts = _one_each(text, len(shown), "text")
    sentences = _one_each(sentence, len(shown), "sentence")
    truths = _one_each(glued, len(shown), "glued")
    for place, word in enumerate(shown):
        is_glued = truth(truths[place], place + 1, "The table")
        yield Row(_word(word, place + 1), texts[place], sentences[place], is_glued)


def _rows_of_table(table: Any, columns: Columns, measuring: Measuring) -> Iterator[Row]:
    """Give the rows of a table of pandas or Arrow, by the names of columns."""
    is_arrow = hasattr(table, "append_column")
    check_columns(table.schema.names if is_arrow else list(table.columns), columns, measuring, "The table")
    if is_arrow:
        return rows_of(table, "The table", columns)
    texts = list(zip(*(_values(table[name]) for name in columns.text), strict=True)) or None
    sentences, truths = (None if name is None else table[name] for name in (columns.sentence, columns.glued))
    return _rows(table[columns.word], texts, sentences, truths)


def _with_columns(words: Any, added: dict[str, Any]) -> Any:
    """Give a table of pandas or Arrow with columns added, a column as a table of its kind, or else the columns."""
    if hasattr(words, "iloc"):
        return (words if _is_table(words) else words.to_frame()).assign(**added)
    if not type(words).__module__.startswith("pyarrow"):
        return added
    import pyarrow

    columns = arrow_columns(list(added.values()))
    if not _is_table(words):
        return pyarrow.table(columns, names=list(added))
    for name, column in zip(added, columns, strict=True):
        words = words.append_column(name, column)
    return words


def _columns(word: str, text: Any, sentence: Any, glued: Any) -> Columns:
    columns = Columns(word, [text] if isinstance(text, str) else list(text or []), sentence, glued)
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
