"""`bnce export`: what every target prints, what a smaller run loses, and the page about it, which runs as it stands."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from command import Command, Refused

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("target", ["onnx", "transformers"])
def test_says_how_far_off_it_is(
    bnce: Command, trained: Path, place: Path, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    record = bnce("export", trained, "--to", target, "--out", place / "a", "--json").json
    assert (record["run"], record["to"], record["out"]) == (str(trained), target, str(place / "a"))
    assert record["num_bytes"] == sum(file.stat().st_size for file in (place / "a").iterdir())
    assert 0 <= record["max_difference"] < 1e-4
    plain = bnce("export", trained, "--to", target, "--out", place / "b")
    assert plain.status == 0
    assert plain.stderr == ""
    assert not caplog.records  # which would be on standard error outside pytest
    assert plain.stdout.startswith(f"{place / 'b'}: ")
    assert f"largest difference of an output from PyTorch's: {record['max_difference']:.3g}" in plain.stdout


# Shares of a perplexity; measured: 0, 8e-6 and 1.4e-5 of a model that has learned little.
@pytest.mark.parametrize(("rows", "allowed"), [("float32", 0.0), ("bf16", 1e-4), ("int8", 1e-4)])
def test_what_a_smaller_run_loses(bnce: Command, trained: Path, place: Path, rows: str, allowed: float) -> None:
    expected = bnce("evaluate", trained, "--json").json
    record = bnce("export", trained, "--to", "safetensors", "--rows", rows, "--out", place / "a", "--json").json
    found = bnce("evaluate", place / "a", "--json").json
    for figure in ("ppl_n", "ppl_f"):
        assert found[figure] == pytest.approx(expected[figure], rel=allowed, abs=0.0)
        assert (found[figure] == expected[figure]) == (rows == "float32")
    assert record["rows"] == rows
    assert (max(record["max_row_error"].values()) == 0) == (rows == "float32")
    assert bnce("generate", place / "a", "--temperature", 0, "-n", 1).status == 0
    assert bnce("info", place / "a", "--json").json["num_parameters"] > 0


def test_float32_rows_by_default(bnce: Command, trained: Path, place: Path) -> None:
    plain = bnce("export", trained, "--to", "safetensors", "--out", place / "a")
    assert "rows are float32, not rounded; the directory is itself a run" in plain.stdout


def test_the_other_exports_stay_runs_or_say_that_they_are_none(
    bnce: Command, refused: Refused, trained: Path, place: Path
) -> None:
    for target in ("onnx", "transformers"):
        assert bnce("export", trained, "--to", target, "--out", place / target).status == 0
    expected, found = (bnce("evaluate", path, "--json").json for path in (trained, place / "transformers"))
    assert {**found, "run": ""} == {**expected, "run": ""}
    assert "is not a run directory" in refused("evaluate", place / "onnx")
    told = refused("train", "--out", place / "transformers", "--resume")
    assert "has no state to resume from, as an exported run" in told


def test_refusals(refused: Refused, trained: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = place / "a"
    told = refused("export", trained, "--to", "tensorflow", "--out", out)
    assert "Unknown export format 'tensorflow': choose one of onnx, transformers, safetensors." in told
    told = refused("export", trained, "--to", "transformers", "--rows", "int8", "--out", out)
    assert "--rows is for --to safetensors: transformers has float32 rows; leave it out." in told
    assert "Unknown row format 'fp4'" in refused(
        "export", trained, "--to", "safetensors", "--rows", "fp4", "--out", out
    )
    assert "already exists" in refused("export", trained, "--to", "onnx", "--out", trained)
    assert "is not a run directory" in refused("export", place, "--to", "onnx", "--out", out)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "pip install 'bnce[export]'." in refused("export", trained, "--to", "onnx", "--out", out)
    assert list(place.iterdir()) == []


def test_a_run_without_a_model(refused: Refused, trained: Path, tmp_path: Path, place: Path) -> None:
    copy = shutil.copytree(trained, tmp_path / "copy")
    (copy / "model.safetensors").unlink()
    for target in ("onnx", "transformers", "safetensors"):
        assert "has no model: train it" in refused("export", copy, "--to", target, "--out", place / "a")


@pytest.fixture
def modules_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the code that is opened here out of the user's own cache."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        monkeypatch.delitem(sys.modules, name)  # of another test's cache


@pytest.mark.usefixtures("modules_cache")
def test_the_page_runs_as_it_stands(
    bnce: Command, trained: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, place / "runs" / "bnce")
    monkeypatch.chdir(place)
    (commands,) = blocks("sh")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "bnce"
        outcome = bnce(*arguments)
        assert outcome.status == 0, outcome.stderr
    onnx, transformers = blocks("python")
    capsys.readouterr()
    exec(onnx, names := {})  # type: ignore[var-annotated]
    printed = capsys.readouterr().out
    about = json.loads((place / "exported" / "onnx" / "model.json").read_text(encoding="utf-8"))
    assert re.fullmatch(r"log10 p = -\d+\.\d{3}\n", printed)
    assert names["log_probs"].shape == (5, 1, 1)
    assert len(names["state_after"]) == len(about["state"]) == 2
    exec(transformers, names := {})
    assert names["loss"].isfinite()
    assert names["log_probs"].shape == (1, 5, 2)


def test_the_page_names_what_is_there() -> None:
    assert "bnce export RUN --to onnx|transformers|safetensors --out DIR" in PAGE
    for name in ("body.onnx", "words.onnx", "all_words.onnx", "weights.bin", "vocab.txt", "model.json"):
        assert f"`{name}`" in PAGE
