"""How many words are wrong before rescoring, after it and at best, and how far chance may reach.

Words are what stands between blanks, compared as they are written. The bootstrap draws as many utterances as there are,
with replacement, over and over. An interval holds the middle 95% of what the draws give. Every draw has the same
utterances before and after (it is paired), so that the difference is known better than either rate. Utterances count as
independent; where speakers differ much, intervals are too narrow.

Legend: U utterances, N hypotheses of all of them, S draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.errors import counted
from bnce.rescoring.nbest import NBest

NUM_DRAWS = 1000
SEED = 1  # the same lists give the same intervals
PERCENT = 95
MIN_UTTERANCES = 20  # with fewer, the draws are too much alike to say how far chance may reach

Ints = NDArray[np.int64]


class Errors(NamedTuple):
    """Errors of some hypotheses against their references."""

    num_utterances: int
    num_words: int  # of the references
    substitutions: int
    deletions: int
    insertions: int

    @property
    def wer(self) -> float | None:
        """Errors per word of the references; None where they have none."""
        return sum(self[2:]) / self.num_words if self.num_words else None

    def __str__(self) -> str:
        rate = "undefined" if self.wer is None else f"{100 * self.wer:.2f}%"
        where = f"{counted(self.num_words, 'word')} in {counted(self.num_utterances, 'utterance')}"
        return (
            f"{rate} ({sum(self[2:])} of {where}: "
            f"{counted(self.substitutions, 'substitution')}, {counted(self.deletions, 'deletion')}, "
            f"{counted(self.insertions, 'insertion')})"
        )


class Judge:
    """The errors of every hypothesis against references, counted once and then looked up.

    Where references and hypotheses are in letters of another size, which makes nearly every word an error, both are
    compared in small letters.
    """

    def __init__(self, nbest: NBest, references: Sequence[str]) -> None:
        lists = [utterance.texts for utterance in nbest.utterances]
        self.ignores_case = _differ_in_case([texts[0] for texts in lists], references)
        if self.ignores_case:
            references = [reference.casefold() for reference in references]
            lists = [[text.casefold() for text in texts] for texts in lists]
        self.texts_N = np.array([text for texts in lists for text in texts], dtype=object)
        errors = [_count_errors(reference, texts) for reference, texts in zip(references, lists, strict=True)]
        self._errors_N5 = np.array([one for own in errors for one in own], dtype=np.int64)
        self.num_errors_N: Ints = self._errors_N5[:, 2:].sum(axis=1)
        # The places among all of those that the lists have first, and of those with the fewest errors.
        self.first_U = np.cumsum([0, *(len(own) for own in errors[:-1])], dtype=np.int64)
        fewest = [int(own_N.argmin()) for own_N in np.split(self.num_errors_N, self.first_U[1:])]
        self.oracle_U = self.first_U + np.array(fewest, dtype=np.int64)
        self.num_words_U: Ints = self._errors_N5[self.first_U, 1]

    def judge(self, place_U: Ints) -> Errors:
        """Sum up the errors of chosen hypotheses, by their places among all."""
        return Errors(*self._errors_N5[place_U].sum(axis=0).tolist())


def _differ_in_case(hypotheses: Sequence[str], references: Sequence[str]) -> bool:
    """Tell whether most words of the references that stand in the hypotheses do so with other capital letters."""
    as_written = in_small_letters = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        as_written += sum(word in set(hypothesis.split()) for word in reference.split())
        in_small_letters += sum(word in set(hypothesis.casefold().split()) for word in reference.casefold().split())
    return 2 * as_written < in_small_letters


def _count_errors(reference: str, hypotheses: Sequence[str]) -> list[Errors]:
    """Count the errors of each hypothesis of one utterance; equal ones are counted once."""
    from rapidfuzz.distance.Levenshtein import editops  # loaded where there is something to count

    words = reference.split()
    found: dict[str, Errors] = {}
    for hypothesis in hypotheses:
        if hypothesis not in found:
            kinds = [edit.tag for edit in editops(words, hypothesis.split())]
            found[hypothesis] = Errors(1, len(words), *(kinds.count(kind) for kind in ("replace", "delete", "insert")))
    return [found[hypothesis] for hypothesis in hypotheses]


@dataclass(frozen=True)
class Comparison:
    """Word errors of the first, the chosen and the most correct hypotheses, under these names, with intervals."""

    errors: dict[str, Errors]
    intervals: dict[str, tuple[float, float]]  # the middle of the draws; none without two utterances with words
    difference: float | None  # of the word error rates, after − before
    num_utterances: int  # with words
    ignores_case: bool
    # Utterances whose chosen hypothesis is another than the first, has fewer errors, has more errors.
    changes: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Give everything as JSON has it."""
        intervals = {name: list(interval) for name, interval in self.intervals.items()}
        rates = {
            name: {"wer": errors.wer, **errors._asdict(), "interval": intervals.get(name)}
            for name, errors in self.errors.items()
        }
        difference = {"wer": self.difference, "interval": intervals.get("difference")}
        return {**rates, "difference": difference, "changes": self.changes, "ignores_case": self.ignores_case}

    def lines(self) -> Iterator[str]:
        """Give a line for each rate, what follows from their difference, and how many utterances changed."""
        if self.ignores_case:
            yield "References and hypotheses differ in capital letters, so both were compared in small letters."
        for name, errors in self.errors.items():
            yield f"WER {name:<7}{errors}" + (f"; {self._shown(name)}%" if name in self.intervals else "")
        if self.difference is not None and "difference" in self.intervals:
            points = f"{100 * self.difference:+.2f} points; {self._shown('difference')} points (paired bootstrap)"
            yield f"WER after − before: {points}. {self._verdict(*self.intervals['difference'])}"
        yield (
            f"Another hypothesis was chosen for {counted(self.changes['num_changed'], 'utterance')}: "
            f"{self.changes['num_better']} with fewer errors, {self.changes['num_worse']} with more."
        )

    def _shown(self, name: str) -> str:
        low, high = self.intervals[name]
        return f"{PERCENT}% interval {100 * low:.2f} to {100 * high:.2f}"

    def _verdict(self, low: float, high: float) -> str:
        if self.num_utterances < MIN_UTTERANCES:
            return f"{self.num_utterances} utterances are too few to judge."
        if low == high == 0:
            return "No rate has changed."
        if low <= 0 <= high:
            return "This may be chance."
        return f"Rescoring makes these lists {'worse' if low > 0 else 'better'}."


def compare(judge: Judge, best_U: Ints) -> Comparison:
    """Compare chosen hypotheses, by their places among all, with the first ones and the most correct ones."""
    places = {"before": judge.first_U, "after": best_U, "oracle": judge.oracle_U}
    errors = {name: judge.judge(place_U) for name, place_U in places.items()}
    before, after = errors["before"].wer, errors["after"].wer
    num_utterances = int(np.count_nonzero(judge.num_words_U))
    fewer_U = judge.num_errors_N[judge.first_U] - judge.num_errors_N[best_U]
    changes = {
        "num_changed": int(np.count_nonzero(judge.texts_N[judge.first_U] != judge.texts_N[best_U])),
        "num_better": int(np.count_nonzero(fewer_U > 0)),
        "num_worse": int(np.count_nonzero(fewer_U < 0)),
    }
    intervals = {}
    if num_utterances > 1:
        columns_U = np.stack([judge.num_words_U, *(judge.num_errors_N[place_U] for place_U in places.values())], axis=1)
        drawn = dict(zip(places, _draw(columns_U), strict=True))
        drawn["difference"] = drawn["after"] - drawn["before"]
        tail = (100 - PERCENT) / 2
        for name, rate_S in drawn.items():
            low, high = np.percentile(rate_S, [tail, 100 - tail]).tolist()
            intervals[name] = (low, high)
    difference = None if before is None or after is None else after - before
    return Comparison(errors, intervals, difference, num_utterances, judge.ignores_case, changes)


def _draw(columns_U: Ints) -> NDArray[np.float64]:
    """Draw utterances and give the rates of errors per word of all draws, by kinds of hypotheses (…, S)."""
    generator = np.random.default_rng(SEED)
    num = len(columns_U)
    sums_S = np.stack([columns_U[generator.integers(num, size=num)].sum(axis=0) for _ in range(NUM_DRAWS)])
    sums_S = sums_S[sums_S[:, 0] > 0]  # a draw may have only utterances in which nothing was said
    rates: NDArray[np.float64] = (sums_S[:, 1:] / sums_S[:, :1]).T
    return rates
