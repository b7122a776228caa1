"""Schedules warm up, fall or halve: the rates of a run, as its metrics tell them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_corpus import small_corpus
from small_training import train_small

from bnce import Corpus

FLOOR = 0.003  # the last steps of a decay still move
Factors = Callable[..., list[float]]
EVERY_STEP = {"evaluations_per_epoch": 1000}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory.mktemp("schedule") / "corpus", num_train=403)  # an epoch has 10 steps


@pytest.fixture
def factors(tmp_path: Path, corpus: Corpus) -> Factors:
    """Train, and give the factor on the rate at every evaluation; it belongs to the last step before that."""

    def train(
        optimiser: dict[str, Any], training: dict[str, Any], rate: float = 0.1, stop_after: int | None = None
    ) -> list[float]:
        rates = {"learning_rate": rate, "body_learning_rate": rate / 10}
        training = {"max_valid_tokens": 20, **training}
        train_small(
            tmp_path / "run", corpus, optimiser={**rates, **optimiser}, training=training, stop_after=stop_after
        )
        lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["lr"] / rate for line in lines]

    return train


@pytest.mark.parametrize(
    ("patience", "expected"),
    [(2, [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625]), (7, [1] * 8 + [0.5] * 2)],
)
def test_halve_after_patience_epochs_without_a_better_one(
    factors: Factors, patience: int, expected: list[float]
) -> None:
    """Steps this short change nothing, and as good is no better. The paper waits seven epochs."""
    found = factors({"schedule": "halve", "patience": patience}, {"epochs": 10}, rate=1e-30)
    assert found == pytest.approx(expected)


def test_linear_falls_from_one_to_the_floor(factors: Factors) -> None:
    found = factors({"schedule": "linear"}, {"epochs": 34})
    assert found[:-1] == pytest.approx([1 - (10 * epoch - 1) / 340 for epoch in range(1, 34)])
    assert found[-1] == pytest.approx(FLOOR)


def test_cosine_falls_slowly_at_both_ends(factors: Factors) -> None:
    found = factors({"schedule": "cosine"}, {"epochs": 34})
    assert found[0] > 0.998
    assert found[16] == pytest.approx(0.5, abs=0.005)
    assert found[3] > 0.9 + 0.05
    assert found[30] < 0.1 - 0.05
    assert found[-1] == pytest.approx(FLOOR)


def test_linear_warms_up(factors: Factors) -> None:
    found = factors({"warmup_steps": 4}, {"epochs": 10, **EVERY_STEP}, stop_after=7)
    assert found == pytest.approx([0.25 * 1.0, 0.5 * 0.99, 0.75 * 0.98, 0.97, 0.96, 0.95])


def test_a_short_run_warms_up_for_its_first_half(factors: Factors) -> None:
    """A recipe's warm-up is longer than the whole run: the rates must still come to something."""
    found = factors({"warmup_steps": 500}, {"epochs": 1, **EVERY_STEP})
    assert found == pytest.approx([0.2, 0.36, 0.48, 0.56, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_a_run_of_one_step_has_its_whole_rate(factors: Factors) -> None:
    assert factors({"warmup_steps": 500}, {"epochs": 0.1}) == [1.0]
