"""Lists of words as people write them: a word a line, further fields behind tabs, blank lines free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bnce.corpus.vocabulary import SPECIALS
from bnce.errors import UserError
from bnce.text.normalise import Normaliser
from bnce.text.sources import read_lines

MAX_COUNT_DIGITS = 18  # what 64 bits hold; Python itself refuses to read numbers of thousands of digits


@dataclass(frozen=True)
class NewWord:
    """A word to add; without a count it is taken as rare, without neighbours its spelling finds them."""

    word: str
    count: int | None = None
    neighbours: tuple[str, ...] = ()


def read_new_words(path: str, normaliser: Normaliser) -> list[NewWord]:
    """Read words to add: WORD, or WORD TAB COUNT, or WORD TAB COUNT TAB NEIGHBOUR,NEIGHBOUR…; COUNT may be empty."""
    lines = _read(path, "word, count and similar words", 3)
    _check_reading(path, lines, normaliser)
    words = []
    for line, (word, *fields) in lines:
        count = None
        if fields and fields[0]:
            if not fields[0].isdecimal() or len(fields[0]) > MAX_COUNT_DIGITS or int(fields[0]) < 1:
                raise UserError(
                    f"'{path}' has the count {fields[0][:40]!r} on line {line}: give how often '{word}' occurs in a "
                    "text of the training text's size, a whole number from 1, or leave it out."
                )
            count = int(fields[0])
        neighbours = tuple(name.strip() for name in fields[1].split(",") if name.strip()) if len(fields) > 1 else ()
        words.append(NewWord(word, count, neighbours))
    return words


def read_words(path: str) -> list[str]:
    """Read words to drop, a word a line."""
    return [word for _, (word,) in _read(path, "one word per line", 1)]


def read_weighted_words(path: str, normaliser: Normaliser) -> dict[str, float]:
    """Read words that share `<unk>`: WORD, or WORD TAB WEIGHT; the weight is 1 where there is none."""
    lines = _read(path, "word and weight", 2)
    _check_reading(path, lines, normaliser)
    weights = {}
    for line, (word, *fields) in lines:
        try:
            weights[word] = float(fields[0]) if fields and fields[0] else 1.0
        except ValueError:
            weights[word] = math.nan
        if not 0 < weights[word] < math.inf:
            raise UserError(f"'{path}' has the weight {fields[0]!r} on line {line}: give a number above 0, or none.")
    return weights


def _read(path: str, fields: str, num_fields: int) -> list[tuple[int, list[str]]]:
    """Read lines of fields with their numbers, and refuse what is no word."""
    found: list[tuple[int, list[str]]] = []
    line_of: dict[str, int] = {}
    for line, text in enumerate(read_lines(path), 1):
        if not text.strip():
            continue
        parts = [part.strip() for part in text.split("\t")]
        word = parts[0]
        if len(parts) > num_fields:
            raise UserError(f"'{path}' has {len(parts)} fields on line {line}: give {fields}, separated by tabs.")
        if word.split() != [word] or "\0" in word:
            what = f"a blank or NUL inside {word!r}" if word else "no word"
            raise UserError(f"'{path}' has {what} on line {line}: give {fields}, separated by tabs.")
        if word in SPECIALS:
            raise UserError(
                f"'{path}' has {word} on line {line}: every model has {' and '.join(SPECIALS)}; remove this line."
            )
        if word in line_of:
            raise UserError(f"'{path}' has '{word}' both on line {line_of[word]} and on line {line}: remove one.")
        line_of[word] = line
        found.append((line, parts))
    return found


def _check_reading(path: str, lines: Sequence[tuple[int, list[str]]], normaliser: Normaliser) -> None:
    """Refuse words that a text, read as the training text was, can never hold: they would wait in vain."""
    odd = [(line, parts[0]) for line, parts in lines if normaliser(parts[0]) != [[parts[0]]]]
    if odd:
        line, word = odd[0]
        read_as = " ".join(part for sentence in normaliser(word) for part in sentence)
        others = f" (and {len(odd) - 1} more like it)" if len(odd) > 1 else ""
        raise UserError(
            f"'{path}' has '{word}' on line {line}{others}, but this run reads it as "
            f"'{read_as}': write words as the run reads them."
        )
