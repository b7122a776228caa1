"""What an earlier version wrote opens and goes on as it did there. `make.sh` is how its files were made."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import bnce as package
from bnce import UserError
from bnce.cli import app

HERE = Path(__file__).parent
UPGRADING = (HERE.parents[1] / "docs" / "upgrading.md").read_text(encoding="utf-8")
LOSSES = ("softmax", "nce", "snce", "chunk-bnce")
MODELS = ("ffnn", "rnn", "relu-rnn", "lstm", "relu-lstm")
# Figures of another processor's last bits.
CLOSE = {"rel": 1e-4, "abs": 1e-4}


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("earlier")
    with tarfile.open(HERE / "0.1.0.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place


def bnce(*arguments: str | Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def expected(written: Path, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((written / "expected" / f"{name}.json").read_text())
    return answer


def test_corpora_and_runs_are_whole(written: Path) -> None:
    for name in ("corpus", "resumable", *(f"run-{name}" for name in (*MODELS, *LOSSES))):
        assert bnce("info", written / name, "--check")["well"], name


@pytest.mark.parametrize("name", [*MODELS, *LOSSES])
def test_runs_are_evaluated_as_they_were(written: Path, name: str) -> None:
    run = written / f"run-{name}"
    before = json.loads((run / "evaluation.json").read_text())
    now = bnce("evaluate", run, "--corpus", written / "corpus")
    for key in ("ppl_n", "ppl_f", "log_z_mean", "log_z_std", "num_tokens", "num_oov"):
        assert now[key] == (None if before[key] is None else pytest.approx(before[key], **CLOSE)), key


@pytest.mark.parametrize(("model", "name"), [("run-relu-lstm", "score"), ("int8", "int8"), ("mixture.toml", "mixture")])
def test_sentences_are_scored_as_they_were(written: Path, model: str, name: str) -> None:
    before, now = expected(written, name), bnce("score", written / model, written / "score.txt")
    assert now.keys() >= before.keys()
    for key in ("log10_prob", "ppl", "num_oov", "num_words"):
        assert now[key] == pytest.approx(before[key], **CLOSE), key


def test_a_run_says_that_it_cannot_spell(written: Path) -> None:
    result = CliRunner().invoke(app, ["score", str(written / "run-relu-lstm"), str(written / "score.txt"), "--spell"])
    assert isinstance(result.exception, UserError)
    assert "has no spelling model, because its corpus was prepared by an earlier version" in str(result.exception)


def test_a_run_goes_on_as_it_did(written: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(written / "resumable", run)
    told = bnce("train", "--out", run, "--resume", "--corpus", written / "corpus", "--set", "training.epochs=4")
    assert (told["status"], told["step"]) == ("finished", 904)
    before, now = expected(written, "resumed"), json.loads((run / "evaluation.json").read_text())
    for key in ("ppl_n", "ppl_f", "log_z_mean", "num_tokens", "num_oov"):
        assert now[key] == pytest.approx(before[key], rel=1e-3), key


def test_an_experiment_goes_on(written: Path, tmp_path: Path) -> None:
    place = tmp_path / "experiment"
    shutil.copytree(written / "experiment", place)
    shutil.rmtree(place / "rnn-bnce")
    kept = (place / "rnn-softmax" / "model.safetensors").read_bytes()
    settings = [
        line.removesuffix(" \\").strip()
        for line in (HERE / "make.sh").read_text().partition('S="')[2].partition('"')[0].split("--set ")
        if line.strip()
    ]
    settings[-1] = settings[-1].partition(" --threads")[0]
    settings.append("optimiser.name=rowwise")  # the recipe's own in that version
    options = [word for setting in settings for word in ("--set", setting)]
    told = bnce(
        *("experiment", "ltcb", "--corpus", written / "corpus", "--rows", "rnn-softmax,rnn-bnce"),
        *("--out", place, *options),
    )
    assert told
    assert (place / "rnn-softmax" / "model.safetensors").read_bytes() == kept, "a finished row is not trained again"
    before = json.loads((written / "experiment" / "rnn-bnce" / "evaluation.json").read_text())
    now = json.loads((place / "rnn-bnce" / "evaluation.json").read_text())
    assert now["ppl_f"] == pytest.approx(before["ppl_f"], rel=1e-3)


def test_exports_open(written: Path) -> None:
    transformers = pytest.importorskip("transformers")
    network = transformers.AutoModelForCausalLM.from_pretrained(written / "transformers", trust_remote_code=True)
    assert torch.isfinite(network(torch.tensor([[1, 5, 7]])).logits).all()
    onnxruntime = pytest.importorskip("onnxruntime")
    for graph in sorted((written / "onnx").glob("*.onnx")):
        assert onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"]).get_inputs()


def test_exports_to_onnx_have_to_be_made_again(written: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    result = CliRunner().invoke(app, ["score", str(written / "onnx"), str(written / "score.txt")])
    assert isinstance(result.exception, UserError)
    told = re.search(r"it has (format 1), and 0.2 opens (format 3) \| \*\*`bnce (export RUN --to onnx) ", UPGRADING)
    assert told is not None
    for part in told.groups():
        assert part in str(result.exception)
    bnce("export", written / "run-relu-lstm", "--to", "onnx", "--out", tmp_path / "again")
    now = bnce("score", tmp_path / "again", written / "score.txt")
    assert now["log10_prob"] == pytest.approx(expected(written, "score")["log10_prob"], **CLOSE)


def test_the_page_on_upgrading_names_what_is_there(written: Path) -> None:
    (table,) = re.findall(r"## Python\n.*?\n\|---\|---\|\n(.*?)\n\n", UPGRADING, re.DOTALL)
    after = " ".join(row.split(" | ")[1] for row in table.splitlines())
    names, methods = re.findall(r"bnce\.(\w+)", after), re.findall(r"(?:model|\))\.(\w+)\(", after)
    assert len(names) == 3
    assert set(names) <= set(package.__all__)
    model = package.load(written / "run-relu-lstm")
    assert set(methods) == {"score_words", "reader", "read"}
    words = ["ba", "be"]
    (scored,) = model.score_words([words], share_prefixes=True)
    (read,) = model.reader(normalised=False, carry=False).read([words])
    assert read.log10_prob * 2.302585 == pytest.approx(float(sum(scored.log_probs)), rel=1e-4)
