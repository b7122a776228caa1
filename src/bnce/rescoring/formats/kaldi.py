"""Kaldi text: `utt-1 hypothesis…`, or `utt hypothesis…` with the key repeated; scores in files with the same keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bnce.errors import UserError, argument, unknown_name
from bnce.rescoring.formats.source import AM, OLD_LM, Extras, Source, keyed_lines, number
from bnce.rescoring.nbest import NBest, Utterance, make_nbest, neighbour

KEYS = ("auto", "numbered", "plain")

_NUMBERED = re.compile(r"(.+)-(\d+)")


def recognise(source: Source) -> bool:
    """Take any text for Kaldi's, since all that it needs is words."""
    return True


def read(source: Source, extras: Extras) -> NBest:
    """Read the hypotheses, and the scores beside them."""
    if extras.keys not in KEYS:
        raise unknown_name(f"value of {argument('keys')}", extras.keys, KEYS)
    lines = list(keyed_lines(source))
    numbered = extras.keys == "numbered" or (extras.keys == "auto" and _look_numbered([key for _, key, _ in lines]))
    paths = {AM: extras.am_scores, OLD_LM: extras.lm_scores, **extras.score_files}
    files = {name: _Scores(path) for name, path in paths.items() if path is not None}
    utterances: dict[str, Utterance] = {}
    seen: dict[str, int] = {}
    line_before = 0
    for line, key, text in lines:
        name, repeat = key, seen.get(key, 0)
        if numbered:
            match = _NUMBERED.fullmatch(key)
            if match is None or repeat:
                what = f"'{key}' again" if match else f"the key '{key}'"
                raise UserError(
                    f"{source} has {what} on line {line}: keys are read as 'utterance-number', each once; "
                    f"give {argument('keys', 'plain')} if they are whole utterance names, repeated for each hypothesis."
                )
            name = match[1]
        seen[key] = repeat + 1
        opened = Utterance(name, after_blank=line > line_before + 1, line=line)
        is_numbered = name != key
        utterance = utterances.setdefault(name, opened) if is_numbered else neighbour(source, utterances, opened)
        line_before = line
        utterance.add(text, {score: own.find(key, repeat) for score, own in files.items()})
    for own in files.values():
        own.check_repeats(seen)
    return make_nbest(source, utterances.values(), {}, "kaldi")


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
