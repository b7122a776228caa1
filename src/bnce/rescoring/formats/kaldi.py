"""Kaldi text: `utt-1 hypothesis…`, or `utt hypothesis…` with the key repeated; scores in files with the same keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bnce.errors import UserError
from bnce.rescoring.formats.source import Source, keyed_lines, number, role_names
from bnce.rescoring.nbest import NBest, Utterance, make_nbest, neighbour

_NUMBERED = re.compile(r"(.+)-(\d+)")


def recognise(source: Source) -> bool:
    """Take any text for Kaldi's, since all that it needs is words."""
    return True


def read(source: Source, score_files: Mapping[str, str]) -> NBest:
    """Read the hypotheses, and the scores beside them."""
    lines = list(keyed_lines(source))
    numbered = _look_numbered([key for _, key, _ in lines])
    roles = role_names(list(score_files))
    files = {role: _Scores(score_files[name]) for name, role in roles.items()}
    utterances: dict[str, Utterance] = {}
    seen: dict[str, int] = {}
    for line, key, text in lines:
        repeat = seen.get(key, 0)
        seen[key] = repeat + 1
        if numbered:
            if repeat:
                raise UserError(
                    f"{source} has '{key}' again on line {line}: keys that end in numbers are read as "
                    "'utterance-number', each once. If they are whole utterance names, give JSON lines."
                )
            name = key.rpartition("-")[0]
            utterance = utterances.setdefault(name, Utterance(name, line=line))
        else:
            utterance = neighbour(source, utterances, Utterance(key, line=line))
        utterance.add(text, {role: own.find(key, repeat) for role, own in files.items()})
    for own in files.values():
        own.check_repeats(seen)
    sources = {role: name for name, role in roles.items() if role != name}
    return make_nbest(source, utterances.values(), sources, "kaldi")


def _look_numbered(keys: Sequence[str]) -> bool:
    """Tell whether keys are `utt-1`, `utt-2`, …: all end in a number, and each utterance's first is 1."""
    first: dict[str, str] = {}
    for key in keys:
        match = _NUMBERED.fullmatch(key)
        if match is None:
            return False
        first.setdefault(match[1], match[2])
    return all(number == "1" for number in first.values())


class _Scores:
    """A file of `key score` lines; a key that is repeated has a score each time."""

    def __init__(self, path: str) -> None:
        self.source = Source(path)
        self._scores: dict[str, list[float]] = {}
        for line, key, text in keyed_lines(self.source):
            columns = text.split()
            where = self.source.at(line)
            if len(columns) != 1:
                raise UserError(f"{where} has {1 + len(columns)} columns: give a key and one score per line.")
            self._scores.setdefault(key, []).append(number(columns[0], where))

    def find(self, key: str, repeat: int) -> float:
        scores = self._scores.get(key, [])
        if repeat >= len(scores):
            which = f" number {repeat + 1}" if repeat else ""
            raise UserError(f"{self.source} has no score{which} for '{key}': give one for every hypothesis.")
        return scores[repeat]

    def check_repeats(self, num_hypotheses: Mapping[str, int]) -> None:
        """Refuse more scores than hypotheses: which belongs to which could not be told."""
        for key, num in num_hypotheses.items():
            if len(self._scores[key]) > num:
                raise UserError(
                    f"{self.source} has {len(self._scores[key])} scores for '{key}', but there "
                    f"{'is 1 hypothesis' if num == 1 else f'are {num} hypotheses'}: give one score per hypothesis."
                )
