"""Perplexity from a sum of log-probabilities, at its edges, too."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bnce.evaluation.perplexity import perplexity


def test_natural_logarithms_and_those_to_the_base_ten() -> None:
    assert perplexity(-6 * math.log(8), 6) == pytest.approx(8)
    assert perplexity(np.float64(-12.0), 6, log10=True) == pytest.approx(100)


@pytest.mark.parametrize("log10", [False, True])
def test_at_the_edges(log10: bool) -> None:
    assert perplexity(0.0, 0, log10=log10) is None
    assert perplexity(-1.0, -1, log10=log10) is None
    assert perplexity(-1e9, 2, log10=log10) == math.inf
    assert perplexity(-math.inf, 2, log10=log10) == math.inf
    assert math.isnan(perplexity(math.nan, 2, log10=log10) or 0.0)
