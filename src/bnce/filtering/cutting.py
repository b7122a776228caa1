"""Blocks of records become ids, or scores: what worker processes do while the model computes. It needs no PyTorch.

A block is some lines of JSON, or the texts of some rows. A record that cannot be read is told apart from the others,
with the reason, and does not keep them from being read.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.encoding import look_up
from bnce.corpus.numbering import MARK_IDS, MARKS, number_documents
from bnce.corpus.spelling import SpellingModel
from bnce.corpus.vocabulary import UNK
from bnce.errors import UserError, argument, naming_options
from bnce.text.blocks import gather
from bnce.text.normalise import UNKNOWN_WORD, Normaliser
from bnce.text.records import check_field, explain, find_text, whole_characters

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NUM_ENDS = 2  # of MARKS, those that end a sentence

Ints = NDArray[np.int64]
# Of N documents: words, sentence ends, unknown words, ln p beside the network's, ids of all, and how many each has.
Figures = tuple[Ints, Ints, Ints, NDArray[np.float64], NDArray[Any] | None, Ints]


class Texts(NamedTuple):
    """A block to be cut: lines of JSON as bytes, or an Arrow array of texts; `first` is the number of its first."""

    first: int
    data: Any


class Problem(NamedTuple):
    """Why a record cannot be read; `number` counts lines or rows from 1."""

    number: int
    reason: str


@dataclass(frozen=True)
class CutBlock:
    """The documents of a block, N of them."""

    row_N: NDArray[np.int64]  # which of the block's lines or rows each one is
    num_words_N: NDArray[np.int64]  # without sentence ends
    num_ends_N: NDArray[np.int64]
    num_unknown_N: NDArray[np.int64]
    log_prob_N: NDArray[np.float64]  # what spelling adds to the model's own, or all of it
    ids: NDArray[Any] | None  # of all documents; None if they are scored already
    length_N: NDArray[np.int64]
    names: list[str] | None  # what the field of --id has, as it stands in the line of JSON
    problems: list[Problem]


@dataclass(frozen=True)
class Fields:
    """Which field of a record has the text, which one names it, and which must not be there."""

    text: str = "text"
    id: str | None = None
    added: tuple[str, ...] = ()
    names_options: bool = False  # whether reasons are for the command line: a worker does not know


@dataclass(frozen=True)
class Cutter:
    """Cuts texts into words and gives their ids, as the training text of a run was cut; it can be sent to workers."""

    run: str
    digest: str
    normaliser: Normaliser
    fields: Fields
    spell: bool = False

    def cut(self, texts: Sequence[str]) -> Figures:
        """Give the fields of `CutBlock` from `num_words_N` to `length_N`."""
        parts = [self._cut_some(block) for block in gather(([text] for text in texts), "text")]
        if not parts:
            empty, no_ids = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
            return empty, empty, empty, np.zeros(0), no_ids, empty
        words, ends, unknown, log_probs, ids, lengths = map(np.concatenate, zip(*parts, strict=True))
        return words, ends, unknown, log_probs, ids, lengths

    def _cut_some(self, block: Any) -> Figures:
        found = number_documents(block, self.normaliser)
        words = [word.encode() for word in found.words.to_pylist()[len(MARKS) :]]
        known = look_up(words, Path(self.run), self.digest)
        numbers, lengths = found.numbers, found.lengths
        is_unknown_W = known.ids == UNK
        end_N = np.cumsum(lengths)
        num_ends_N = _sums(numbers < _NUM_ENDS, end_N)
        log_share_W = np.zeros(len(known.ids))
        if self.spell and (spelling := _spelling(self.run, self.digest)) is not None:
            words = found.words.to_pylist()
            spelt = [place for place in np.flatnonzero(is_unknown_W) if words[place] not in ("", UNKNOWN_WORD)]
            log_share_W[spelt] = spelling.log_probs([words[place] for place in spelt])
            is_unknown_W[spelt] = False
        log_prob_N, num_unknown_N = _sums(log_share_W[numbers], end_N), _sums(is_unknown_W[numbers], end_N)
        return lengths - num_ends_N, num_ends_N, num_unknown_N, log_prob_N, known.ids[numbers], lengths


@dataclass(frozen=True)
class WordCutter:
    """Lets a model of any kind score texts where they are cut: n-gram models are quick, and mixtures can do no more."""

    model: str
    fields: Fields
    normalised: bool = False
    spell: bool = False

    def cut(self, texts: Sequence[str]) -> Figures:
        """Give the fields of `CutBlock` from `num_words_N` to `length_N`."""
        model = open_model(self.model)
        tokens = model.cutter().cut(texts, "split")
        documents, num_ends = tokens.by_text(), tokens.num_sequences_T
        mode = "normalised" if self.normalised or not model.self_normalised else None
        scores = model.log_probs(documents, mode=mode, spell=self.spell)
        num_words, none = documents.num_words_S - num_ends, np.zeros(len(texts), dtype=np.int64)
        return num_words, num_ends, scores.num_oov, scores.totals, None, none


def cut_block(block: Texts, cutter: Cutter | WordCutter) -> CutBlock:
    """Read the records of a block and cut, or score, their texts."""
    rows, texts, names, problems = read_records(block, cutter.fields)
    return CutBlock(np.array(rows, dtype=np.int64), *cutter.cut(texts), names, problems)


def read_records(block: Texts, fields: Fields) -> tuple[list[int], list[str], list[str] | None, list[Problem]]:
    """Give the documents of a block: which of its lines or rows they are, their texts, and what names them."""
    names: list[str] | None = None if fields.id is None else []
    rows, texts, problems = [], [], []
    if not isinstance(block.data, bytes):
        return _read_rows(block)
    for row, line in enumerate(block.data.split(b"\n")):
        if block.first == 1 and row == 0:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line or line.isspace():
            continue
        try:
            record = json.loads(line.decode(), **({} if fields.id is None else _LITERALS))
            with naming_options() if fields.names_options else contextlib.nullcontext():
                text = _text(record, fields)
            if fields.id is not None and names is not None:
                names.append(_name(record[fields.id], fields.id))
        except (ValueError, RecursionError) as error:
            problems.append(Problem(block.first + row, explain(error)))
            continue
        rows.append(row)
        texts.append(whole_text(text))
    return rows, texts, names, problems


def _read_rows(block: Texts) -> tuple[list[int], list[str], list[str] | None, list[Problem]]:
    """Read the texts of an Arrow column; what names them stays in the rows."""
    rows, texts, problems = [], [], []
    for row, text in enumerate(block.data):
        try:
            texts.append(whole_text(text.as_py() or ""))
        except UnicodeDecodeError as error:  # Arrow does not look
            problems.append(Problem(block.first + row, explain(error)))
            continue
        rows.append(row)
    return rows, texts, None, problems


def _text(record: Any, fields: Fields) -> str:
    text = find_text(record, fields.text)
    if fields.id is not None:
        check_field(record, fields.id, "id")
    for name in fields.added:
        if name in record:
            raise UserError(f"already has a field '{name}': give other names with {argument('names')}.")
    return text


def whole_text(text: str) -> str:
    """Make one document of a text, whatever characters escapes have spelled in it: those alone that can be scored."""
    return whole_characters(text).replace("\r\n", "\n")


@dataclass(frozen=True)
class _Number:
    """A number of JSON as it stands in the line, which a float or an int would spell in another way."""

    literal: str
    is_json: bool = True


# `json` reads NaN and Infinity, too, which are no JSON.
_LITERALS: dict[str, Any] = {
    "parse_float": _Number,
    "parse_int": _Number,
    "parse_constant": functools.partial(_Number, is_json=False),
}


def _name(value: Any, field: str) -> str:
    """Write what names a record as JSON, its numbers as they stand."""
    if isinstance(value, _Number):
        if not value.is_json:
            raise UserError(
                f"has {value.literal} in its field '{field}', which is not JSON: write a string, a number or null."
            )
        return value.literal
    if isinstance(value, dict):
        return "{" + ", ".join(f"{write_json(key)}: {_name(one, field)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_name(one, field) for one in value) + "]"
    return write_json(value)


def write_json(value: Any) -> str:
    """Write a value as JSON that a file can hold: what has no form there as text, and no number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{write_json(str(key))}: {write_json(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(write_json, value)) + "]"
    text = json.dumps(value, ensure_ascii=False, default=str)
    # Half of a character stays an escape.
    return text if text == whole_characters(text) else json.dumps(value, default=str)


def _sums(value_M: NDArray[Any], end_N: NDArray[np.int64]) -> NDArray[Any]:
    """Add up the values of each document; one may be empty."""
    total_M = np.append(0, np.cumsum(value_M, dtype=np.float64 if value_M.dtype.kind == "f" else np.int64))
    sums: NDArray[Any] = np.diff(total_M[end_N], prepend=0)
    return sums


assert MARK_IDS[:_NUM_ENDS] == (0, 0)


@functools.lru_cache(maxsize=1)
def _spelling(run: str, digest: str) -> SpellingModel | None:
    return SpellingModel.of_run(Path(run))


@functools.lru_cache(maxsize=1)
def open_model(model: str) -> Any:
    """Open a model once per process, on its CPU."""
    from bnce.scoring.loading import load  # PyTorch comes with it

    return load(model)
