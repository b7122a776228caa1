"""`bnce experiment`: from a corpus to the table and the page, in one command."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
from command import Command, Refused, ctrl_c_after_step, settings
from kill_itself import killed_in
from run_files import MODEL_FILE, settings_of, states_of, status_of, summary_of

from bnce import Corpus


def test_rows_table_and_report(bnce: Command, corpus: Path, place: Path) -> None:
    options = ["--corpus", corpus, "--rows", "rnn-softmax,rnn-bnce", "--out", place / "grid", *settings()]
    outcome = bnce("experiment", "ltcb", *options, "--json")
    assert outcome.status == 0
    labels = [row["label"] for row in json.loads(outcome.stdout)["rows"]]
    assert labels == ["RNN (softmax)", "RNN (B-NCE)"]
    report = place / "grid" / "report"
    assert {path.name for path in report.iterdir()} == {"table.md", "table.json", "report.html"}
    assert (place / "grid" / "rnn-bnce" / MODEL_FILE).exists()
    assert states_of(place / "grid" / "rnn-bnce") == []
    again = bnce("experiment", "ltcb", *options)
    assert again.status == 0
    assert "RNN (B-NCE)" in again.stdout
    # The report has all rows, whichever were asked for.
    options = ["--corpus", corpus, "--rows", "ffnn-bnce", "--out", place / "grid", *settings()]
    record = bnce("experiment", "ltcb", *options, "--json").json
    assert [row["run"] for row in record["rows"]] == ["ffnn-bnce", "rnn-softmax", "rnn-bnce"]
    assert (record["finished"], record["waiting"], record["failed"]) == (True, [], {})


def test_a_recipe_and_settings_reach_the_rows_and_models_are_dropped_when_asked(
    bnce: Command, corpus: Path, place: Path
) -> None:
    options = ["--corpus", corpus, "--rows", "rnn-bnce", "--out", place / "grid", *settings()]
    more = ["--recipe", "obwb", "--set", "training.seed=7", "--no-keep-models"]
    assert bnce("experiment", "ltcb", *options, *more).status == 0
    config = settings_of(place / "grid" / "rnn-bnce")
    learning_rate, seed = config["optimiser"]["learning_rate"], config["training"]["seed"]
    assert (config["recipe"], learning_rate, seed) == ("obwb", 1.0, 7)
    assert config["corpus"] == str(corpus.resolve())
    assert not (place / "grid" / "rnn-bnce" / MODEL_FILE).exists()
    assert states_of(place / "grid" / "rnn-bnce") == []


def test_stopped_before_its_first_figures_and_again(bnce: Command, corpus: Path, place: Path) -> None:
    """Ctrl-C after the second step, twice, then to the end: one JSON object each time, a report of what there is."""
    options = ["--corpus", corpus, "--rows", "rnn-softmax,rnn-bnce", "--out", place / "grid", *settings()]
    for _ in range(2):
        with ctrl_c_after_step(2):
            outcome = bnce("experiment", "ltcb", *options, "--json")
        assert outcome.status == 130
        assert json.loads(outcome.stdout) == {
            "rows": [], "finished": False, "waiting": ["rnn-softmax", "rnn-bnce"], "failed": {}
        }  # fmt: skip
    assert not (place / "grid" / "report").exists()
    assert [row["run"] for row in bnce("experiment", "ltcb", *options, "--json").json["rows"]] == [
        "rnn-softmax",
        "rnn-bnce",
    ]


def test_a_row_that_diverges_is_named_and_the_others_are_reported(bnce: Command, corpus: Path, place: Path) -> None:
    recipe = place / "wild.toml"
    recipe.write_text('base = "wiki"\n[losses.softmax.optimiser]\nlearning_rate = 1e38\n', encoding="utf-8")
    options = ["--corpus", corpus, "--rows", "rnn-softmax,rnn-bnce", "--out", place / "grid", *settings()]
    for again in (False, True):
        outcome = bnce("experiment", "ltcb", "--recipe", recipe, *options, "--json")
        assert outcome.status == 1
        record = json.loads(outcome.stdout)
        assert [row["run"] for row in record["rows"] if row["status"] == "finished"] == ["rnn-bnce"]
        assert ("It diverged before" if again else "no longer finite") in record["failed"]["rnn-softmax"]
        assert "rnn-softmax failed: " in outcome.stderr
        assert "Traceback" not in outcome.stderr


def test_killed_and_continued(corpus: Path, place: Path, bnce: Command) -> None:
    """However it ends: the rows that were done stay as they are, and the one that was not goes on."""
    options = ["--corpus", corpus, "--rows", "rnn-bnce,rnn-chunk-bnce", *settings("training.epochs=4")]
    command = ["experiment", "ltcb", *options, "--out", place / "grid", "--device", "cpu"]
    second = place / "grid" / "rnn-chunk-bnce"

    def is_its_second_state(tensors: object, path: Path, *_: object, **__: object) -> bool:
        return second in path.parents and path.name.startswith("state-") and bool(states_of(second))

    assert killed_in(lambda: bnce(*command), safetensors.torch, "serialize_file", is_its_second_state)
    assert status_of(place / "grid" / "rnn-bnce") == "finished"
    assert states_of(second)
    assert status_of(second) != "finished"
    first = {path.name: path.stat().st_mtime_ns for path in (place / "grid" / "rnn-bnce").iterdir()}
    assert bnce(*command).status == 0
    assert {path.name: path.stat().st_mtime_ns for path in (place / "grid" / "rnn-bnce").iterdir()} == first
    assert status_of(second) == "finished"
    steps = [json.loads(line)["step"] for line in (second / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize(("split", "name"), [("valid", "validation"), ("test", "test")])
def test_another_text_is_refused(
    bnce: Command,
    refused: Refused,
    corpus: Path,
    place: Path,
    prepared_anew: Callable[..., Path],
    split: str,
    name: str,
) -> None:
    """Also for other rows than those that are there: all of them stand in one table."""
    options = ["--out", place / "grid", *settings()]
    assert bnce("experiment", "ltcb", "--corpus", corpus, "--rows", "relu-lstm-bnce", *options).status == 0
    other = prepared_anew(**{split: "train"})
    for model in ("relu-lstm", "ffnn"):
        told = refused("experiment", "ltcb", "--corpus", other, "--rows", f"{model}-bnce", *options)
        assert f"has another {name} text than the run '{place / 'grid' / 'relu-lstm-bnce'}' was begun with" in told
    assert not (place / "grid" / "ffnn-bnce").exists()


def test_a_corpus_or_a_run_is_no_place_for_an_experiment(
    refused: Refused, corpus: Path, trained: Path, tmp_path: Path
) -> None:
    for found, kind in ((corpus, "a corpus"), (trained, "a run")):
        out = shutil.copytree(found, tmp_path / found.parent.name)
        before = sorted(out.rglob("*"))
        told = refused("experiment", "ltcb", "--corpus", corpus, "--out", out, "--rows", "softmax", *settings())
        assert f"The output '{out}' is {kind}, because it has a " in told
        assert sorted(out.rglob("*")) == before


def test_a_report_that_cannot_be_drawn_is_refused_before_training(
    refused: Refused, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = ["--corpus", corpus, "--out", place / "grid", "--rows", "rnn-bnce", *settings()]
    told = refused("experiment", "ltcb", *options)
    assert "The report of an experiment needs the package 'matplotlib', which is not installed" in told
    assert not (place / "grid").exists()


def test_refusals(refused: Refused, corpus: Path, place: Path) -> None:
    options = ["--corpus", corpus, "--out", place / "grid"]
    assert "Unknown table 'ltbc'" in refused("experiment", "ltbc", *options)
    assert "Did you mean 'bnce'" in refused("experiment", "ltcb", *options, "--rows", "bcne")
    told = refused("experiment", "ltcb", *options, "--rows", "rnn-bnce,ffnn-chunk-bnce")
    assert "Unknown row of this table 'ffnn-chunk-bnce'" in told
    assert "the loss has its own argument" in refused("experiment", "ltcb", *options, "--set", "loss.name=bnce")
    assert list(place.iterdir()) == []


def test_the_demo_makes_the_table_the_report_and_some_sentences(
    bnce: Command, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a small corpus for the docstrings, which would be prepared first."""
    experiment = importlib.import_module("bnce.cli.experiment")  # its function has the same name
    monkeypatch.setattr(experiment, "open_corpus", lambda name: {"docstrings": Corpus.open(corpus)}[name])
    monkeypatch.chdir(place)
    words = ["experiment", "demo", *settings(), "--set", "training.max_train_tokens=0"]
    first = bnce(*words)
    assert first.status == 0, first.stderr
    for name in ("ReLu-LSTM (softmax)", "ReLu-LSTM (S-NCE, K=100)", "ReLu-LSTM (B-NCE)"):
        assert name in first.stdout
    made_up = first.stdout.partition("makes up:\n")[2].splitlines()
    assert len(made_up) == 5
    assert (place / "demo" / "report" / "report.html").is_file()
    losses = ["softmax", "snce", "bnce"]
    trained = [summary_of(place / "demo" / f"relu-lstm-{loss}") for loss in losses]
    again = bnce(*words, "--json")
    assert [row["loss"] for row in again.json["rows"]] == losses
    assert [summary_of(place / "demo" / f"relu-lstm-{loss}") for loss in losses] == trained, "nothing is trained again"
    # Nor is a demo of other settings continued.
    refused = bnce(*words, "--set", "training.epochs=2")
    assert refused.status == 2
    assert "training.epochs" in refused.stderr


def test_an_output_that_is_a_file_is_told_once(refused: Refused, corpus: Path, place: Path) -> None:
    (place / "file").touch()
    told = refused(
        "experiment", "ltcb", "--corpus", corpus, "--out", place / "file", "--rows", "relu-lstm", *settings()
    )
    assert told == f"bnce: Cannot write to the output directory '{place / 'file'}' (Not a directory): give another one."


def test_a_table_of_the_paper_needs_a_corpus(refused: Refused, place: Path) -> None:
    assert "The recipe 'wiki' needs a corpus: " in refused("experiment", "ltcb", "--out", place / "grid")
