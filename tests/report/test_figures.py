"""The plots of the results are drawn from what is kept, also when a part lacks a run."""

from __future__ import annotations

import json

import pytest

from benchmarks.figures import KEPT, PARTS, WHOLE, draw_gap, draw_time, keep_curves, read_gaps, rows

SECONDS = {"softmax": 55.7, "bnce": 10.4, "snce": None}
PPL = {"softmax": (None, 59.6), "bnce": (64.9, 62.4), "snce": (68.4, 67.1)}


def row(loss, split="test"):
    return {
        "run": f"relu-lstm-{loss}", "model": "relu-lstm", "loss": loss, "num_noise": 100, "split": split,
        "ppl_n": PPL[loss][0], "ppl_f": PPL[loss][1], "softmax_quality_ppl_f": 62.6,
        "seconds_to_softmax_quality": SECONDS[loss], "reached_at_first_evaluation": loss == "bnce",
    }  # fmt: skip


@pytest.fixture
def kept(tmp_path):
    parts = {part: [row("softmax"), row("bnce")] for part in (*PARTS, WHOLE)}
    parts["ltcb"] += [row("snce"), {**row("bnce"), "model": "lstm", "ppl_n": 1.0}]
    parts[WHOLE] += [row("snce", split="valid")]
    for part, found in parts.items():
        (tmp_path / f"{part}.json").write_text(json.dumps({"rows": found}))
    return tmp_path


def test_gaps_are_those_on_test_of_their_own_part(kept):
    gaps = {loss.record.name: found for loss, found in read_gaps(kept)}
    assert gaps == {
        "bnce": pytest.approx(dict.fromkeys(PARTS, 100 * (64.9 / 62.4 - 1))),
        "snce": pytest.approx({"ltcb": 100 * (68.4 / 67.1 - 1)}),
    }


def test_both_are_drawn_from_the_curves_of_runs(kept, tmp_path, write_run):
    for loss in ("softmax", "bnce", "snce"):
        write_run(tmp_path / "experiment" / f"relu-lstm-{loss}", "relu-lstm", loss)
    keep_curves(tmp_path / "experiment", kept)
    curves = json.loads((kept / "time-to-quality.json").read_text())
    assert set(curves) == {f"relu-lstm-{loss}" for loss in ("softmax", "bnce", "snce")}
    assert all(len(point) == 2 for points in curves.values() for point in points)
    draw_gap(kept, kept)
    draw_time(kept, kept)
    assert {path.name for path in kept.glob("*.svg")} == {"normalisation-gap.svg", "time-to-quality.svg"}


def test_kept_curves_end_where_the_kept_rows_say():
    curves = json.loads((KEPT / "time-to-quality.json").read_text(encoding="utf-8"))
    found = {row["run"]: row for _, row in rows(KEPT, WHOLE)}
    assert set(curves) == set(found)
    for run, points in curves.items():
        assert points[-1][0] == pytest.approx(found[run]["train_seconds"], rel=1e-4)
    best = min(ppl_f for _, ppl_f in curves["relu-lstm-softmax"])
    assert found["relu-lstm-softmax"]["softmax_quality_ppl_f"] == pytest.approx(1.05 * best, rel=1e-4)
