"""`bnce info`: the number of parameters of a recipe, a run's settings, a corpus's statistics."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Command, Refused
from run_files import num_parameters_of


def test_a_run(bnce: Command, trained: Path) -> None:
    record = bnce("info", trained, "--json").json
    assert record["num_parameters"] == sum(record["num_parameters_by_part"].values()) == num_parameters_of(trained)
    assert (record["recipe"], record["model"], record["vocab_size"]) == ("wiki", "relu-lstm", 30)
    assert record["architecture"] == "6–8(R)–400(B)–V"
    assert record["settings"]["training"]["batch_size"] == 8
    assert record["summary"]["status"] == "finished"
    assert record["evaluation"]["split"] == "test"
    assert record["metrics"][0]["step"] == record["summary"]["step"]


def test_a_recipe_as_the_paper_counts_it(bnce: Command) -> None:
    record = bnce("info", "ltcb", "--model", "lstm", "--json").json
    assert record["vocab_size"] == 80_000
    # Table 2: 66.0M.
    assert f"{record['num_parameters'] / 1e6:.1f}" == "66.0"


def test_a_recipe_has_the_vocabulary_of_its_corpus(bnce: Command) -> None:
    assert bnce("info", "obwb", "--json").json["vocab_size"] == 793_471
    assert bnce("info", "demo", "--json").json["vocab_size"] == 30_000
    record = bnce("info", "wiki", "--vocab-size", 1000, "--set", "model.hidden_size=16", "--loss", "nce", "--json").json
    assert record["vocab_size"] == 1000
    assert record["settings"]["model"]["hidden_size"] == 16
    assert record["settings"]["loss"] | {"name": "nce", "num_noise": 100} == record["settings"]["loss"]


def test_a_recipe_goes_before_a_directory_of_its_name(
    bnce: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert bnce("info", "demo", "--json").json["recipe"] == "demo"


def test_prints_for_people(bnce: Command, trained: Path, corpus: Path) -> None:
    outcome = bnce("info", trained)
    assert "num_parameters: " in outcome.stdout
    assert "log_z_histogram" not in outcome.stdout
    assert "ppl_f: " in outcome.stdout
    assert "3,200" in bnce("info", corpus).stdout
    assert "architecture: 200–600(R)–400(B)–V" in bnce("info", "ltcb").stdout


def test_options_that_do_not_apply_are_refused(refused: Refused, trained: Path, corpus: Path) -> None:
    told = refused("info", trained, "--model", "lsm", "--vocab-size", 7)
    assert told == f"bnce: '{trained}' is a run, but --model and --vocab-size are for a recipe: leave them out."
    assert "is a run, but --batch-size is for a corpus: leave it out." in refused("info", trained, "--batch-size", 8)
    assert "is a corpus, but --set is for a recipe" in refused("info", corpus, "--set", "training.epochs=x")
    assert "is a corpus, but --loss is for a recipe" in refused("info", corpus, "--loss", "none")
    assert refused("info", "ltcb", "--batch-size", 8).endswith(
        "is a recipe, but --batch-size is for a corpus: leave it out."
    )


def test_refusals(refused: Refused, tmp_path: Path) -> None:
    assert "Did you mean 'ltcb'?" in refused("info", "ltbc")
    assert "neither a run nor a corpus" in refused("info", tmp_path)
    assert "Did you mean 'lstm'?" in refused("info", "ltcb", "--model", "lsm")
