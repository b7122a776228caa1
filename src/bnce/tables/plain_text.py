"""Plain text as a table: one row per word, a blank line between texts, and a sentence ends where its line does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bnce.tables.delimited import Record
from bnce.text.sources import read_lines

COLUMNS = ("text", "line", "word")


class ShownWord(NamedTuple):
    """A word as it stands between blanks, and where it stands; texts and lines count from 1."""

    text: int
    line: int
    word: str


def read_words(path: str) -> Iterator[ShownWord]:
    """Read the words of a text file."""
    text, is_blank = 0, True
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        if words and is_blank:
            text += 1
        is_blank = not words
        for word in words:
            yield ShownWord(text, number, word)


def as_record(shown: ShownWord, separator: str) -> Record:
    """Write a word as a row of TSV or CSV, in quotes where CSV needs them."""
    word = shown.word
    if separator == "," and any(sign in word for sign in ',"'):
        word = '"' + word.replace('"', '""') + '"'
    fields = [str(shown.text), str(shown.line), word]
    return Record(separator.join(fields), "\n", fields)
