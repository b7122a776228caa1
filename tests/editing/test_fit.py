"""A constant and a head: fitted to positions that were made up, where the right answer is known.

Legend: N positions, D hidden.
"""

from __future__ import annotations

import numpy as np
import pytest

from bnce.editing.calibrate import RIDGES, Fit, Sample, fit_constant, fit_head, judge, standard_error

SLOPE = np.array([0.5, -1.0, 2.0, 0.0])


def make_sample(num_positions: int, noise: float, seed: int = 1, *, num_useless: int = 0) -> Sample:
    """Make positions at which ln Z is 7 + SLOPE·h and a little more; `num_useless` units say nothing of it."""
    generator = np.random.default_rng(seed)
    hidden_ND = 3 + generator.normal(size=(num_positions, len(SLOPE) + num_useless))
    log_z_N = 7 + hidden_ND[:, : len(SLOPE)] @ SLOPE + noise * generator.normal(size=num_positions)
    score_N = log_z_N - 4 + generator.normal(size=num_positions)
    return Sample(hidden_ND, score_N, log_z_N, np.arange(num_positions) // 5)


def test_the_constant_is_the_mean_which_makes_the_perplexities_equal() -> None:
    sample = make_sample(200, 0.3)
    found = judge(sample, fit_constant(sample))
    assert found.ppl_n == pytest.approx(found.ppl_f, rel=1e-12)
    assert found.difference_mean == pytest.approx(0, abs=1e-12)
    assert found.difference_std == pytest.approx(sample.log_z_N.std())
    assert found.ppl_f == pytest.approx(np.exp(-np.mean(sample.score_N - sample.log_z_N)))
    # A constant that is too large by 0.1 makes every probability too small by that.
    assert judge(sample, Fit(fit_constant(sample).log_z + 0.1)).ppl_n == pytest.approx(np.exp(0.1) * found.ppl_f)


def test_the_standard_error_is_that_of_the_mean_over_blocks() -> None:
    generator = np.random.default_rng(2)
    # Within a block all positions are alike, so there are only as many numbers as blocks.
    block_N = np.arange(4000) // 5
    log_z_N = 9 + 0.5 * generator.normal(size=800)[block_N]
    sample = Sample(np.zeros((4000, 0)), log_z_N - 4, log_z_N, block_N)
    assert standard_error(sample, fit_constant(sample)) == pytest.approx(0.5 / np.sqrt(800), rel=0.1)


def test_a_head_finds_the_line() -> None:
    fit = fit_head(make_sample(2000, 0.01))
    assert fit.slope_D is not None
    np.testing.assert_allclose(fit.slope_D, SLOPE, atol=2e-3)
    assert fit.log_z == pytest.approx(7, abs=0.01)
    found = judge(make_sample(500, 0.01, seed=2), fit)
    assert found.difference_std == pytest.approx(0.01, rel=0.2)
    assert found.ppl_n == pytest.approx(found.ppl_f, rel=1e-2)


def test_a_head_leaves_no_mean_behind_on_what_it_is_fitted_to() -> None:
    sample = make_sample(100, 1.0)
    found = judge(sample, fit_head(sample))
    assert found.difference_mean == pytest.approx(0, abs=1e-10)
    assert found.ppl_n == pytest.approx(found.ppl_f, rel=1e-9)


def test_a_head_of_many_units_and_few_positions_is_held_down() -> None:
    """Without a ridge it would pass through every position, and be worse than the constant elsewhere."""
    few = make_sample(60, 2.0, num_useless=60)
    elsewhere = make_sample(2000, 2.0, seed=2, num_useless=60)
    fit = fit_head(few)
    assert fit.ridge is not None
    assert fit.ridge > min(RIDGES)
    assert judge(elsewhere, fit).difference_std < judge(elsewhere, fit_constant(few)).difference_std


def test_where_h_says_nothing_the_head_is_the_constant() -> None:
    sample = make_sample(400, 1.0)
    by_chance = Sample(np.random.default_rng(3).normal(size=(400, 40)), sample.score_N, sample.log_z_N, sample.block_N)
    for hidden_ND in (by_chance.hidden_ND, np.zeros((400, 3))):
        one = Sample(hidden_ND, sample.score_N, sample.log_z_N, sample.block_N)
        fit, constant = fit_head(one), fit_constant(one)
        assert fit.log_z == pytest.approx(constant.log_z, abs=0.2)
        assert judge(one, fit).difference_std == pytest.approx(judge(one, constant).difference_std, rel=0.05)


def test_neighbours_are_never_on_both_sides() -> None:
    """Positions of a block are alike: a fit that has seen its neighbours is not judged by strangers."""
    sample = make_sample(203, 0.1)
    fitted, held_out = sample.split(3)
    assert len(fitted) + len(held_out) == 203
    assert len(held_out) == 50
    assert not set(fitted.block_N) & set(held_out.block_N)
    # Cross-validation keeps blocks together, too: two copies of every position, in one block, tell it nothing new.
    few = make_sample(40, 2.0, num_useless=60)
    twice = Sample(*(np.repeat(part, 2, axis=0) for part in (few.hidden_ND, few.score_N, few.log_z_N, few.block_N)))
    assert fit_head(twice).ridge == fit_head(few).ridge
