"""A loss, a body and an optimiser, each one file and one record: every command knows them. A mere name is refused."""

from __future__ import annotations

import importlib
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Command, Refused, run_command
from safetensors.numpy import load_file
from small_corpus import small_corpus

from bnce.registry import KNOWN

from . import pretend

SIZES = ("model.embedding_size=6", "model.hidden_size=8", "training.batch_size=8", "training.num_steps=5")
SMALL = [*SIZES, "optimiser.name=sign", "training.epochs=1", "optimiser.warmup_steps=5"]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]


def in_one_line(page: str) -> str:
    """Join what is wrapped, also at a hyphen."""
    return " ".join(page.split()).replace("- ", "-")


@pytest.fixture(scope="module", autouse=True)
def _from_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the three files where Python finds them, and register each record by one call."""
    directory = tmp_path_factory.mktemp("pretend")
    pretend.write(directory)
    before = [(known, dict(known)) for known in KNOWN.values()]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        for name in ("loss", "body", "optimiser"):
            importlib.import_module(f"pretend_{name}")
        yield
    for name in ("loss", "body", "optimiser"):
        del sys.modules[f"pretend_{name}"]
    for known, kept in before:
        known.clear()
        known.update(kept)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("corpora") / "small").directory


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with all three."""
    out = tmp_path_factory.mktemp("runs") / "pretend"
    kinds = ("--model", "gru", "--loss", "batch-softmax")
    run_command("train", "wiki", *kinds, "--corpus", corpus, "--out", out, *SETTINGS, "--device", "cpu")
    return out


def test_train_builds_what_the_records_name(run: Path, bnce: Command) -> None:
    record = bnce("info", run, "--json").json
    names = (record["settings"][part]["name"] for part in ("model", "loss", "optimiser"))
    assert tuple(names) == ("gru", "batch-softmax", "sign")
    # A new recurrent name used to train a tanh RNN, and a new optimiser SGD.
    tensors = load_file(run / "model.safetensors")
    assert tensors["body.cell.weight_hh_l1"].shape == (3 * 8, 8), "three gates, in two layers"
    assert not any(name.startswith("optimiser") for name in load_file(max(run.glob("state-*"))))
    assert sys.modules["pretend_optimiser"].num_steps == record["summary"]["step"] > 0
    assert record["summary"]["status"] == "finished"


def test_evaluate_gives_no_ppl_n_to_a_loss_that_does_not_normalise_itself(
    run: Path, corpus: Path, bnce: Command, refused: Refused
) -> None:
    """Every loss but softmax used to count as one that does, and would have been served unnormalised."""
    record = bnce("evaluate", run, "--corpus", corpus, "--device", "cpu", "--json").json
    assert record["ppl_n"] is None
    assert math.isfinite(record["ppl_f"])
    assert "softmax" in refused("score", run, run / "vocab.txt", "--mode", "unnormalised", "--device", "cpu")


def test_compare_names_it_after_those_of_the_paper(run: Path, corpus: Path, tmp_path: Path, bnce: Command) -> None:
    paper = tmp_path / "lstm"
    sizes = [word for setting in (*SIZES, "training.epochs=1") for word in ("--set", setting)]
    options = ("--model", "lstm", "--loss", "bnce", "--corpus", corpus, "--out", paper, "--device", "cpu", "--json")
    bnce("train", "wiki", *options, *sizes)
    rows = bnce("compare", run, paper, "--json").json["rows"]
    assert [row["label"] for row in rows] == ["LSTM (B-NCE)", "GRU (batch softmax)"]
    bnce("compare", run, paper, "--out", tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    of_paper, other = dict.fromkeys(re.findall(r'class="mark" style="color:(#\w{6})"', page))
    assert of_paper == "#0072b2" != other
    row = next(line for line in (tmp_path / "report" / "table.md").read_text().splitlines() if "batch softmax" in line)
    assert row.split("|")[2].strip() == "---"


def test_info_describes_it(run: Path, bnce: Command) -> None:
    record = bnce("info", "wiki", "--model", "gru", "--loss", "batch-softmax", *SETTINGS, "--json").json
    assert record["architecture"] == "6–2×8(R)–V"
    assert record["settings"]["optimiser"]["name"] == "sign"
    assert bnce("info", run, "--json").json["model"] == "gru"


def test_info_checks_the_loss(bnce: Command) -> None:
    checks = {entry["name"]: entry for entry in bnce("info", "--check", "--device", "cpu", "--json").json["checks"]}
    assert checks["loss batch-softmax"]["well"], checks["loss batch-softmax"]


def test_help_names_it(bnce: Command) -> None:
    page = in_one_line(bnce("train", "--help").stdout)
    assert "gru (two GRU layers)." in page
    assert "batch-softmax (a softmax over the batch)." in page
    assert "sign (steps of one size)." in page
    page = in_one_line(bnce("info", "--help").stdout)
    assert "relu-lstm, transformer, gru." in page
    assert "adaptive-softmax, batch-softmax." in page


def test_completion_names_it(bnce: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_BNCE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "bnce train --set optimiser.name=")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert bnce().stdout.split() == [f"optimiser.name={name}" for name in ("sgd", "rowwise", "rowwise-adam", "sign")]


@pytest.mark.parametrize("target", ["onnx", "transformers"])
def test_an_export_that_does_not_know_the_body_is_refused(
    run: Path, target: str, tmp_path: Path, refused: Refused
) -> None:
    told = refused("export", run, "--to", target, "--out", tmp_path / "exported")
    assert f"The model 'gru' of '{run}' cannot be exported to {target}, only ffnn, rnn" in told
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("model", ["train", "wiki", "--model", "lstmm", "--corpus", "x"]),
        ("loss", ["train", "wiki", "--loss", "lstmm", "--corpus", "x"]),
        ("optimiser", ["train", "wiki", "--set", "optimiser.name=lstmm", "--corpus", "x"]),
        ("model", ["info", "wiki", "--model", "lstmm"]),
        ("loss", ["info", "wiki", "--loss", "lstmm"]),
    ],
)
def test_a_name_without_a_record_is_refused(refused: Refused, kind: str, arguments: list[str]) -> None:
    assert refused(*arguments).startswith(f"bnce: Unknown {kind} 'lstmm': choose one of ")


@pytest.mark.parametrize(("kind", "known"), [("model", "gru"), ("loss", "batch-softmax"), ("optimiser", "sign")])
def test_a_run_of_a_name_without_a_record_is_refused(
    run: Path, tmp_path: Path, refused: Refused, kind: str, known: str
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    settings = (copy / "config.toml").read_text(encoding="utf-8")
    (copy / "config.toml").write_text(settings.replace(f'name = "{known}"', 'name = "lstmm"'), encoding="utf-8")
    for command in (["evaluate", copy], ["score", copy, copy / "vocab.txt"], ["info", copy]):
        assert f"Unknown {kind} 'lstmm': choose one of " in refused(*command)
    if kind != "optimiser":
        assert f"Unknown {kind} 'lstmm': choose one of " in refused("compare", copy)
