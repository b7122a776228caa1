"""The layer's benchmark: everything it measures runs on a CPU, as ratios of times without memory."""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))  # as the script runs: beside its parts
try:
    import layer
finally:
    sys.path.pop(0)


SMALL = ["--vocab-size", "60", "--hidden-size", "8", "--steps", "3", "--streams", "4", "--sizes", "50,70"]
QUICK = ["--rounds", "2", "--repeats", "1", "--chunks", "2", "--device", "cpu"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what PyTorch's compiler does to itself
@pytest.mark.parametrize(("what", "num_rows"), [("calls", 2 * 4), ("linear", 2 * 3), ("others", 7), ("tables", 2)])
def test_every_table_is_written_as_it_is_printed(
    what: str, num_rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer, "ROUND_SECONDS", 0.002)
    layer.main([what, *SMALL, *QUICK, "--out", str(tmp_path)])
    written = (tmp_path / f"layer-{what}-cpu.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == written
    rows = [line for line in written.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == num_rows
    assert what == "others" or all("–" in row for row in rows)  # memory is measured on a GPU alone


def test_a_round_is_long_enough_and_the_ways_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "ROUND_SECONDS", 0.002)
    called: list[str] = []
    ways = {name: functools.partial(called.append, name) for name in ("a", "b")}
    given = argparse.Namespace(rounds=2, repeats=None)
    found = layer.measure(ways, torch.device("cpu"), given)
    assert len(called) > 100, "calls of a microsecond"
    assert [name for name, _ in itertools.groupby(called)] == ["a", "b", "a", "b", "a"]
    assert all(len(one.seconds) == 2 for one in found.values())
    assert found["a"].times(found["a"]) == 1


def test_a_ratio_is_that_of_its_rounds() -> None:
    base = layer.Measured([1.0, 10.0, 2.0], None)
    assert layer.Measured([1.1, 11.0, 2.2], None).times(base) == pytest.approx(1.1)
