"""Numbers are printed as the paper prints them, also where rounding changes the unit."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    ("column", "file", "key", "shown"),
    [
        ("TS (w/s)", "summary", "words_per_second", {
            812: "812", 999.7: "1.0K", 8_400: "8.4K", 35_100: "35.1K", 999_949: "999.9K", 999_960: "1.00M",
            5.87e6: "5.87M", 9.996e6: "10.0M", 12.3e6: "12.3M", 0.0: "0", None: "—",
        }),
        ("NoP", "summary", "num_parameters", {
            12: "12", 12_345: "12.3K", 999_960: "1.0M", 48_800_000: "48.8M", 66_000_000: "66.0M", 880_000_000: "0.88B",
            1_590_000_000: "1.59B", None: "—",
        }),
        ("PPLf", "evaluation", "ppl_f", {110.24: "110.2", 59.0: "59.0", 123_456.0: "1.23e+05", None: "—"}),
        ("train time", "summary", "train_seconds", {
            0.04: "0.0 s", 12.34: "12.3 s", 59.96: "1 min 00 s", 750: "12 min 30 s", 3599.7: "1 h 00 min",
            11_100: "3 h 05 min", 86_399: "1 d 00 h", 183_600: "2 d 03 h", None: "—",
        }),
        ("epochs", "summary", "epochs", {20.0: "20", 1.5: "1.5", 0.041: "0.04", 0.0: "0", None: "—"}),
    ],
)  # fmt: skip
def test_columns_of_the_table(tmp_path, write_run, compare_runs, column, file, key, shown):
    runs = [
        write_run(tmp_path / f"{place}", num_evaluations=0, **{file: {key: value}}) for place, value in enumerate(shown)
    ]
    comparison = compare_runs(runs)
    assert [row[comparison.head.index(column)] for row in comparison.cells] == list(shown.values())


def test_ratio(tmp_path, write_run, compare_runs):
    runs = [write_run(tmp_path / "softmax", "rnn", "softmax", summary={"words_per_second": 1000.0})]
    runs += [
        write_run(tmp_path / f"{speed}", num_evaluations=0, summary={"words_per_second": speed})
        for speed in (4178.0, 24310.0, None)
    ]
    assert [row[5] for row in compare_runs(runs).cells] == ["1.00", "4.18", "24.3", "—"]


def test_spread(tmp_path, write_run, compare_runs):
    shown = {(8.981, 0.306): "8.98 ± 0.31", (8.981, None): "8.98", (None, 0.3): "—"}
    runs = [
        write_run(tmp_path / f"{mean} {std}", evaluation={"log_z_mean": mean, "log_z_std": std}) for mean, std in shown
    ]
    assert [row[6] for row in compare_runs(runs).cells] == list(shown.values())


@pytest.mark.parametrize(("num_bytes", "shown"), [(512 * 2**20, "512 MiB"), (3.42 * 2**30, "3.42 GiB")])
def test_memory(tmp_path, write_run, report, num_bytes, shown):
    path = write_run(tmp_path / "a")
    (path / "metrics.jsonl").write_text(json.dumps({"step": 1, "ppl_f": 9.0, "peak_memory_bytes": int(num_bytes)}))
    assert f'<th scope="row">peak memory</th><td>{shown}</td>' in report([path]).page
