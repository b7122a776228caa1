"""Word error rates, counted by jiwer. Words are what stands between blanks, compared as they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bnce.errors import counted
from bnce.machine.packages import need


class Errors(NamedTuple):
    """Errors of some hypotheses against their references."""

    num_utterances: int = 0
    num_words: int = 0  # of the references
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def total(self) -> int:
        """How many words have to be changed, put in or taken out."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def wer(self) -> float | None:
        """Errors per word of the references; None where they have none."""
        return self.total / self.num_words if self.num_words else None

    def to_dict(self) -> dict[str, Any]:
        """Give counts and rate as JSON has them."""
        return {"wer": self.wer, **self._asdict()}

    def __str__(self) -> str:
        rate = "undefined" if self.wer is None else f"{100 * self.wer:.2f}%"
        where = f"{counted(self.num_words, 'word')} in {counted(self.num_utterances, 'utterance')}"
        return (
            f"{rate} ({self.total} of {where}: "
            f"{counted(self.substitutions, 'substitution')}, {counted(self.deletions, 'deletion')}, "
            f"{counted(self.insertions, 'insertion')})"
        )


def count_errors(reference: str, hypotheses: Sequence[str]) -> list[Errors]:
    """Count the errors of each hypothesis of one utterance; equal ones are counted once."""
    jiwer = import_jiwer()
    words = reference.split()
    found: dict[str, Errors] = {}
    for hypothesis in hypotheses:
        if hypothesis in found:
            continue
        if not words:
            # Versions of jiwer differ in whether they take an empty reference.
            found[hypothesis] = Errors(1, 0, 0, 0, len(hypothesis.split()))
            continue
        made = jiwer.process_words(" ".join(words), " ".join(hypothesis.split()))
        found[hypothesis] = Errors(1, len(words), made.substitutions, made.deletions, made.insertions)
    return [found[hypothesis] for hypothesis in hypotheses]


def sum_errors(errors: Iterable[Errors]) -> Errors:
    """Sum up the errors of several utterances."""
    columns = list(zip(*errors, strict=True))
    return Errors(*(sum(column) for column in columns)) if columns else Errors()


def import_jiwer() -> Any:
    """Load jiwer, or say how to get it, before any work is done."""
    return need("jiwer", "A word error rate")
