"""Fit what scores are divided by to a sample of positions, and judge it on others.

A score becomes ln p less a stand-in for ln Z(context) = ln Σ_v exp(h·w_v + c_v):

constant   ln Z(context) ≈ a         a is the mean. Then the mean of ln p is that of the softmax: PPLn = PPLf.
head       ln Z(context) ≈ a + b·h   ridge regression from the last hidden layer h. Its mean is that of ln Z, too.

A head needs nothing where words are scored. h·w + c − (a + b·h) = h·(w − b) + c − a, so b is subtracted from every row
of the output layer once, and a is the constant. The softmax over all words stays the same: every score of a context
loses the same b·h. What is left of ln Z(context) then is what the head leaves over.

Legend: N positions, D hidden, F folds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnce.calibration.sample import Floats, Sample
from bnce.evaluation.breakdown import perplexity

# Added to the variance of every direction of h, relative to their mean; without bound, the head is the constant.
RIDGES = (*(10.0**power for power in range(-7, 2)), np.inf)
NUM_FOLDS = 4


@dataclass(frozen=True)
class Fit:
    """ln Z(context) ≈ log_z + slope·h; without a slope it is a constant."""

    log_z: float
    slope_D: Floats | None = None
    ridge: float | None = None  # of RIDGES, that was best

    def predict(self, sample: Sample) -> Floats:
        """Predict ln Z at every position (N,)."""
        if self.slope_D is None:
            return np.full(len(sample), self.log_z)
        assert sample.hidden_ND is not None
        return self.log_z + sample.hidden_ND @ self.slope_D


@dataclass(frozen=True)
class Quality:
    """How well scores are normalised: both perplexities, and mean and spread of ln Z(context) − what is subtracted."""

    ppl_f: float | None  # with the softmax
    ppl_n: float | None  # with what is subtracted; None where nothing was meant to be
    difference_mean: float
    difference_std: float


def judge(sample: Sample, fit: Fit, *, is_used: bool = True) -> Quality:
    """Measure what a fit makes of a sample; one that is not used has no perplexity."""
    predicted_N = fit.predict(sample)
    difference_N = sample.log_z_N - predicted_N
    return Quality(
        ppl_f=perplexity(float((sample.score_N - sample.log_z_N).sum()), len(sample)),
        ppl_n=perplexity(float((sample.score_N - predicted_N).sum()), len(sample)) if is_used else None,
        difference_mean=float(difference_N.mean()),
        difference_std=float(difference_N.std()),
    )


def standard_error(sample: Sample, fit: Fit) -> float:
    """Say how well the mean of what a fit leaves over is known: blocks of neighbours count as one number each."""
    difference_N = sample.log_z_N - fit.predict(sample)
    block_means = np.bincount(sample.block_N, difference_N) / np.bincount(sample.block_N)
    return float(block_means.std(ddof=1) / np.sqrt(len(block_means)))


def fit_constant(sample: Sample) -> Fit:
    """Take the mean of ln Z(context)."""
    return Fit(float(sample.log_z_N.mean()))


def fit_head(sample: Sample) -> Fit:
    """Regress ln Z(context) on the hidden layer; how strongly the slope is held down is found by cross-validation."""
    assert sample.hidden_ND is not None
    _, number_N = np.unique(sample.block_N, return_inverse=True)
    fold_N = number_N % NUM_FOLDS
    errors = np.zeros(len(RIDGES))
    for fold in range(NUM_FOLDS):
        path = _Path.of(sample.where(fold_N != fold))
        errors += path.errors(sample.where(fold_N == fold))
    best = int(errors.argmin())
    return _Path.of(sample).at(RIDGES[best])


@dataclass(frozen=True)
class _Path:
    """The ridge regressions of one sample for every ridge: in the directions in which its hidden layers vary."""

    hidden_mean_D: Floats
    log_z_mean: float
    variance_D: Floats  # of each direction
    direction_DD: Floats  # one per column
    covariance_D: Floats  # of each direction with ln Z
    scale: float  # the mean variance

    @classmethod
    def of(cls, sample: Sample) -> _Path:
        assert sample.hidden_ND is not None
        mean_D, log_z_mean = sample.hidden_ND.mean(0), float(sample.log_z_N.mean())
        centred_ND = sample.hidden_ND - mean_D
        variance_D, direction_DD = np.linalg.eigh(centred_ND.T @ centred_ND / len(sample))
        covariance_D = direction_DD.T @ (centred_ND.T @ (sample.log_z_N - log_z_mean)) / len(sample)
        # Rounding makes a variance of 0 a little less; where all hidden layers are the same, any scale will do.
        variance_D = np.maximum(variance_D, 0.0)
        return cls(mean_D, log_z_mean, variance_D, direction_DD, covariance_D, float(variance_D.mean()) or 1.0)

    def at(self, ridge: float) -> Fit:
        """Give the regression for one ridge."""
        slope_D = self.direction_DD @ (self.covariance_D / (self.variance_D + ridge * self.scale))
        return Fit(self.log_z_mean - float(self.hidden_mean_D @ slope_D), slope_D, ridge)

    def errors(self, sample: Sample) -> Floats:
        """Sum the squared errors on other positions for each of RIDGES."""
        return np.array([np.square(sample.log_z_N - self.at(ridge).predict(sample)).sum() for ridge in RIDGES])
