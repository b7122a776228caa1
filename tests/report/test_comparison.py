"""Rows stand in the paper's order under the paper's names, and say when they cannot be compared."""

from __future__ import annotations

import json
import re

import pytest


def test_models_and_losses_in_the_papers_order(tmp_path, write_run, compare_runs):
    paths = [
        write_run(tmp_path / "1", "relu-lstm", "bnce"),
        write_run(tmp_path / "2", "rnn", "bnce", num_noise=400),
        write_run(tmp_path / "3", "rnn", "bnce"),
        write_run(tmp_path / "4", "rnn", "snce", num_noise=100),
        write_run(tmp_path / "5", "rnn", "nce", num_noise=25),
        write_run(tmp_path / "6", "rnn", "softmax", num_noise=7),
        write_run(tmp_path / "7", "ffnn", "softmax"),
        write_run(tmp_path / "8", "rnn", "snce", num_noise=20),
    ]
    assert [row.label for row in compare_runs(paths).rows] == [
        "5-gram FFNN (softmax)",
        "RNN (softmax)",
        "RNN (NCE, K=25)",
        "RNN (S-NCE, K=20)",
        "RNN (S-NCE, K=100)",
        "RNN (B-NCE)",
        "RNN (adaptive B-NCE, K=400)",
        "ReLu-LSTM (B-NCE)",
    ]


@pytest.mark.parametrize(
    ("known", "unknown", "says"),
    [("rnn", "rnm", "Unknown model 'rnm': .* Did you mean 'rnn'"), ("bnce", "bnse", "Unknown loss 'bnse': .*'bnce'")],
)
def test_a_name_that_nothing_is_known_of_has_no_place(tmp_path, write_run, refused, known, unknown, says):
    path = write_run(tmp_path / "newer")
    (path / "config.toml").write_text((path / "config.toml").read_text().replace(f'"{known}"', f'"{unknown}"'))
    assert re.search(f"The run '{path}' cannot be compared. {says}", refused("compare", path))


def test_equal_labels_are_told_apart(tmp_path, write_run, compare_runs):
    paths = [write_run(tmp_path / name) for name in ("x/run", "y/run", "other", "<b>&")]
    paths.append(write_run(tmp_path / "alone", "rnn", "snce"))
    assert [row.label for row in compare_runs(paths).rows] == [
        "RNN (S-NCE, K=100)",
        f"RNN (B-NCE), {tmp_path / 'x/run'}",
        f"RNN (B-NCE), {tmp_path / 'y/run'}",
        "RNN (B-NCE), other",
        "RNN (B-NCE), <b>&",
    ]


def test_raw_numbers(tmp_path, write_run, compare_runs):
    comparison = compare_runs([write_run(tmp_path / "a", "rnn", "snce", num_noise=100)])
    row = comparison.rows[0]
    assert (row.ppl_n, row.ppl_f, row.words_per_second, row.num_parameters) == (
        88.7,
        84.2,
        37.8e3,
        64_600_000,
    )
    assert (row.corpus, row.split, row.num_tokens, row.vocab_size) == ("ltcb", "test", 7_800_000, 80_000)
    assert row.oov_share == pytest.approx(0.023)
    assert (row.run, row.num_noise) == ("a", 100)
    assert row.peak_memory_bytes == 3 * 2**30 + 12, "of the last of twelve evaluations"
    assert row.comparable
    assert comparison.cells[0][0] == "RNN (S-NCE, K=100)"


def test_speedup_over_the_fastest_softmax_of_the_same_model(tmp_path, write_run, compare_runs):
    paths = [
        write_run(tmp_path / "slow", "rnn", "softmax", summary={"words_per_second": 1e3}),
        write_run(tmp_path / "fast", "rnn", "softmax", summary={"words_per_second": 4e3}),
        write_run(tmp_path / "bnce", "rnn", "bnce", summary={"words_per_second": 10e3}),
        write_run(tmp_path / "lstm", "relu-lstm", "bnce"),
    ]
    speedups = {row.run: row.speedup_over_softmax for row in compare_runs(paths).rows}
    assert speedups == {"slow": 0.25, "fast": 1.0, "bnce": 2.5, "lstm": None}


@pytest.mark.parametrize("other", [{"device": "NVIDIA H200"}, {"vocab_size": 10}, {"words_per_second": None}])
def test_no_speedup_over_another_machine_or_vocabulary(tmp_path, write_run, other, compare_runs):
    bnce = write_run(tmp_path / "bnce", num_evaluations=0)
    softmax = write_run(tmp_path / "softmax", "rnn", "softmax", num_evaluations=0, summary=other)
    assert {row.run: row.speedup_over_softmax for row in compare_runs([softmax, bnce]).rows}["bnce"] is None


def set_in(path, before, after):
    """Change one setting of a run."""
    settings = (path / "config.toml").read_text()
    assert settings.count(before) == 1
    (path / "config.toml").write_text(settings.replace(before, after))
    return path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("hidden_size = 600", "hidden_size = 200"),
        ("batch_size = 400", "batch_size = 64"),
        ("num_steps = 20", "num_steps = 10"),
        ('precision = "auto"', 'precision = "float32"'),
    ],
)
def test_no_speedup_over_another_size_or_step(tmp_path, write_run, before, after, compare_runs):
    softmax = set_in(write_run(tmp_path / "softmax", "rnn", "softmax"), before, after)
    row = compare_runs([softmax, write_run(tmp_path / "bnce")]).rows[1]
    assert (row.speedup_over_softmax, row.seconds_to_softmax_quality) == (None, None)


def write_curve(path, *perplexities):
    """Put a validation curve of one evaluation every ten seconds into a run."""
    lines = [
        {"step": place, "epoch": place / 4, "tokens": 1000 * place, "seconds": 10 * place, "ppl_f": perplexity}
        for place, perplexity in enumerate(perplexities, start=1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def times_to_quality(compare_runs):
    return lambda *paths: {row.run: row.seconds_to_softmax_quality for row in compare_runs(paths).rows}


def test_quality_is_the_best_of_the_finished_softmax_run(tmp_path, write_run, times_to_quality):
    softmax = write_curve(write_run(tmp_path / "softmax", "rnn", "softmax"), 200, 100, 150)
    bnce = write_curve(write_run(tmp_path / "bnce"), 300, 157, 105)
    assert times_to_quality(softmax, bnce)["bnce"] == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [("max_valid_tokens = 0", "max_valid_tokens = 9"), ('corpus = "corpora/ltcb"', 'corpus = "corpora/news"')],
)
def test_quality_on_another_text_is_another_quality(tmp_path, write_run, before, after, compare_runs, times_to_quality):
    softmax = set_in(write_curve(write_run(tmp_path / "softmax", "rnn", "softmax"), 200, 100), before, after)
    bnce = write_curve(write_run(tmp_path / "bnce"), 300, 105)
    assert times_to_quality(softmax, bnce) == {"softmax": pytest.approx(19.3, abs=0.1), "bnce": None}
    assert compare_runs([softmax, bnce]).rows[1].speedup_over_softmax is not None


def test_quality_over_other_words_is_another_quality(tmp_path, write_run, times_to_quality):
    other = {"vocabulary_digest": "ffffffffffff"}
    softmax = write_curve(write_run(tmp_path / "softmax", "rnn", "softmax", summary=other), 200, 100)
    assert times_to_quality(softmax, write_curve(write_run(tmp_path / "bnce"), 300, 105))["bnce"] is None


@pytest.mark.parametrize(("before", "after"), [("epochs = 4", "epochs = 1"), ("train_tokens = 0", "train_tokens = 9")])
def test_quality_may_be_reached_with_less_text(tmp_path, write_run, before, after, times_to_quality):
    softmax = write_curve(write_run(tmp_path / "softmax", "rnn", "softmax"), 200, 100)
    bnce = set_in(write_curve(write_run(tmp_path / "bnce"), 300, 105), before, after)
    assert times_to_quality(softmax, bnce)["bnce"] == pytest.approx(20.0)


@pytest.mark.parametrize("status", ["running", "stopped", "failed", None])
def test_an_unfinished_softmax_run_sets_no_quality(tmp_path, write_run, status, times_to_quality):
    early = write_curve(write_run(tmp_path / "early", "rnn", "softmax", summary={"status": status}), 400)
    bnce = write_curve(write_run(tmp_path / "bnce"), 300, 105)
    assert times_to_quality(early, bnce) == {"early": None, "bnce": None}
    softmax = write_curve(write_run(tmp_path / "softmax", "rnn", "softmax"), 200, 100)
    assert times_to_quality(early, softmax, bnce)["bnce"] == pytest.approx(20.0)


@pytest.mark.parametrize("unknown", [None, 0])
def test_a_running_run_shows_its_last_validation(tmp_path, write_run, unknown, compare_runs):
    # What is not known before the first step, was zero in older runs.
    going = dict.fromkeys(("words_per_second", "train_seconds", "epochs", "tokens"), unknown)
    path = write_run(tmp_path / "a", evaluated=False, summary={"status": "running", **going}, num_done=3)
    comparison = compare_runs([path])
    row = comparison.rows[0]
    assert row.split == "valid"
    assert comparison.cells[0][0] == "RNN (B-NCE) (valid)"
    assert row.comparable
    assert row.ppl_f == pytest.approx(82.5 * 2.4715, rel=1e-4)
    assert (row.words_per_second, row.epochs, row.train_tokens) == (43.7e3, 1.0, 133_000_000)
    assert row.train_seconds == pytest.approx(133e6 / 43.7e3)
    statements = " ".join(comparison.conditions.statements)
    assert "(valid): not evaluated on test yet" in statements
    assert "Not finished: RNN (B-NCE) (running)." in statements


def test_a_killed_run_that_was_evaluated_shows_how_far_it_was(tmp_path, write_run, compare_runs):
    killed = {"status": "running", "words_per_second": None, "train_seconds": None, "epochs": None, "tokens": None}
    row = compare_runs([write_run(tmp_path / "a", summary=killed, num_done=3)]).rows[0]
    assert (row.split, row.ppl_f) == ("test", 82.5)
    assert (row.words_per_second, row.epochs, row.train_tokens) == (43.7e3, 1.0, 133_000_000)


def test_a_stopped_run_shows_how_far_it_was_when_it_was_measured(tmp_path, write_run, compare_runs):
    stop = {"status": "stopped", "epochs": 1.3, "train_seconds": 4000.0, "tokens": 172_900_000}
    row = compare_runs([write_run(tmp_path / "a", evaluated=False, summary=stop, num_done=3)]).rows[0]
    assert (row.split, row.epochs, row.train_tokens) == ("valid", 1.0, 133_000_000)
    assert row.train_seconds == pytest.approx(133e6 / 43.7e3)
    row = compare_runs([write_run(tmp_path / "b", summary=stop, num_done=3)]).rows[0]
    assert (row.split, row.epochs, row.train_tokens, row.train_seconds) == ("test", 1.3, 172_900_000, 4000.0)


def test_conditions(tmp_path, write_run, compare_runs):
    conditions = compare_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b", "ffnn")]).conditions
    assert conditions.corpora == ["ltcb"]
    assert conditions.warnings == []
    statements = "\n".join(conditions.statements)
    for fact in (
        "Corpus: ltcb, V = 80,000. Trained on 532,000,000 tokens (4 epochs). Measured on split test, 7,800,000 tokens; "
        "<unk> (OOV) 2.30% of words.",
        "CPU, 2 threads",
        "torch 2.13.0",
        "per token, </s> and <unk> included",
        "natural logarithm",
        "without evaluations, checkpoints and start-up on a GPU",
        "NoP is the number of parameters.",
    ):
        assert fact in statements
    assert "valid" not in statements
    assert "†" not in statements


def test_what_a_run_warned_of_stands_below_the_table(tmp_path, write_run, compare_runs):
    astray = write_run(tmp_path / "a", summary={"warnings": ["PPLf is 9e9, lower the rate.", "And\x1b[2J this.", 3]})
    comparison = compare_runs([astray, write_run(tmp_path / "b", "ffnn", summary={"warnings": "none"})])
    expected = ["RNN (B-NCE): PPLf is 9e9, lower the rate.", "RNN (B-NCE): And\N{REPLACEMENT CHARACTER}[2J this."]
    assert list(comparison.conditions.statements[-2:]) == expected
    assert "FFNN (B-NCE): " not in "".join(comparison.conditions.statements)


def test_settings_in_which_rows_differ_are_named(tmp_path, write_run, compare_runs):
    alike = [write_run(tmp_path / "a"), write_run(tmp_path / "b", "ffnn")]
    for before, after in (
        ("evaluations_per_epoch = 3", "evaluations_per_epoch = 1"),
        ("checkpoint_seconds = 600.0", "checkpoint_seconds = inf"),
    ):
        set_in(alike[0], before, after)
    assert "Rows differ" not in "".join(compare_runs(alike).conditions.statements)
    other = write_run(tmp_path / "c", "relu-lstm")
    for before, after in (("epochs = 4", "epochs = 3"), ("learning_rate = 0.4", "learning_rate = 1e-10")):
        set_in(other, before, after)
    assert (
        "Rows differ in optimiser.learning_rate (0.4 for 2 rows, 1e-10 for ReLu-LSTM (B-NCE)); "
        "training.epochs (4 for 2 rows, 3 for ReLu-LSTM (B-NCE))."
    ) in compare_runs([*alike, other]).conditions.statements


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"summary": {"vocabulary_digest": "ffffffffffff"}}, "vocabulary ffffffff, not 5f3a9c0d"),
        ({"evaluated": False}, "figures on valid, not test"),
        ({"evaluation": {"num_tokens": 7}}, "7 tokens of test, not 7,800,000"),
        ({"evaluation": {"text_sha256": "ee" * 32}}, "another text of test (SHA-256 eeeeeeee, not dddddddd)"),
    ],
)
def test_the_odd_one_out_is_marked(tmp_path, write_run, change, says, compare_runs):
    odd = write_run(tmp_path / "odd", "ffnn", **change)
    comparison = compare_runs([odd, write_run(tmp_path / "a"), write_run(tmp_path / "b", "relu-lstm")])
    assert [row.comparable for row in comparison.rows] == [False, True, True]
    assert comparison.cells[0][0].endswith("†")
    assert comparison.conditions.warnings == [
        f"5-gram FFNN (B-NCE) cannot be compared fairly with the other runs: {says}."
    ]
    assert f"† 5-gram FFNN (B-NCE): {says}." in comparison.conditions.statements


def test_speeds_of_different_devices_are_warned_of(tmp_path, write_run, compare_runs):
    there = write_run(tmp_path / "there", summary={"device": "NVIDIA H200"})
    (warning,) = compare_runs([write_run(tmp_path / "here"), there]).conditions.warnings
    assert "CPU, 2 threads, NVIDIA H200" in warning


def test_many_processes_are_told_with_their_device(tmp_path, write_run, compare_runs):
    path = write_run(tmp_path / "two", summary={"processes": 2, "device": "CPU, 1 thread"})
    comparison = compare_runs([path, write_run(tmp_path / "one", summary={"processes": 1, "device": "CPU, 1 thread"})])
    assert comparison.conditions.devices == ["2 processes, each on CPU, 1 thread", "CPU, 1 thread"]
    assert comparison.conditions.statements[1].startswith("Device: 2 processes, each on CPU, 1 thread / CPU, 1 thread;")


def test_a_run_that_started_from_another_is_told(tmp_path, write_run, compare_runs):
    adapted = write_run(tmp_path / "adapted")
    config = adapted / "config.toml"
    config.write_text(config.read_text().replace('init = ""', 'init = "/runs/general"'))
    statements = compare_runs([adapted, write_run(tmp_path / "b", "ffnn")]).conditions.statements
    (told,) = [statement for statement in statements if "started from" in statement]
    assert told.endswith("started from the run general; the training of that run is not counted.")


def test_models_of_other_layers_than_usual_are_named_by_them(tmp_path, write_run, compare_runs):
    layers = {"three": 3, "softmax": 1, "one": 1}
    for name, number in layers.items():
        path = write_run(tmp_path / name, "rnn", "softmax" if name == "softmax" else "bnce") / "config.toml"
        path.write_text(path.read_text().replace("num_layers = 1", f"num_layers = {number}"))
    rows = compare_runs([tmp_path / name for name in layers]).rows
    assert [row.label for row in rows] == ["RNN (softmax)", "RNN (B-NCE)", "3-layer RNN (B-NCE)"]
    assert [row.speedup_over_softmax is None for row in rows] == [False, False, True]


@pytest.mark.parametrize("mark", ["", "format = 1\n", "format = 2\n"])
def test_a_run_of_an_unknown_format_is_refused(tmp_path, write_run, refused, mark):
    path = write_run(tmp_path / "run") / "config.toml"
    path.write_text(path.read_text().replace("format = 3\n", mark))
    told = f"has {mark.strip().replace(' =', '') or 'no format'}, but this version of bnce reads format 3: use the"
    assert told in refused("compare", path.parent)


@pytest.mark.parametrize(
    ("target", "seconds"),
    [(200.0, 15.0), (100.0, 20.0), (500.0, 10.0), (49.9, None)],  # on the way, at an evaluation, at the first, never
)
def test_between_evaluations_log_perplexity_is_a_line(tmp_path, write_run, times_to_quality, target, seconds):
    softmax = write_curve(write_run(tmp_path / "softmax", "rnn", "softmax"), target / 1.05)
    bnce = write_curve(write_run(tmp_path / "bnce"), 400, 100, 120, 50, 55)
    assert times_to_quality(softmax, bnce)["bnce"] == (None if seconds is None else pytest.approx(seconds))
