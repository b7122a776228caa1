"""Weights of the scores that decide between hypotheses, and their file.

total = am_weight · am + old_lm_weight · old_lm + lm_weight · ln p − word_penalty · words − oov_penalty · OOV words
        − rank_weight · ln place + the sum of weight · score over the other scores of the list, by name

Scores are logarithms, higher is better. ln p is natural, that of the new language model; the others keep the base they
came with, and their weights make up for it. A hypothesis' place in its list, 1 for the first, says what the recogniser
thought of it where there are no scores: on real lists −ln place did better than −place and −√place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bnce import files
from bnce.errors import UserError, shown, unknown_name
from bnce.files import read_object

NAMES = ("am_weight", "old_lm_weight", "lm_weight", "word_penalty", "oov_penalty", "rank_weight")
OTHER = "scores."  # before the name of another score, where weights are named


def count_words(hypothesis: str) -> int:
    """Count the words for the word penalty: those between blanks, as the recogniser wrote them."""
    return len(hypothesis.split())


@dataclass(frozen=True)
class Weights:
    """The weight of each score; by default the new language model replaces the old one."""

    am_weight: float = 1.0
    old_lm_weight: float = 0.0
    lm_weight: float = 1.0
    word_penalty: float = 0.0
    oov_penalty: float = 0.0
    rank_weight: float = 0.0
    # The weights of other scores by name, sorted; a mapping becomes that. A score that has none does not count.
    scores: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", tuple(sorted(dict(self.scores).items())))
        for name, value in [*((name, getattr(self, name)) for name in NAMES), *self.scores]:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise UserError(f"The weight {name} is {value!r}: it must be a finite number.")

    def total(
        self,
        am: Any = 0.0,
        old_lm: Any = 0.0,
        lm: Any = 0.0,
        num_words: Any = 0,
        num_oov: Any = 0,
        log_place: Any = 0.0,
        others: Mapping[str, Any] | None = None,
    ) -> Any:
        """Combine scores: numbers, or arrays of one shape; a total that is not finite is refused."""
        with np.errstate(over="ignore", invalid="ignore"):
            total = (
                self.am_weight * am
                + self.old_lm_weight * old_lm
                + self.lm_weight * lm
                - self.word_penalty * num_words
                - self.oov_penalty * num_oov
                - self.rank_weight * log_place
            )
            for name, weight in self.scores:
                if weight:
                    total = total + weight * (others or {})[name]
        if not np.all(np.isfinite(total)):
            raise UserError(f"The total of a hypothesis is not a finite number with {self}: give smaller weights.")
        return total

    def value(self, name: str) -> float:
        """Give a weight by its name, or `scores.` and the name of a score."""
        if name.startswith(OTHER):
            return dict(self.scores).get(name.removeprefix(OTHER), 0.0)
        return float(getattr(self, name))

    def changed(self, values: Mapping[str, float]) -> Weights:
        """Change some weights, by the names that `value` knows."""
        others = {name.removeprefix(OTHER): value for name, value in values.items() if name.startswith(OTHER)}
        own: dict[str, Any] = {name: value for name, value in values.items() if not name.startswith(OTHER)}
        return replace(self, **own, scores=(*self.scores, *others.items()))

    def to_dict(self) -> dict[str, Any]:
        """Give all weights as JSON has them; those of other scores only where there are some."""
        own = {name: getattr(self, name) for name in NAMES}
        return {**own, **({"scores": dict(self.scores)} if self.scores else {})}

    def __str__(self) -> str:
        pairs = [*((name, getattr(self, name)) for name in NAMES), *self.scores]
        return ", ".join(f"{name} {value:g}" for name, value in pairs)

    @classmethod
    def read(cls, path: str | Path) -> Weights:
        """Read the JSON file that `write` makes; a weight that is not in it has its default."""
        try:
            found = read_object(Path(path))
        except ValueError as error:
            raise UserError(
                f"'{path}' is not a weights file from 'bnce rescore' ({error}): "
                "give such a file, or the weights as options."
            ) from error
        for name in found:
            if name not in (*NAMES, "scores"):
                raise unknown_name(f"weight in '{path}'", name, NAMES)
        others = found.pop("scores", {})
        if not isinstance(others, dict):
            raise UserError(f"'{path}' has the scores {shown(others)}: give a weight for each name.")
        return cls(**found, scores=tuple(others.items()))

    def write(self, path: str | Path) -> None:
        """Write the file that `read` reads."""
        files.write_json(Path(path), self.to_dict())


# The hypothesis that the list has first, whatever its scores are.
FIRST_BEST = Weights(0.0, 0.0, 0.0, 0.0, 0.0, rank_weight=1.0)

# Where nothing was tuned: cautious, because acoustic scores may come at any scale. The penalty makes up for `<unk>`,
# which stands for all unknown words together, and goes with the weight that this wrong probability has. On four sets of
# real lists a trigram gained 0.2 to 0.8 points of WER with them; with 1 and no penalty it lost 0.5 to 1.8.
UNTUNED_LM_WEIGHT = 0.25
OOV_PENALTY_PER_LM_WEIGHT = 16.0

# Where nothing was tuned and there are no acoustic scores. With it and lm_weight 1, the best hypotheses of four sets of
# real lists had at most 0.01 points of WER more than the first ones; with 8, those of two sets had 0.3 points more.
RANK_WEIGHT = 16.0
