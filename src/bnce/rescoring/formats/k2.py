"""icefall's text: `cut:<TAB>ref=['a', 'b']` and `cut:<TAB>hyp=['a', 'c']`, a hyp= line per hypothesis, best first.

Words are a Python list, as icefall prints it, or plain. A hypothesis may have scores behind it: `<TAB>am=-3.5`. Lines
with timestamps are left out.
"""

from __future__ import annotations

import ast
import re

from bnce.errors import UserError, shown
from bnce.rescoring.formats.source import Extras, Source, number, role_names, whole
from bnce.rescoring.nbest import NBest, Utterance, make_nbest, neighbour

_LINE = re.compile(r"(\S(?:.*\S)?):\t([a-z_]+)=(.*)")
_LEFT_OUT = ("timestamp_ref", "timestamp_hyp")


def recognise(source: Source) -> bool:
    """Tell icefall's text by its names."""
    lines = source.first_lines()
    return bool(lines) and all((match := _LINE.fullmatch(line)) and match[2] in _KNOWN for line in lines)


def read(source: Source, extras: Extras) -> NBest:
    """Read references and hypotheses."""
    utterances: dict[str, Utterance] = {}
    sources: dict[str, str] = {}
    for line, after_blank, text in source.filled():
        where = source.at(line)
        match = _LINE.fullmatch(text)
        if match is None or match[2] not in _KNOWN:
            raise UserError(f"{where} is not 'utterance:', a tab, and 'ref=' or 'hyp=' with words: give such lines.")
        name, kind, rest = match.groups()
        utterance = neighbour(source, utterances, Utterance(name, after_blank=after_blank, line=line))
        if kind in _LEFT_OUT:
            continue
        said, *columns = rest.split("\t")
        if kind == "ref":
            if utterance.reference is not None or columns:
                what = "a reference again" if utterance.reference is not None else "scores after a reference"
                raise UserError(f"{where} has {what} for '{name}': give each utterance one reference and no score.")
            utterance.reference = _words(said, where)
        else:
            utterance.add(_words(said, where), _scores(columns, where, sources))
    return make_nbest(source, utterances.values(), sources, "k2")


_KNOWN = ("ref", "hyp", *_LEFT_OUT)


def _words(said: str, where: str) -> str:
    if not said.startswith("["):
        return " ".join(said.split())
    try:
        words = ast.literal_eval(said)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise UserError(f"{where} has words that are not a Python list: give them as ['a', 'b'].") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UserError(f"{where} has the words {shown(words)}: give them as ['a', 'b'].")
    return whole(" ".join(" ".join(words).split()), where)


def _scores(columns: list[str], where: str, sources: dict[str, str]) -> dict[str, float]:
    given: dict[str, str] = {}
    for column in columns:
        name, equals, value = column.partition("=")
        if not equals or not name.strip() or name in given:
            raise UserError(f"{where} has {shown(column)} after a hypothesis: give each score once, as name=value.")
        given[name] = value
    names = role_names(list(given))
    for name, role in names.items():
        if role != name:
            sources.setdefault(role, name)
    return {role: number(given[name].strip(), where) for name, role in names.items()}
