"""N-best lists that are real in form, made of sentences by an error model that stands for a recogniser.

A sentence becomes a row of slots with alternatives:
- a word that sounds or is spelt like others (edit distance 2 or less and the same first letter and consonant classes,
  as Soundex has them; or edit distance 1; 1 at most for words of up to 3 letters) has up to ALTERNATIVES of them beside
  it, drawn by the root of their counts, at UNCERTAIN_SHARE of the words;
- of those a word of up to SHORT_LETTERS letters may also be left out;
- between words a short word may be put in, at INSERTION_SHARE of the places.

The acoustic cost of an alternative is EDIT_COST for each letter that it differs in, plus Gaussian noise; what was said
has noise alone, so that it is not always the cheapest. A hypothesis costs the sum over its slots. The NUM_CHEAPEST
hypotheses by acoustic cost are scored with the old language model, and the list is the NUM_HYPOTHESES best of both
together, the best first: what was said need not be in it. The settings below give a first best with 15–25% of its words
wrong and lists whose best has half of that or less, which is what they were chosen by, on sentences of another text.

Marks such as commas are words like others, of which the error model changes none. Costs are natural logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bnce.corpus.vocabulary import SPECIALS, Vocabulary
from bnce.scoring.ngram_model import NgramModel

NUM_HYPOTHESES = 50
NUM_CHEAPEST = 400
UNCERTAIN_SHARE = 0.45  # of words that are spelt with letters
INSERTION_SHARE = 0.1
ALTERNATIVES = 2
SHORT_LETTERS = 3
EDIT_COST, NOISE = 0.5, 2.0  # natural logarithms
OLD_LM_WEIGHT = 0.4

_CLASSES = {
    letter: str(number)
    for number, group in enumerate(("bfpv", "cgjkqsxz", "dt", "l", "mn", "r"), 1)
    for letter in group
}


@dataclass(frozen=True)
class Hypothesis:
    """Words with their costs, natural logarithms, lower is better."""

    words: tuple[str, ...]
    am_cost: float
    lm_cost: float


def sound_key(word: str) -> str:
    """Give a word's first letter and its consonants' classes, repeats and vowels left out."""
    classes = [_CLASSES.get(letter, "") for letter in word]
    kept = [one for place, one in enumerate(classes) if one and (place == 0 or classes[place - 1] != one)]
    return word[0] + "".join(kept[1 if classes[0] else 0 :])


def edit_distance(one: str, other: str, most: int = 3) -> int:
    """Count the letters to change, put in or take out; from `most` on it is `most`."""
    if abs(len(one) - len(other)) >= most:
        return most
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one, 1):
        before, row[0] = row[0], place
        for column, other_letter in enumerate(other, 1):
            before, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, before + (letter != other_letter)),
            )
        if min(row) >= most:
            return most
    return min(row[-1], most)


class Confusions:
    """Which words of a vocabulary may be heard for which."""

    def __init__(self, vocabulary: Vocabulary, counts: np.ndarray) -> None:
        self.counts = {word: int(count) for word, count in zip(vocabulary.words, counts, strict=True)}
        self.spelt = [word for word in vocabulary.words if word.isalpha() and word not in SPECIALS]
        self.short = [word for word in self.spelt[:200] if len(word) <= SHORT_LETTERS]
        self._by_sound: dict[str, list[str]] = {}
        self._by_deletion: dict[str, list[str]] = {}
        for word in self.spelt:
            self._by_sound.setdefault(sound_key(word), []).append(word)
            for cut in _deletions(word):
                self._by_deletion.setdefault(cut, []).append(word)

    def of(self, word: str) -> dict[str, int]:
        """Give the words that a word may be taken for, with their edit distances."""
        near = {other for cut in _deletions(word) for other in self._by_deletion.get(cut, [])}
        found = {
            other: edit_distance(word, other) for other in sorted(near | set(self._by_sound.get(sound_key(word), [])))
        }
        # Of two letters, one changed leaves little that sounds alike.
        limit = 1 if len(word) < 4 else 2
        return {other: distance for other, distance in found.items() if 0 < distance <= limit}


def _deletions(word: str) -> set[str]:
    """Give a word and what it is with one letter left out: words at distance 1 have one of these in common."""
    return {word, *(word[:place] + word[place + 1 :] for place in range(len(word)))}


def make_slots(
    words: Sequence[str], confusions: Confusions, generator: np.random.Generator
) -> list[list[tuple[str, float]]]:
    """Lay out what may have been said, word by word, with acoustic costs; "" is no word."""
    slots = []
    for word in words:
        options = {word: 0.0}
        if word.isalpha() and generator.random() < UNCERTAIN_SHARE:
            found = confusions.of(word)
            if found:
                weights = np.sqrt([confusions.counts[other] + 1.0 for other in found])
                num = min(ALTERNATIVES, len(found))
                for other in generator.choice(list(found), num, replace=False, p=weights / weights.sum()).tolist():
                    options[other] = EDIT_COST * found[other]
            if len(word) <= SHORT_LETTERS:
                options[""] = EDIT_COST * len(word)
        slots.append(_with_noise(options, generator))
        if generator.random() < INSERTION_SHARE:
            extra = str(generator.choice(confusions.short))
            slots.append(_with_noise({"": 0.0, extra: EDIT_COST * len(extra)}, generator))
    return slots


def _with_noise(options: dict[str, float], generator: np.random.Generator) -> list[tuple[str, float]]:
    if len(options) == 1:
        return list(options.items())
    return [(word, cost + NOISE * generator.standard_normal()) for word, cost in options.items()]


def cheapest(slots: list[list[tuple[str, float]]], num: int) -> Iterator[tuple[tuple[str, ...], float]]:
    """Find the cheapest ways through the slots, the cheapest first; equal words are given once."""
    ways: list[tuple[float, tuple[str, ...]]] = [(0.0, ())]
    for slot in slots:
        longer = {}
        for cost, words in ways:
            for word, more in slot:
                way = (*words, word) if word else words
                longer[way] = min(cost + more, longer.get(way, np.inf))
        ways = sorted((cost, way) for way, cost in longer.items())[:num]
    for cost, words in ways:
        yield words, cost


def make_list(
    words: Sequence[str], confusions: Confusions, old_lm: NgramModel, generator: np.random.Generator
) -> list[Hypothesis]:
    """Make the n-best list of one sentence."""
    ways = list(cheapest(make_slots(words, confusions, generator), NUM_CHEAPEST))
    scores = old_lm.score_words([way for way, _ in ways])
    found = [
        Hypothesis(way, cost, -float(score.log_probs.sum())) for (way, cost), score in zip(ways, scores, strict=True)
    ]
    return sorted(found, key=lambda one: one.am_cost + OLD_LM_WEIGHT * one.lm_cost)[:NUM_HYPOTHESES]


def write_lists(
    directory: Path, half: str, sentences: Sequence[Sequence[str]], lists: Sequence[Sequence[Hypothesis]]
) -> None:
    """Write lists as Kaldi does: hypotheses, costs by the same keys, and references."""
    rows = [
        (f"{half}-{number:03d}-{place}", one)
        for number, hypotheses in enumerate(lists, 1)
        for place, one in enumerate(hypotheses, 1)
    ]
    contents = {
        "nbest": [f"{key} {' '.join(one.words)}" for key, one in rows],
        "am": [f"{key} {one.am_cost:.4f}" for key, one in rows],
        "lm": [f"{key} {one.lm_cost:.4f}" for key, one in rows],
        "ref": [f"{half}-{number:03d} {' '.join(words)}" for number, words in enumerate(sentences, 1)],
    }
    for ending, lines in contents.items():
        (directory / f"{half}.{ending}").write_text("\n".join(lines) + "\n", encoding="utf-8")
