"""Perplexity: the one place that computes it from a sum of log-probabilities."""

from __future__ import annotations

import math


def perplexity(log_prob: float, num_tokens: int, *, log10: bool = False) -> float | None:
    """Compute exp(−log_prob / num_tokens), or with `log10` a power of ten; None where there are no tokens."""
    if num_tokens <= 0:
        return None
    mean = -float(log_prob) / int(num_tokens)
    try:
        return float(10.0**mean) if log10 else math.exp(mean)
    except OverflowError:
        return math.inf
