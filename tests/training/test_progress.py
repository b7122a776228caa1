"""How far a run has come: what an evaluation changes in it, and what comes back from a checkpoint."""

from __future__ import annotations

import json
import math

from bnce.training.progress import Progress


def test_it_comes_back_as_it_was() -> None:
    progress = Progress(step=7, tokens=280, softmax="plain", warnings=["Few steps."], devices=["CPU", "GPU"])
    assert Progress.from_record(json.loads(json.dumps(progress.to_record()))) == progress
    assert Progress.from_record(progress.to_record()).best_perplexity == math.inf


def test_the_first_version_knew_less() -> None:
    """It saved after an evaluation, so the last step was evaluated."""
    record = {"step": 50, "tokens": 2000, "tokens_at_evaluation": 2000, "best_perplexity": 9.5, "schedule": {}}
    assert Progress.from_record(record) == Progress(50, 2000, 2000, 9.5, evaluated_step=50)


def test_an_evaluation_is_the_best_or_counts_as_none() -> None:
    progress = Progress()
    for step, perplexity in ((10, 8.0), (20, 8.0), (30, 9.0)):
        progress.step, progress.tokens = step, 100 * step
        progress.take_in(perplexity)
    assert (progress.best_step, progress.best_perplexity, progress.evaluations_without_better) == (10, 8.0, 2)
    assert (progress.evaluated_step, progress.tokens_at_evaluation) == (30, 3000)
