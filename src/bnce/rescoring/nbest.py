"""N-best lists as recognisers write them: what is in them, in whichever format they come.

A hypothesis may be empty, and an utterance's hypotheses keep their order. Every mistake is told with its line. A score
has a name; `am` and `old_lm` are the two that every version knew, under whatever names lists have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bnce.errors import UserError, argument, counted, unknown_name
from bnce.rescoring.formats.source import AM, OLD_LM, ROLES, Source
from bnce.rescoring.nbest_formats import NBEST_FORMATS


@dataclass
class Utterance:
    """One utterance's hypotheses with their scores by name (higher is better), and the reference if it is known."""

    name: str
    texts: list[str] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=dict)
    reference: str | None = None
    line: int = field(default=0, compare=False)  # where it begins

    def add(self, text: str, scores: Mapping[str, float]) -> None:
        """Add a hypothesis; blanks between its words count as one."""
        self.texts.append(" ".join(text.split()))
        for name, score in scores.items():
            self.scores.setdefault(name, []).append(score)


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
    def has_old_lm(self) -> bool:
        """Whether there are scores of an old language model."""
        return OLD_LM in self.score_names

    @property
    def has_references(self) -> bool:
        """Whether the list says what was said."""
        return all(utterance.reference is not None for utterance in self.utterances)

    @property
    def num_hypotheses(self) -> int:
        """How many there are of all utterances together."""
        return sum(len(utterance.texts) for utterance in self.utterances)

    def told(self) -> str:
        """Say how many utterances there are and what they have beside texts, in a few words."""
        names = [f"{name} ('{self.sources[name]}')" if name in self.sources else name for name in self.score_names]
        with_them = f"scores: {', '.join(names)}" if names else "no scores"
        references = "with references" if self.has_references else "no references inside"
        return f"{self.counted()}, {references}; {with_them}"

    def counted(self) -> str:
        """Say how many utterances and hypotheses there are."""
        num_utterances = counted(len(self.utterances), "utterance")
        return f"{num_utterances}, {counted(self.num_hypotheses, 'hypothesis', 'hypotheses')}"


def read_nbest(
    path: str | Path,
    form: str = "auto",
    *,
    score_files: Mapping[str, str] | None = None,
    costs: bool = False,
) -> NBest:
    """Read a list; `costs` says that scores are costs, as Kaldi writes them: lower is better."""
    source = Source(path)
    name = recognise(source) if form == "auto" else form
    if name not in NBEST_FORMATS:
        raise unknown_name("format of n-best lists", name, NBEST_FORMATS)
    kind = NBEST_FORMATS[name]
    if score_files and not kind.scores_apart:
        raise UserError(
            f"{argument('score_files')} is for Kaldi text, and {source} is read as {name}: leave it out, or give "
            f"{argument('form', 'kaldi')}."
        )
    read = kind.load("read")
    nbest: NBest = read(source, score_files or {}) if kind.scores_apart else read(source)
    if costs:
        for utterance in nbest.utterances:
            utterance.scores = {name: [-one for one in own] for name, own in utterance.scores.items()}
    return nbest


def recognise(source: Source) -> str:
    """Tell the format by the file's name and by its first lines."""
    for name, kind in NBEST_FORMATS.items():
        if source.ending in kind.endings and not source.is_directory:
            return name
    return next(name for name, kind in NBEST_FORMATS.items() if kind.load("recognise")(source))


def neighbour(source: Source, utterances: dict[str, Utterance], utterance: Utterance) -> Utterance:
    """Give the utterance that a line belongs to: the one of the line before, or this new one, which is added."""
    last = next(reversed(utterances), None)
    if utterance.name in utterances and last != utterance.name:
        raise UserError(
            f"{source.at(utterance.line)} has '{utterance.name}' again, after '{last}': put all hypotheses of an "
            "utterance on neighbouring lines, the best first."
        )
    return utterances.setdefault(utterance.name, utterance)


def make_nbest(source: Source, utterances: Iterable[Utterance], sources: Mapping[str, str], form: str) -> NBest:
    """Check that all hypotheses have the same scores, and all utterances references or none."""
    lists = list(utterances)
    if not lists:
        raise UserError(f"{source} has no hypothesis: give one or more.")
    for utterance in lists:
        if not utterance.texts:
            raise UserError(f"{source.at(utterance.line)} has no hypothesis for '{utterance.name}': give one or more.")
    names = dict.fromkeys(name for utterance in lists for name in utterance.scores)
    left_out = []
    for name in list(names):
        lacking = next((one for one in lists if len(one.scores.get(name, [])) != len(one.texts)), None)
        if lacking is None:
            continue
        where = source.at(lacking.line)
        if name in ROLES:
            raise UserError(
                f"{where} has {len(lacking.scores.get(name, []))} scores named {' or '.join(ROLES[name])} for "
                f"{len(lacking.texts)} hypotheses: give one for each hypothesis of the list, or none."
            )
        left_out.append(f"The score '{name}' is not used: {where} does not have it for all hypotheses.")
        del names[name]
    for utterance in lists:
        for name in [name for name in utterance.scores if name not in names]:
            del utterance.scores[name]
    with_reference = [utterance for utterance in lists if utterance.reference is not None]
    if 0 < len(with_reference) < len(lists):
        without = next(utterance for utterance in lists if utterance.reference is None)
        raise UserError(
            f"{source.at(without.line)} has no reference for '{without.name}', but other utterances have one: give all "
            "or none."
        )
    used = {name: own for name, own in sources.items() if name in names}
    return NBest(lists, tuple(names), used, tuple(left_out), form)


def pool(lists: Sequence[tuple[str, NBest]]) -> NBest:
    """Put lists with the same scores and different utterances together; each has a path for messages."""
    _, first = lists[0]
    if len(lists) == 1:
        return first
    seen: dict[str, str] = {}
    for path, nbest in lists:
        check_same_scores(lists[0], (path, nbest))
        for utterance in nbest.utterances:
            if utterance.name in seen:
                raise UserError(
                    f"'{path}' has the utterance '{utterance.name}', which '{seen[utterance.name]}' has, too: give "
                    "lists of different utterances."
                )
            seen[utterance.name] = path
    utterances = [utterance for _, nbest in lists for utterance in nbest.utterances]
    left_out = tuple(sentence for _, nbest in lists for sentence in nbest.left_out)
    return NBest(utterances, first.score_names, first.sources, left_out, first.form)


def check_same_scores(first: tuple[str, NBest], other: tuple[str, NBest]) -> None:
    """Refuse lists with different scores: weights of one would mean nothing to the other."""
    if set(first[1].score_names) != set(other[1].score_names):
        raise UserError(
            f"'{first[0]}' has {_scores_of(first[1])} and '{other[0]}' has {_scores_of(other[1])}: give lists with "
            "the same scores."
        )


def _scores_of(nbest: NBest) -> str:
    return f"the scores {', '.join(nbest.score_names)}" if nbest.score_names else "no scores"
