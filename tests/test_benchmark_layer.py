"""The layer's benchmark: everything it measures runs on a CPU, as ratios of times without memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import layer

SMALL = ["--vocab-size", "60", "--hidden-size", "8", "--steps", "3", "--streams", "4", "--sizes", "50,70"]
QUICK = ["--rounds", "1", "--repeats", "1", "--device", "cpu"]


@pytest.mark.parametrize(("what", "num_rows"), [("calls", 2 * 4), ("linear", 2 * 3), ("tables", 2)])
def test_every_table_is_written_as_it_is_printed(
    what: str, num_rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layer.main([what, *SMALL, *QUICK, "--out", str(tmp_path)])
    written = (tmp_path / f"layer-{what}.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == written
    rows = [line for line in written.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == num_rows
    assert all("–" in row for row in rows)  # memory is measured on a GPU alone


def test_graphs_need_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        layer.main(["calls", *SMALL, *QUICK, "--captured"])
    assert "--captured needs a GPU" in capsys.readouterr().err
