"""What rescoring changed, word by word: which words of the references it corrected, and which it broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bnce.errors import counted
from bnce.rescoring.error_rate import import_jiwer
from bnce.rescoring.nbest import NBest


class Step(NamedTuple):
    """A word of the reference beside what was recognised in its place; None where there is nothing."""

    said: str | None
    heard: str | None

    @property
    def is_error(self) -> bool:
        """Whether the two differ."""
        return self.said != self.heard


@dataclass(frozen=True)
class Changed:
    """An utterance with another hypothesis than before."""

    name: str
    before: list[Step]
    after: list[Step]

    @property
    def num_fewer(self) -> int:
        """How many errors fewer there are."""
        return sum(step.is_error for step in self.before) - sum(step.is_error for step in self.after)


Pair = tuple[str, str | None]  # a word of the reference, and what was recognised in its place


@dataclass
class Changes:
    """All changes, and how often each word was part of one."""

    utterances: list[Changed] = field(default_factory=list)
    corrected: Counter[Pair] = field(default_factory=Counter)
    broken: Counter[Pair] = field(default_factory=Counter)
    insertions_removed: Counter[str] = field(default_factory=Counter)
    insertions_added: Counter[str] = field(default_factory=Counter)

    def best(self, most: int) -> list[Changed]:
        """Give the utterances that lost the most errors, the best first."""
        better = [one for one in self.utterances if one.num_fewer > 0]
        return sorted(better, key=lambda one: -one.num_fewer)[:most]

    def worst(self, most: int) -> list[Changed]:
        """Give the utterances that gained the most errors, the worst first."""
        worse = [one for one in self.utterances if one.num_fewer < 0]
        return sorted(worse, key=lambda one: one.num_fewer)[:most]

    def count(self) -> dict[str, int]:
        """Count utterances and words."""
        return {
            "num_changed": len(self.utterances),
            "num_better": sum(one.num_fewer > 0 for one in self.utterances),
            "num_worse": sum(one.num_fewer < 0 for one in self.utterances),
            "num_corrected": self.corrected.total(),
            "num_broken": self.broken.total(),
            "num_insertions_removed": self.insertions_removed.total(),
            "num_insertions_added": self.insertions_added.total(),
        }

    def to_dict(self) -> dict[str, Any]:
        """Give counts and words as JSON has them, the most frequent first."""
        words: dict[str, Any] = {
            name: [
                {"word": said, "heard": heard, "count": count} for (said, heard), count in ranked(getattr(self, name))
            ]
            for name in ("corrected", "broken")
        }
        words |= {
            name: [{"word": word, "count": count} for word, count in ranked(getattr(self, name))]
            for name in ("insertions_removed", "insertions_added")
        }
        return {**self.count(), **words}

    def __str__(self) -> str:
        found = self.count()
        return (
            f"Another hypothesis was chosen for {counted(found['num_changed'], 'utterance')}: {found['num_better']} "
            f"with fewer errors, {found['num_worse']} with more. Words corrected: {found['num_corrected']}; broken: "
            f"{found['num_broken']}; inserted words removed: {found['num_insertions_removed']}; added: "
            f"{found['num_insertions_added']}."
        )


def ranked(counts: Counter[Any]) -> list[tuple[Any, int]]:
    """Sort by count, and equals by their words."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], [one or "" for one in [*pair[0]]]))


def find_changes(nbest: NBest, references: Sequence[str], places: Sequence[int]) -> Changes:
    """Compare the hypotheses at these places of their own lists with the first ones."""
    changes = Changes()
    for utterance, reference, place in zip(nbest.utterances, references, places, strict=True):
        first, chosen = utterance.texts[0], utterance.texts[place]
        if first == chosen:
            continue
        one = Changed(utterance.name, align(reference, first), align(reference, chosen))
        changes.utterances.append(one)
        of_words = ([step for step in steps if step.said is not None] for steps in (one.before, one.after))
        for before, after in zip(*of_words, strict=True):
            if before.is_error and not after.is_error:
                changes.corrected[str(before.said), before.heard] += 1
            elif after.is_error and not before.is_error:
                changes.broken[str(after.said), after.heard] += 1
        inserted = [Counter(step.heard for step in steps if step.said is None) for steps in (one.before, one.after)]
        changes.insertions_removed.update({str(word): num for word, num in (inserted[0] - inserted[1]).items()})
        changes.insertions_added.update({str(word): num for word, num in (inserted[1] - inserted[0]).items()})
    return changes


def align(reference: str, hypothesis: str) -> list[Step]:
    """Set the words of a reference beside those of a hypothesis, with the fewest errors."""
    said, heard = reference.split(), hypothesis.split()
    if not said or not heard:
        return [*(Step(word, None) for word in said), *(Step(None, word) for word in heard)]
    made = import_jiwer().process_words(" ".join(said), " ".join(heard))
    steps: list[Step] = []
    for chunk in made.alignments[0]:
        own = said[chunk.ref_start_idx : chunk.ref_end_idx]
        found = heard[chunk.hyp_start_idx : chunk.hyp_end_idx]
        if chunk.type == "insert":
            steps += [Step(None, word) for word in found]
        elif chunk.type == "delete":
            steps += [Step(word, None) for word in own]
        else:
            steps += [Step(*pair) for pair in zip(own, found, strict=True)]
    return steps
