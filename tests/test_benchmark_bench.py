"""The benchmark of training steps: what is timed, in which order, and how the figures follow from the seconds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_corpus import small_config

from benchmarks import bench
from bnce import LOSSES, OPTIMISERS

CPU = torch.device("cpu")
RECIPE = """
base = "wiki"

[model]
embedding_size = 6
hidden_size = 8
bottleneck_size = 7

[optimiser]
name = "{optimiser}"

[training]
batch_size = 8
num_steps = 5
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a recipe of small sizes, and let a round be short."""
    monkeypatch.setattr(bench, "NUM_ROUNDS", 1)
    monkeypatch.setattr(bench, "ROUND_SECONDS", 0.01)
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.format(optimiser="rowwise-adam"), encoding="utf-8")
    return path


def measured(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    bench.main([*map(str, arguments), "--device", "cpu", "--json"])
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_every_loss_at_every_size(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = measured(capsys, recipe, "--vocab-sizes", "200,2000")
    assert set(record) == {
        "recipe", "device", "torch", "bnce", "num_rounds", "round_seconds", "matmul_teraflops", "measurements",
    }  # fmt: skip
    items = record["measurements"]
    assert [(item["vocab_size"], item["loss"]) for item in items] == [
        (size, loss) for size in (200, 2000) for loss in LOSSES
    ]
    for item in items:
        assert item["words_per_second"] == pytest.approx(8 * 5 / item["step_seconds"])
        assert item["teraflops"] > 0
        assert item["speedup_over_softmax"] > 0
        assert (item["speedup_over_softmax"] == 1) == (item["loss"] == "softmax")


def test_every_optimiser(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in OPTIMISERS:
        recipe.write_text(RECIPE.format(optimiser=name), encoding="utf-8")
        items = measured(capsys, recipe, "--vocab-sizes", 200, "--losses", "softmax,bnce")["measurements"]
        assert [item["words_per_second"] > 0 for item in items] == [True, True]


def test_softmax_is_left_out_where_it_is_too_slow(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--vocab-sizes", "100001", "--losses", "softmax,bnce", "--models", "ffnn"]
    (item,) = measured(capsys, recipe, *options)["measurements"]
    assert (item["model"], item["loss"], item["speedup_over_softmax"]) == ("ffnn", "bnce", None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--losses", "bnce,sofmax"], "Did you mean 'softmax'?"),
        (["--models", "lstm,grru"], "Unknown model 'grru'"),
        (["--vocab-sizes", "20k"], "--vocab-sizes: invalid"),
        (["--out", "place"], "--out works only with --suite paper"),
        (["--device", "tpu"], "Unknown device 'tpu'"),
        (["--suite", "paper", "--device", "cpu"], "it needs a CUDA GPU"),
        (["nothing"], "Unknown recipe 'nothing'"),
    ],
)
def test_refusals(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(options)
    assert told in capsys.readouterr().err


class FakeClock:
    """A clock on which a step takes as long as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, list[float]]) -> None:
        """`seconds` are those of a step of each loss, round by round; the first is the one to settle in."""
        self.now = 0.0
        self.rounds: list[str] = []
        monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: self.now))
        plain = bench.Runner.run

        def run(runner: Any, round_seconds: float) -> float:
            loss = runner.config.loss.name
            current = seconds[loss][self.rounds.count(loss)]
            self.rounds.append(loss)
            call = runner.step

            def step(*arguments: Any) -> None:
                self.now += current
                call(*arguments)

            runner.step = step
            taken = plain(runner, round_seconds)
            runner.step = call
            return taken

        monkeypatch.setattr(bench.Runner, "run", run)


def test_medians_of_rounds_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"softmax": [9.0, 4.0, 2.0, 4.5], "bnce": [9.0, 1.0, 0.5, 2.0]}
    clock = FakeClock(monkeypatch, seconds)
    result = bench.bench([(small_config(loss={"name": loss}), 50) for loss in seconds], CPU, 3, 8.0)
    assert clock.rounds == ["softmax", "bnce"] * 4
    softmax, bnce = result["measurements"]
    assert softmax["step_seconds"] == pytest.approx(4.0)
    assert softmax["words_per_second"] == pytest.approx(8 * 5 / 4.0)
    assert softmax["spread"] == pytest.approx((4.5 - 2.0) / 2 / 4.0)
    assert bnce["step_seconds"] == pytest.approx(1.0)
    assert (softmax["speedup_over_softmax"], bnce["speedup_over_softmax"]) == (1.0, pytest.approx(4.0))
    assert (result["num_rounds"], result["round_seconds"], result["torch"]) == (3, 8.0, torch.__version__)


def test_a_speedup_compares_like_with_like() -> None:
    def one(loss: str, words_per_second: float, **changes: Any) -> bench.Measurement:
        item = bench.Measurement("lstm", loss, 0, 50, 8, 5, words_per_second, 0.0, 1.0, None, 1.0)
        return dataclasses.replace(item, **changes)

    items = [
        one("softmax", 10.0),
        one("bnce", 30.0),
        one("bnce", 90.0, vocab_size=51),
        one("bnce", 90.0, model="rnn"),
        one("bnce", 90.0, batch_size=9),
        one("bnce", 90.0, num_steps=6),
        one("softmax", 45.0, vocab_size=51),
    ]
    speedups = [item.speedup_over_softmax for item in bench._compare(items)]
    assert speedups == [1.0, 3.0, 2.0, None, None, None, 1.0]


@pytest.mark.parametrize("model", ["ffnn", "lstm"])
def test_a_timed_step_is_a_whole_training_step(model: str) -> None:
    config = small_config(model={"name": model})
    runner = bench.Runner(config, 50, CPU)
    before = {name: tensor.clone() for name, tensor in runner.model.state_dict().items()}
    state = [part.clone() for part in runner.step.state]
    assert runner.run(0.0) > 0
    after = runner.model.state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in before if name != "output.log_z")
    if model == "lstm":
        assert not torch.equal(runner.step.state[0], state[0])


def test_the_products_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(model={"name": "lstm"}, loss={"name": "bnce"})
    model = bench.Runner(config, 30, CPU).model
    products = sum(parameter.numel() for parameter in model.body.parameters() if parameter.ndim == 2)
    columns = config.training.batch_size * model.output.hidden_size
    assert bench.flops_per_word(model, config) == 6.0 * (products + columns)


def test_chunks_never_end() -> None:
    runner = bench.Runner(small_config(), 50, CPU)
    first = next(runner.chunks)
    others = [next(runner.chunks) for _ in range(bench.NUM_CHUNKS)]
    assert torch.equal(others[-1].target_TB, first.target_TB)
    assert not torch.equal(others[0].target_TB, first.target_TB)


def test_the_suite_of_the_paper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, str, int]] = []

    def pretend(configs: Any, *arguments: Any) -> dict[str, Any]:
        asked.extend((config.model.name, config.loss.name, size) for config, size in configs)
        item = {"words_per_second": 64e3, "peak_memory_bytes": 2**30, "spread": 0.0, "step_seconds": 1.0}
        item |= {"speedup_over_softmax": None, "matmul_share": None}
        names = [{"model": config.model.name, "loss": config.loss.name} for config, _ in configs]
        return {"measurements": [{**item, **name} for name in names], "matmul_teraflops": 700.0}

    monkeypatch.setattr(bench, "bench", pretend)
    monkeypatch.setattr(bench, "choose_device", lambda name: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(bench, "describe_device", lambda device: "a GPU")
    monkeypatch.setattr(bench, "release_memory", lambda device: None)
    bench.main(["--suite", "paper", "--out", str(tmp_path / "h200")])
    assert asked == [
        (model, loss, size)
        for size in (80_000, 793_471)
        for model in ("ffnn", "rnn", "relu-rnn", "lstm", "relu-lstm")
        for loss in ("softmax", "snce", "bnce", "chunk-bnce")
    ]
    result = json.loads((tmp_path / "h200" / "paper.json").read_text(encoding="utf-8"))
    paper = {(row["table"], row["model"], row["loss"]): row["speedup_over_paper"] for row in result["measurements"]}
    assert paper["ltcb", "relu-lstm", "bnce"] == pytest.approx(2.0)
    assert paper["ltcb", "relu-lstm", "chunk-bnce"] is None
    assert paper["obwb", "relu-lstm", "softmax"] is None
    page = (tmp_path / "h200" / "paper.md").read_text(encoding="utf-8")
    assert "| ltcb | relu-lstm | bnce | 0.064M | 0.0% | 1000.000 | — | 2 | — | 1.00 GiB |" in page
    assert "matrix products reach 700 TFLOP/s" in page
