"""JSON: one object per utterance, on lines or in one array; `{"utt": …, "hyps": [{"text": …, "score": …}, …]}`.

A hypothesis is an object with any number of scores, a text alone, or `[text, score]`. HyPoradise's `input` and `output`
are a list of hypotheses and the reference, without names. Names that are known are in `source.py` and below.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bnce.errors import UserError, shown
from bnce.rescoring.formats.source import (
    AM,
    ROLES,
    TEXT_NAMES,
    UTTERANCE_NAMES,
    Source,
    number,
    role_names,
    whole,
)
from bnce.rescoring.nbest import NBest, Utterance, make_nbest

LIST_NAMES = ("hyps", "hypotheses", "nbest", "n_best", "beams")
REFERENCE_NAMES = ("ref", "reference", "ref_text")
# HyPoradise's names, which mean this only together.
UNNAMED_LIST, UNNAMED_REFERENCE = "input", "output"

_ROLE_NAMES = {name for names in ROLES.values() for name in names}


def recognise(source: Source) -> bool:
    """Tell JSON by its first bracket."""
    first = "".join(source.first_lines(2)).replace(" ", "").replace("\t", "")
    return first.startswith(('{"', "{}", "[{", "[]")) or first == "["


def read(source: Source) -> NBest:
    """Read objects, and name utterances that have no name by their places."""
    utterances: dict[str, Utterance] = {}
    sources: dict[str, str] = {}
    kinds: set[bool] = set()
    for place, (line, record) in enumerate(_records(source), 1):
        where = source.at(line)
        unnamed = not any(name in record for name in (*UTTERANCE_NAMES, *LIST_NAMES)) and UNNAMED_LIST in record
        name = str(place) if unnamed else _field(record, UTTERANCE_NAMES, where)
        kinds.add(unnamed)
        if len(kinds) > 1:
            raise UserError(f"{where} differs from the others: give a name for every utterance, or for none.")
        if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).strip():
            raise UserError(f"{where} has the utterance {shown(name)}: give its name.")
        hypotheses = _field(record, (*LIST_NAMES, UNNAMED_LIST), where)
        if not isinstance(hypotheses, list) or not hypotheses:
            raise UserError(f"{where} has no list of hypotheses: give one or more.")
        utterance = Utterance(whole(str(name), where), line=line)
        if utterance.name in utterances:
            raise UserError(f"{where} has '{name}' again: give one object per utterance, with all its hypotheses.")
        utterances[utterance.name] = utterance
        utterance.reference = _reference(record, where)
        for hypothesis in hypotheses:
            text, scores = _hypothesis(hypothesis, where, sources)
            utterance.add(text, scores)
    return make_nbest(source, utterances.values(), sources, "jsonl")


def _records(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give every object with its line."""
    if "".join(source.first_lines(1)).lstrip().startswith("["):
        yield from _array(source)
        return
    for line, text in source.filled():
        yield line, _object(text, source, line)


def _array(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """Give the objects of one array, each with the line on which it begins."""
    text = "\n".join(source.lines)
    decoder = json.JSONDecoder(object_pairs_hook=_refuse_repeats)
    place, line, counted = text.index("[") + 1, 1, 0
    expects_more = False
    while True:
        while place < len(text) and text[place].isspace():
            place += 1
        line, counted = line + text.count("\n", counted, place), place
        if place < len(text) and text[place] == "]" and not expects_more:
            break
        try:
            record, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise _not_json(source, line, error) from error
        if not isinstance(record, dict):
            raise UserError(f"{source.at(line)} has an element in its array that is not an object: give only objects.")
        yield line, record
        while place < len(text) and text[place].isspace():
            place += 1
        expects_more = text[place : place + 1] == ","
        if not expects_more and text[place : place + 1] != "]":
            end = 1 + text.count("\n", 0, place)
            raise UserError(f"{source.at(end)} has no comma or bracket after an object: the array is damaged.")
        place += expects_more
    if rest := text[place + 1 :].strip():
        end = 1 + text.count("\n", 0, place)
        raise UserError(f"{source.at(end)} has {shown(rest)} after the array: give one array, or one object per line.")


def _object(text: str, source: Source, line: int) -> dict[str, Any]:
    try:
        record = json.loads(text, object_pairs_hook=_refuse_repeats)
    except (ValueError, RecursionError) as error:
        raise _not_json(source, line, error) from error
    if not isinstance(record, dict):
        raise UserError(f"{source.at(line)} is not a JSON object: give one object per line.")
    return record


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that has a name twice: JSON would take the last without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has the name {shown(twice)} more than once")
    return found


def _not_json(source: Source, line: int, error: Exception) -> UserError:
    return UserError(f"{source.at(line)} is not a JSON object ({error}): give one object per line.")


def _hypothesis(hypothesis: Any, where: str, sources: dict[str, str]) -> tuple[str, dict[str, float]]:
    """Take a hypothesis as an object, as a text alone, or as a text and its score."""
    if isinstance(hypothesis, str):
        hypothesis = {"text": hypothesis}
    elif isinstance(hypothesis, list) and len(hypothesis) == 2:
        hypothesis = {"text": hypothesis[0], AM: hypothesis[1]}
    if not isinstance(hypothesis, dict):
        raise UserError(f"{where} has a hypothesis that is not an object, a text, or [text, score]: give one of these.")
    text = _field(hypothesis, TEXT_NAMES, where)
    if not isinstance(text, str):
        raise UserError(f"{where} has a hypothesis whose text is {shown(text)}: give a string.")
    # A known name must hold a number, even one that is written as a text; of others only numbers are scores.
    given = {
        name: value
        for name, value in hypothesis.items()
        if value is not None
        and (name in _ROLE_NAMES or (isinstance(value, int | float) and not isinstance(value, bool)))
    }
    scores = {}
    for name, role in role_names(list(given)).items():
        scores[role] = number(given[name], where)
        if role != name:
            sources.setdefault(role, name)
        elif not name.isprintable() or not name.strip():
            raise UserError(f"{where} has a score with the name {shown(name)}: give a name that can be printed.")
    return whole(text, where), scores


def _reference(record: Mapping[str, Any], where: str) -> str | None:
    names = (*REFERENCE_NAMES, UNNAMED_REFERENCE) if UNNAMED_LIST in record else REFERENCE_NAMES
    found = next((record[name] for name in names if record.get(name) is not None), None)
    if found is not None and not isinstance(found, str):
        raise UserError(f"{where} has the reference {shown(found)}: give a string.")
    return None if found is None else " ".join(whole(found, where).split())


def _field(record: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise UserError(f"{where} has none of the fields {', '.join(names)}: give one of them.")
