"""`bnce bench`: every loss at every size, as JSON or as a table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from command import Command, settings

from bnce import LOSSES, OPTIMISERS

Refused = Callable[..., str]

QUICK = ["--rounds", 1, "--seconds", 0.01, "--device", "cpu", *settings()]


def test_every_loss_at_every_size(bnce: Command) -> None:
    record = bnce("bench", "--vocab-sizes", "200,2_000", *QUICK, "--json").json
    assert {
        "recipe",
        "device",
        "torch",
        "bnce",
        "num_rounds",
        "round_seconds",
        "matmul_teraflops",
        "measurements",
    } == set(record)
    measured = record["measurements"]
    assert [(item["vocab_size"], item["loss"]) for item in measured] == [
        (size, loss) for size in (200, 2000) for loss in LOSSES.names
    ]
    for item in measured:
        assert item["words_per_second"] == pytest.approx(8 * 5 / item["step_seconds"])
        assert item["speedup_over_softmax"] > 0
        assert (item["speedup_over_softmax"] == 1) == (item["loss"] == "softmax")


def test_every_optimiser(bnce: Command) -> None:
    for name in OPTIMISERS.names:
        options = ["--vocab-sizes", 200, "--losses", "softmax,bnce", "--set", f"optimiser.name={name}"]
        measured = bnce("bench", *options, *QUICK, "--json").json["measurements"]
        assert [item["words_per_second"] > 0 for item in measured] == [True, True]


def test_softmax_is_left_out_where_it_is_too_slow(bnce: Command) -> None:
    options = ["--vocab-sizes", "100001", "--losses", "softmax,bnce", "--models", "ffnn"]
    (item,) = bnce("bench", *options, *QUICK, "--json").json["measurements"]
    assert (item["model"], item["loss"], item["speedup_over_softmax"]) == ("ffnn", "bnce", None)


def test_a_table_for_people(bnce: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = bnce("bench", "--vocab-sizes", "2000", "--losses", "softmax,bnce", *QUICK)
    assert outcome.status == 0, outcome.stderr
    rows = [line for line in outcome.stdout.splitlines() if "relu-lstm" in line]
    assert len(rows) == 2
    assert all("2,000" in row and "8 × 5" in row for row in rows)
    assert "…" not in outcome.stdout
    assert "Median of 1 rounds of 0.01 s" in outcome.stdout


def test_the_table_of_a_gpu_has_the_share_of_the_matmul_rate(bnce: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    item = {"model": "transformer", "loss": "chunk-bnce", "softmax": None, "num_noise": 0, "vocab_size": 80_000}
    speed = {"words_per_second": 2.1e6, "spread": 0.01, "step_seconds": 0.004, "speedup_over_softmax": 2.2}
    measured = [{**item, **speed, "batch_size": 64, "num_steps": 128, "matmul_share": 0.416}]
    conditions = {"device": "a GPU", "torch": "2", "num_rounds": 5, "round_seconds": 0.5, "matmul_teraflops": 700.0}
    monkeypatch.setattr("bnce.measure.bench.bench", lambda *given, **options: {**conditions, "measurements": measured})
    outcome = bnce("bench", "transformer", "--models", "transformer", "--losses", "chunk-bnce", *QUICK)
    assert outcome.status == 0, outcome.stderr
    (row,) = [line for line in outcome.stdout.splitlines() if "64 × 128" in line]
    assert row.split()[-1] == "42%"
    assert " K " not in outcome.stdout, "no loss draws noise"
    assert "as a share of the 700 TFLOP/s" in " ".join(outcome.stdout.split())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--losses", "bnce,sofmax"], "Did you mean 'softmax'?"),
        (["--models", "lstm,grru"], "Unknown model 'grru'"),
        (["--vocab-sizes", "20k"], "--vocab-sizes received '20k': give whole numbers, separated by commas."),
        (["--vocab-sizes", "2"], "--vocab-sizes received 2: a vocabulary has at least 3 words."),
        (["--losses", "softmax", "--vocab-sizes", "800000"], "Nothing is left to measure"),
        (["--set", "training.batch_size=0"], "it must be at least 1"),
        (["--device", "tpu"], "Unknown device 'tpu'"),
        (["nothing"], "Unknown recipe 'nothing'"),
    ],
)
def test_refusals(refused: Refused, options: list[str], told: str) -> None:
    assert told in refused("bench", *options)
