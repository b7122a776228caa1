"""JSON: one object per utterance, on lines or in one array; `{"utt": …, "hyps": [{"text": …, "score": …}, …]}`.

A hypothesis is an object with any number of scores, a text alone, or `[text, score]`. HyPoradise's `input` and `output`
are a list of hypotheses and the reference, without names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bnce.errors import UserError, shown
from bnce.rescoring.nbest import KNOWN_NAMES, Hypothesis, Source

UTTERANCE_NAMES = ("utt", "utt_id", "uttid", "id", "key", "audio_filepath")
LIST_NAMES = ("hyps", "hypotheses", "nbest", "n_best", "beams")
TEXT_NAMES = ("text", "hyp", "hypothesis", "pred_text", "rec_text")
REFERENCE_NAMES = ("ref", "reference", "ref_text")
# HyPoradise's names, which mean this only together.
UNNAMED_LIST, UNNAMED_REFERENCE = "input", "output"


def is_json(source: Source) -> bool:
    """Tell JSON by its first bracket."""
    first = "".join(text for _, text in source.lines[:2]).replace(" ", "").replace("\t", "")
    return first.startswith(('{"', "{}", "[{", "[]")) or first == "["


def parse_json(source: Source) -> Iterator[Hypothesis]:
    """Read objects, and name utterances that have no name by their places."""
    seen = set()
    for place, (where, record) in enumerate(read_objects(source), 1):
        unnamed = UNNAMED_LIST in record and not any(name in record for name in (*UTTERANCE_NAMES, *LIST_NAMES))
        name = str(place) if unnamed else utterance_name(record, where)
        if name in seen:
            raise UserError(f"{where} has '{name}' again: give one object per utterance, with all its hypotheses.")
        seen.add(name)
        hypotheses = _field(record, (*LIST_NAMES, UNNAMED_LIST), where)
        if not isinstance(hypotheses, list) or not hypotheses:
            raise UserError(f"{where} has no list of hypotheses: give one or more.")
        names = (*REFERENCE_NAMES, UNNAMED_REFERENCE) if UNNAMED_LIST in record else REFERENCE_NAMES
        reference = reference_in(record, names, where)
        for hypothesis in hypotheses:
            yield Hypothesis(where, name, *_hypothesis(hypothesis, where), reference)


def read_objects(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give every object with its place."""
    is_array = bool(source.lines) and source.lines[0][1].lstrip().startswith("[")
    texts = [(str(source), "\n".join(text for _, text in source.lines))] if is_array else source.lines
    for where, text in texts:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            if is_array and isinstance(error, json.JSONDecodeError):
                where = source.lines[min(error.lineno, len(source.lines)) - 1][0]
            raise UserError(f"{where} is not valid JSON ({error}): give one object per line, or one array.") from error
        records = enumerate(value, 1) if is_array else [(0, value)]
        for place, record in records:
            where = f"{source}, element {place}" if is_array else where
            if not isinstance(record, dict):
                raise UserError(f"{where} is not a JSON object: give one object per utterance.")
            yield where, record


def utterance_name(record: Mapping[str, Any], where: str) -> str:
    """Give the name of an object's utterance."""
    name = _field(record, UTTERANCE_NAMES, where)
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).strip():
        raise UserError(f"{where} has the utterance {shown(name)}: give its name.")
    return str(name)


def reference_in(record: Mapping[str, Any], names: Sequence[str], where: str) -> str | None:
    """Give the reference of an object under the first of these names that it has, if there is one."""
    found = next((record[name] for name in names if record.get(name) is not None), None)
    if found is not None and not isinstance(found, str):
        raise UserError(f"{where} has the reference {shown(found)}: give a string.")
    return None if found is None else " ".join(found.split())


def _hypothesis(hypothesis: Any, where: str) -> tuple[str, dict[str, Any]]:
    """Take a hypothesis as an object, as a text alone, or as a text and its score."""
    if isinstance(hypothesis, str):
        hypothesis = {"text": hypothesis}
    elif isinstance(hypothesis, list) and len(hypothesis) == 2:
        hypothesis = {"text": hypothesis[0], "am": hypothesis[1]}
    if not isinstance(hypothesis, dict):
        raise UserError(f"{where} has a hypothesis that is not an object, a text, or [text, score]: give one of these.")
    text = _field(hypothesis, TEXT_NAMES, where)
    if not isinstance(text, str):
        raise UserError(f"{where} has a hypothesis whose text is {shown(text)}: give a string.")
    # A known name must hold a number, even one that is written as a text; of others only numbers can be scores.
    scores = {
        name: value
        for name, value in hypothesis.items()
        if value is not None
        and (name in KNOWN_NAMES or (isinstance(value, int | float) and not isinstance(value, bool)))
    }
    return text, scores


def _field(record: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise UserError(f"{where} has none of the fields {', '.join(names)}: give one of them.")
