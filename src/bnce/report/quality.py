"""Time to quality: how long a run trained until it was about as good as the best of its model's softmax run."""

from __future__ import annotations

import math
from collections.abc import Sequence

MARGIN = 1.05  # about as good: within 5%

Point = tuple[float, float]  # seconds of training, validation perplexity


def seconds_to_reach(points: Sequence[Point], perplexity: float) -> float | None:
    """Read a validation curve at a perplexity, in a straight line of log perplexity between evaluations.

    None where the run never got there. A run that was there at its first evaluation took at most that long.
    """
    before: Point | None = None
    for seconds, value in points:
        if value <= perplexity:
            if before is None or before[1] <= value:
                return seconds
            share = math.log(before[1] / perplexity) / math.log(before[1] / value)
            return before[0] + share * (seconds - before[0])
        before = (seconds, value)
    return None


def target_perplexity(softmax_points: Sequence[Point]) -> float | None:
    """Compute the perplexity to reach from the softmax run's own curve: its best, whose model is tested, and 5%."""
    return MARGIN * min(perplexity for _, perplexity in softmax_points) if softmax_points else None
