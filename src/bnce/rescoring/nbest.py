"""N-best lists as recognisers write them: what is in them, in whichever format they come.

A hypothesis may be empty, and an utterance's hypotheses keep their order. Every mistake is reported with its place. A
score has a name; `am` and `old_lm` are the two that have weights of their own, under whatever names lists have them.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bnce.errors import UserError, argument, counted, shown, unknown_name
from bnce.text.sources import named, read_lines
from bnce.text.unpack import PACKED

# The two scores that have options of their own, and the names under which lists have them: the first one counts.
AM, OLD_LM = "am", "old_lm"
ROLES: Mapping[str, tuple[str, ...]] = {
    AM: ("am_score", "ac_score", "acoustic_score", "asr_score", "am", "score"),
    OLD_LM: ("lm_score", "old_lm_score", "old_lm", "lm"),
}
KNOWN_NAMES = frozenset(name for names in ROLES.values() for name in names)
APART = "score."  # before the name of a score that is called like something else


class Source:
    """A list before it is read: a file, standard input, or a directory. Its lines are read once."""

    def __init__(self, path: str | Path) -> None:
        self.path = os.fspath(path)

    def __str__(self) -> str:
        return named(self.path)

    @property
    def ending(self) -> str:
        """The ending of the file's name, that of packing aside, in small letters."""
        stem, ending = os.path.splitext(self.path.lower())
        return os.path.splitext(stem)[1] if ending in PACKED else ending

    @functools.cached_property
    def lines(self) -> list[tuple[str, str]]:
        """Every line that is not blank, with its place for messages."""
        lines = enumerate(read_lines(self.path), 1)
        return [(f"{self}, line {line}", text) for line, text in lines if text.strip()]

    def keyed_lines(self) -> Iterator[tuple[str, str, str]]:
        """Read `key words…` lines with their places; a key may stand alone."""
        for where, text in self.lines:
            key, *words = text.split()
            yield where, key, " ".join(words)


class Hypothesis(NamedTuple):
    """A hypothesis as it is read: its place, and scores under the list's names, which may be numbers or texts."""

    where: str
    utterance: str
    text: str
    scores: Mapping[str, Any]
    reference: str | None = None


@dataclass
class Utterance:
    """One utterance's hypotheses with their scores by name (higher is better), and the reference if it is known."""

    name: str
    texts: list[str] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=dict)
    reference: str | None = None
    where: str = field(default="", compare=False)  # the place where it begins


@dataclass(frozen=True)
class NBest:
    """All utterances, in the order of the file, and which scores all hypotheses have."""

    utterances: list[Utterance]
    score_names: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)  # how the list calls a score that has another name here
    left_out: tuple[str, ...] = ()  # what is not used, a sentence each
    form: str = field(default="", compare=False)  # the name of the format

    @property
    def has_am(self) -> bool:
        """Whether there are acoustic scores, or total scores of the recogniser."""
        return AM in self.score_names

    @property
    def has_references(self) -> bool:
        """Whether the list has the reference of every utterance."""
        return all(utterance.reference is not None for utterance in self.utterances)

    @property
    def num_hypotheses(self) -> int:
        """How many there are of all utterances together."""
        return sum(len(utterance.texts) for utterance in self.utterances)

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse the name of a score that the list does not have."""
        known = [*self.score_names, *self.sources.values()]
        for name in names:
            if name not in known:
                raise unknown_name(f"score in {argument('score_files')}", name, known)

    def counted(self) -> str:
        """Say how many utterances and hypotheses there are."""
        num_utterances = counted(len(self.utterances), "utterance")
        return f"{num_utterances}, {counted(self.num_hypotheses, 'hypothesis', 'hypotheses')}"

    def described(self) -> str:
        """Say how many utterances there are and what they have beside texts, in a few words."""
        names = [f"{name} ('{self.sources[name]}')" if name in self.sources else name for name in self.score_names]
        scores = f"scores: {', '.join(names)}" if names else "no scores"
        references = "with references" if self.has_references else "no references inside"
        return f"{self.counted()}, {references}; {scores}"


def assemble(
    source: Source, hypotheses: Iterable[Hypothesis], form: str, fields: Collection[str] | None, costs: bool
) -> NBest:
    """Put hypotheses together by utterance, and check that all have the same scores, and references or none.

    Without `fields` every number is a score. Else, where one has a known name, others must be named in `fields`.
    """
    rows = list(hypotheses)
    if not rows:
        raise UserError(f"{source} has no hypothesis: give one or more.")
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    left_out = []
    if fields is not None and not KNOWN_NAMES.isdisjoint(names):
        others = [name for name in names if name not in KNOWN_NAMES and name not in fields]
        names = [name for name in names if name not in others]
        if others:
            listed = ", ".join(map(shown, others))
            left_out.append(
                f"Not used as scores: {listed}. Name one as {argument('scores')} or {argument('weight')} to use it."
            )
    roles = role_names(names)
    utterances: dict[str, Utterance] = {}
    for where, key, text, scores, reference in rows:
        for part in (key, text, reference or ""):
            check_letters(part, where)
        utterance = utterances.setdefault(key, Utterance(key, reference=reference, where=where))
        utterance.texts.append(" ".join(text.split()))
        for name, role in roles.items():
            if scores.get(name) is not None:
                score = number(scores[name], where)
                utterance.scores.setdefault(role, []).append(-score if costs else score)
    lists = list(utterances.values())
    used = {}
    for name, role in roles.items():
        lacking = next((one for one in lists if len(one.scores.get(role, [])) != len(one.texts)), None)
        if lacking is None:
            used[role] = name
            continue
        if role in ROLES:
            raise UserError(
                f"{lacking.where} has {len(lacking.scores.get(role, []))} scores named {' or '.join(ROLES[role])} for "
                f"{len(lacking.texts)} hypotheses: give one for each hypothesis of the list, or none."
            )
        left_out.append(f"The score '{role}' is not used: {lacking.where} does not have it for all hypotheses.")
    for utterance in lists:
        utterance.scores = {role: utterance.scores[role] for role in used}
    without = next((utterance for utterance in lists if utterance.reference is None), None)
    if without is not None and any(utterance.reference is not None for utterance in lists):
        raise UserError(
            f"{without.where} has no reference for '{without.name}', but other utterances have one: give all or none."
        )
    sources = {role: name for role, name in used.items() if role != name}
    return NBest(lists, tuple(used), sources, tuple(left_out), form)


def number(value: Any, where: str) -> float:
    """Read a score, which must be a finite number."""
    try:
        # Python reads 1_000 as a number; no recogniser writes that.
        found = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise UserError(f"{where} has the score {shown(value)}: it must be a finite number.")
    return found


def check_letters(text: str, where: str) -> None:
    """Refuse halves of characters, which escapes such as \\ud800 can make and no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where} has the text {shown(text)}, which has half of a character (a lone surrogate): write the whole "
            "character."
        ) from error


def role_names(names: Sequence[str]) -> dict[str, str]:
    """Name the scores of a list: the first of a role's names becomes the role, others keep their own.

    One that has the name of a role which another has is renamed.
    """
    found = {}
    for role, known in ROLES.items():
        first = next((name for name in known if name in names), None)
        if first is not None:
            found[first] = role
    return found | tell_apart([name for name in names if name not in found], found.values())


def tell_apart(names: Sequence[str], taken: Collection[str]) -> dict[str, str]:
    """Put `score.` before those names of scores that are taken, and give all of them under their old names."""
    free = {name for name in names if name not in taken}
    found = {name: name for name in names}
    for name in names:
        while found[name] in taken or (found[name] != name and found[name] in free):
            found[name] = f"{APART}{found[name]}"
    return found


def pool(lists: Sequence[tuple[str, NBest]]) -> NBest:
    """Put lists of different utterances together; each has a path for messages."""
    seen: dict[str, str] = {}
    for path, nbest in lists:
        for utterance in nbest.utterances:
            if utterance.name in seen:
                raise UserError(
                    f"'{path}' has the utterance '{utterance.name}', which '{seen[utterance.name]}' has, too: give "
                    "lists of different utterances."
                )
            seen[utterance.name] = path
    first = lists[0][1]
    utterances = [utterance for _, nbest in lists for utterance in nbest.utterances]
    left_out = tuple(sentence for _, nbest in lists for sentence in nbest.left_out)
    return NBest(utterances, first.score_names, first.sources, left_out, first.form)


def check_same_scores(lists: Sequence[tuple[str, NBest]]) -> None:
    """Refuse lists with different scores: weights of one would mean nothing to the other."""
    path, first = lists[0]
    for other_path, other in lists[1:]:
        if set(first.score_names) != set(other.score_names):
            raise UserError(
                f"'{path}' has {_scores_of(first)} and '{other_path}' has {_scores_of(other)}: give lists with the "
                "same scores."
            )


def _scores_of(nbest: NBest) -> str:
    return f"the scores {', '.join(nbest.score_names)}" if nbest.score_names else "no scores"
