"""The figures of the results are drawn from what was measured on test, also when a part lacks a run."""

from __future__ import annotations

import pytest

from benchmarks.figures import draw_gap, draw_time, entries, read_gaps
from bnce.errors import UserError


@pytest.fixture
def experiments(tmp_path, write_run):
    for part in ("ltcb-quarter", "ltcb", "ltcb-all"):
        for loss in ("softmax", "bnce"):
            write_run(tmp_path / part / f"relu-lstm-{loss}", "relu-lstm", loss)
    write_run(tmp_path / "ltcb" / "relu-lstm-snce", "relu-lstm", "snce")
    stopped = {"status": "stopped"}
    write_run(tmp_path / "ltcb-all" / "relu-lstm-snce", "relu-lstm", "snce", evaluated=False, summary=stopped)
    return tmp_path


def test_gaps_are_those_on_test_of_their_own_part(experiments):
    gaps = {entry.row.loss: found for entry, found in read_gaps(experiments)}
    assert gaps == {
        "bnce": pytest.approx(dict.fromkeys(("ltcb-quarter", "ltcb", "ltcb-all"), 100 * (64.9 / 62.4 - 1))),
        "snce": pytest.approx({"ltcb": 100 * (68.4 / 67.1 - 1)}),
    }


def test_both_are_drawn(experiments):
    draw_gap(experiments, experiments)
    draw_time(entries(experiments / "ltcb-all"), experiments)
    assert {path.name for path in experiments.glob("*.svg")} == {"normalisation-gap.svg", "time-to-quality.svg"}


def test_time_needs_a_finished_softmax_run(tmp_path, write_run):
    write_run(tmp_path / "relu-lstm-softmax", "relu-lstm", "softmax", summary={"status": "running"}, num_done=3)
    write_run(tmp_path / "relu-lstm-bnce", "relu-lstm", "bnce")
    with pytest.raises(UserError, match="no finished softmax run"):
        draw_time(entries(tmp_path), tmp_path)
