"""N-best lists as recognisers write them: Kaldi text, JSON lines, and TSV.

kaldi   `utt-1 hypothesis…` (or `utt hypothesis…`, the key repeated), scores in files of their own with the same keys
jsonl   an object an utterance: {"utt": …, "hyps": [{"text": …, "am_score": …, "lm_score": …}, …]}; names below
tsv     utterance, acoustic score, language model score, hypothesis; a first line that begins with `utt` is a header

A hypothesis may be empty, and an utterance's hypotheses keep their order. Every mistake is told with its line.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bnce.errors import UserError, argument, unknown_name
from bnce.text.sources import named, read_lines
from bnce.text.unpack import PACKED

FORMATS = ("kaldi", "jsonl", "tsv")
KEYS = ("auto", "numbered", "plain")
_ENDINGS = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv"}

# Names in JSON lines: the first that is there counts.
UTTERANCE_NAMES = ("utt", "utt_id", "uttid", "id", "key", "audio_filepath")
LIST_NAMES = ("hyps", "hypotheses", "nbest", "n_best", "beams")
TEXT_NAMES = ("text", "hyp", "hypothesis", "pred_text", "rec_text")
AM_NAMES = ("am_score", "ac_score", "acoustic_score", "asr_score", "score")
LM_NAMES = ("lm_score", "old_lm_score")

_NUMBERED = re.compile(r"(.+)-(\d+)")


@dataclass
class Utterance:
    """One utterance's hypotheses, with scores where there are some; higher is better."""

    name: str
    texts: list[str] = field(default_factory=list)
    am: list[float] = field(default_factory=list)
    old_lm: list[float] = field(default_factory=list)
    after_blank: bool = False  # whether a blank line stands before it


@dataclass(frozen=True)
class NBest:
    """All utterances, in the order of the file, and which scores they have."""

    utterances: list[Utterance]
    has_am: bool
    has_old_lm: bool

    @property
    def num_hypotheses(self) -> int:
        """How many there are of all utterances together."""
        return sum(len(utterance.texts) for utterance in self.utterances)


def read_nbest(
    path: str | Path,
    form: str = "auto",
    *,
    keys: str = "auto",
    am_scores: str | Path | None = None,
    lm_scores: str | Path | None = None,
    costs: bool = False,
) -> NBest:
    """Read a list; `costs` says that scores are costs, as Kaldi writes them: lower is better."""
    path = str(path)
    form = find_format(path) if form == "auto" else form
    if form not in FORMATS:
        raise unknown_name("format of n-best lists", form, ("auto", *FORMATS))
    if keys not in KEYS:
        raise unknown_name(f"value of {argument('keys')}", keys, KEYS)
    if form != "kaldi" and (am_scores or lm_scores or keys != "auto"):
        raise UserError(
            f"{argument('am_scores')}, {argument('lm_scores')} and {argument('keys')} are for Kaldi text, and "
            f"{named(path)} is read as {form}: leave them out, or give {argument('form', 'kaldi')}."
        )
    if form == "kaldi":
        nbest = _read_kaldi(path, keys, am_scores, lm_scores)
    else:
        nbest = _read_json_lines(path) if form == "jsonl" else _read_tsv(path)
    if costs:
        for utterance in nbest.utterances:
            utterance.am = [-score for score in utterance.am]
            utterance.old_lm = [-score for score in utterance.old_lm]
    return nbest


def find_format(path: str) -> str:
    """Tell the format by the file's ending, that of packing aside; what has none of its own is Kaldi text."""
    stem, ending = os.path.splitext(path.lower())
    if ending in PACKED:
        ending = os.path.splitext(stem)[1]
    return _ENDINGS.get(ending, "kaldi")


def read_references(path: str | Path, utterances: Sequence[Utterance]) -> list[str]:
    """Read `utt reference…` lines and give the utterances' own, in their order; others in the file are left alone."""
    path = str(path)
    references: dict[str, str] = {}
    for line, key, text in _keyed_lines(path):
        if key in references:
            raise UserError(f"{named(path)} has '{key}' again on line {line}: give one reference per utterance.")
        references[key] = text
    for utterance in utterances:
        if utterance.name not in references:
            raise UserError(
                f"{named(path)} has no reference for '{utterance.name}': give one for every utterance of the list, "
                "as 'utterance words…' lines."
            )
    return [references[utterance.name] for utterance in utterances]


def _read_kaldi(path: str, keys: str, am_scores: str | Path | None, lm_scores: str | Path | None) -> NBest:
    lines = list(_keyed_lines(path))
    numbered = keys == "numbered" or (keys == "auto" and _look_numbered([key for _, key, _ in lines]))
    am = None if am_scores is None else _Scores(str(am_scores))
    old_lm = None if lm_scores is None else _Scores(str(lm_scores))
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
                    f"{named(path)} has {what} on line {line}: keys are read as 'utterance-number', each once; "
                    f"give {argument('keys', 'plain')} if they are whole utterance names, repeated for each hypothesis."
                )
            name = match[1]
        seen[key] = repeat + 1
        utterance = utterances.setdefault(name, Utterance(name, after_blank=line > line_before + 1))
        line_before = line
        utterance.texts.append(text)
        for scores, own in ((am, utterance.am), (old_lm, utterance.old_lm)):
            if scores is not None:
                own.append(scores.find(key, repeat))
    for scores in (am, old_lm):
        if scores is not None:
            scores.check_repeats(seen)
    return NBest(list(utterances.values()), am is not None, old_lm is not None)


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
        self.path = path
        self._scores: dict[str, list[float]] = {}
        for line, key, text in _keyed_lines(path):
            columns = text.split()
            if len(columns) != 1:
                raise UserError(
                    f"{named(path)}, line {line} has {1 + len(columns)} columns: give a key and one score per line."
                )
            self._scores.setdefault(key, []).append(_number(columns[0], path, line))

    def find(self, key: str, repeat: int) -> float:
        scores = self._scores.get(key, [])
        if repeat >= len(scores):
            which = f" number {repeat + 1}" if repeat else ""
            raise UserError(f"{named(self.path)} has no score{which} for '{key}': give one for every hypothesis.")
        return scores[repeat]

    def check_repeats(self, num_hypotheses: Mapping[str, int]) -> None:
        """Refuse more scores than hypotheses: which belongs to which could not be told."""
        for key, num in num_hypotheses.items():
            if len(self._scores[key]) > num:
                raise UserError(
                    f"{named(self.path)} has {len(self._scores[key])} scores for '{key}', but there "
                    f"{'is 1 hypothesis' if num == 1 else f'are {num} hypotheses'}: give one score per hypothesis."
                )


def _read_tsv(path: str) -> NBest:
    utterances: dict[str, Utterance] = {}
    after_blank = False
    for line, text in enumerate(read_lines(path), 1):
        columns = text.split("\t")
        if line == 1 and columns[0].strip().lower() in UTTERANCE_NAMES:
            continue
        if not text.strip():
            after_blank = True
            continue
        if len(columns) != 4:
            raise UserError(
                f"{named(path)}, line {line} has {len(columns)} columns: give utterance, acoustic score, language "
                "model score and hypothesis separated by tabs."
            )
        name = columns[0].strip()
        if not name:
            raise UserError(f"{named(path)}, line {line} has no utterance: give its name in the first column.")
        utterance = utterances.setdefault(name, Utterance(name, after_blank=after_blank))
        after_blank = False
        utterance.am.append(_number(columns[1], path, line))
        utterance.old_lm.append(_number(columns[2], path, line))
        utterance.texts.append(" ".join(columns[3].split()))
    if not utterances:
        raise UserError(f"{named(path)} has no hypothesis: give one per line.")
    return NBest(list(utterances.values()), True, True)


def _read_json_lines(path: str) -> NBest:
    utterances: dict[str, Utterance] = {}
    after_blank = False
    for line, text in enumerate(read_lines(path), 1):
        if not text.strip():
            after_blank = True
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{named(path)}, line {line} is not a JSON object ({error}): give one object per line."
            ) from error
        where = f"{named(path)}, line {line}"
        if not isinstance(record, dict):
            raise UserError(f"{where} is not a JSON object: give one object per line.")
        name = _field(record, UTTERANCE_NAMES, where)
        hypotheses = _field(record, LIST_NAMES, where)
        if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).strip():
            raise UserError(f"{where} has the utterance {name!r}: give its name.")
        if not isinstance(hypotheses, list) or not hypotheses:
            raise UserError(f"{where} has no list of hypotheses: give one or more.")
        utterance = Utterance(str(name), after_blank=after_blank)
        after_blank = False
        if utterance.name in utterances:
            raise UserError(f"{where} has '{name}' again: give one object per utterance, with all its hypotheses.")
        utterances[utterance.name] = utterance
        for hypothesis in hypotheses:
            _add_json(utterance, hypothesis, path, line)
    found = list(utterances.values())
    num_hypotheses = sum(len(utterance.texts) for utterance in found)
    present = []
    for kind, names in (("am", AM_NAMES), ("old_lm", LM_NAMES)):
        num_scores = sum(len(getattr(utterance, kind)) for utterance in found)
        if num_scores not in (0, num_hypotheses):
            raise UserError(
                f"{named(path)} has {num_scores} scores named {' or '.join(names)} for {num_hypotheses} hypotheses: "
                "give one for each, or none."
            )
        present.append(num_scores > 0)
    return NBest(found, *present)


def _add_json(utterance: Utterance, hypothesis: Any, path: str, line: int) -> None:
    """Take a hypothesis as an object, as a text alone, or as a text and its score."""
    where = f"{named(path)}, line {line}"
    if isinstance(hypothesis, str):
        hypothesis = {"text": hypothesis}
    elif isinstance(hypothesis, list) and len(hypothesis) == 2:
        hypothesis = {"text": hypothesis[0], "am_score": hypothesis[1]}
    if not isinstance(hypothesis, dict):
        raise UserError(f"{where} has a hypothesis that is not an object, a text, or [text, score]: give one of these.")
    text = _field(hypothesis, TEXT_NAMES, where)
    if not isinstance(text, str):
        raise UserError(f"{where} has a hypothesis whose text is {text!r}: give a string.")
    utterance.texts.append(" ".join(text.split()))
    for names, own in ((AM_NAMES, utterance.am), (LM_NAMES, utterance.old_lm)):
        score = next((hypothesis[name] for name in names if name in hypothesis), None)
        if score is not None:
            own.append(_number(score, path, line))


def _field(record: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    raise UserError(f"{where} has none of the fields {', '.join(names)}: give one of them.")


def _keyed_lines(path: str) -> Iterator[tuple[int, str, str]]:
    """Read `key words…` lines with their numbers; blank ones are left out, and a key may stand alone."""
    for line, text in enumerate(read_lines(path), 1):
        if words := text.split():
            yield line, words[0], " ".join(words[1:])


def _number(value: Any, path: str, line: int) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{named(path)}, line {line} has the score {value!r}: it must be a finite number.")
    return number
