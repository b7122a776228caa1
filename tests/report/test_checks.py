"""`bnce info --check`: quiet when all is well, and loud when a loss or a file is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from command import Command, Refused
from damage import damaged

from bnce import LOSSES, OutputLayer

# Of these no checksum is kept: only damage to their form could show, where they are read at all.
UNSIGNED = ("config.toml", "metrics.jsonl", "summary.json", "evaluation.json")


def look(bnce: Command, *subject: object) -> dict[str, dict[str, object]]:
    outcome = bnce("info", *subject, "--check", "--device", "cpu", "--json")
    assert outcome.stderr == ""
    record = json.loads(outcome.stdout)
    assert record["well"] == (outcome.status == 0) == all(check["well"] for check in record["checks"])
    return {check["name"]: check for check in record["checks"]}


def test_all_is_well(bnce: Command) -> None:
    checks = look(bnce)
    assert list(checks) == ["versions", "device", *(f"loss {name}" for name in LOSSES), "loss adaptive bnce"]
    assert all(check["well"] for check in checks.values()), checks
    assert f"torch {torch.__version__}" in str(checks["versions"]["detail"])
    assert str(checks["device"]["detail"]).startswith("CPU")
    plain = bnce("info", "--check", "--device", "cpu")
    assert plain.status == 0
    assert all(line.startswith("ok ") for line in plain.stdout.splitlines())


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_wrong_in_float32_is_found(bnce: Command, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plain = OutputLayer.forward

    def bent(layer: OutputLayer, *arguments: torch.Tensor) -> torch.Tensor:
        loss = plain(layer, *arguments)
        return loss if loss.dtype == torch.float64 or layer.loss_name != name else loss * 1.0001

    monkeypatch.setattr(OutputLayer, "forward", bent)
    checks = look(bnce)
    assert not checks[f"loss {name}"]["well"]
    assert "relative error compared with float64 1.0e-04, allowed 1e-05" in str(checks[f"loss {name}"]["detail"])
    wrong = [check for check in checks if not checks[check]["well"]]
    assert set(wrong) <= {f"loss {name}", f"loss adaptive {name}"}


def test_a_loss_that_breaks_is_told_and_the_others_are_compared(bnce: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = OutputLayer.forward

    def broken(layer: OutputLayer, *arguments: torch.Tensor) -> torch.Tensor:
        if layer.loss_name == "nce":
            raise RuntimeError("no [/such] thing")
        return plain(layer, *arguments)

    monkeypatch.setattr(OutputLayer, "forward", broken)
    outcome = bnce("info", "--check", "--device", "cpu")
    assert outcome.status == 1
    assert "wrong loss nce: RuntimeError: no [/such] thing" in outcome.stdout.splitlines()
    assert sum(line.startswith("wrong") for line in outcome.stdout.splitlines()) == 1


def test_damage_in_any_file_shows(bnce: Command, corpus: Path, trained: Path, tmp_path: Path) -> None:
    for directory in (corpus, trained):
        copy = shutil.copytree(directory, tmp_path / directory.parent.name)
        assert all(check["well"] for check in look(bnce, copy).values())
        for file in sorted(path for path in copy.iterdir() if path.name not in UNSIGNED and path.is_file()):
            content = file.read_bytes()
            for damage in (content[: len(content) // 2], damaged(content, 1)):
                file.write_bytes(damage)
                assert any(file.name in f"{check}" for check in look(bnce, copy).values() if not check["well"]), file
            file.write_bytes(content)
    state = next(copy.glob("state-*"))
    state.write_bytes(state.read_bytes()[:-1])
    (copy / "vocab.txt").unlink()
    wrong = {name for name, check in look(bnce, copy).items() if not check["well"]}
    assert wrong == {"run.json", "model.safetensors", state.name}


def test_a_model_that_is_gone_shows(bnce: Command, trained: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(trained, tmp_path / "run")
    (copy / "model.safetensors").unlink()
    assert not look(bnce, copy)["model.safetensors"]["well"]
    (copy / "model.safetensors").symlink_to("model.safetensors")
    assert not look(bnce, copy)["model.safetensors"]["well"]
    # Of an experiment, rows may give theirs away, and say so.
    (copy / "model.safetensors").unlink()
    summary = json.loads((copy / "summary.json").read_text(encoding="utf-8"))
    (copy / "summary.json").write_text(json.dumps({**summary, "model_removed": True}), encoding="utf-8")
    assert all(check["well"] for check in look(bnce, copy).values())


def test_what_cannot_be_checked_is_refused(refused: Refused, trained: Path, tmp_path: Path) -> None:
    assert "is neither a run nor a corpus" in refused("info", tmp_path, "--check")
    assert refused("info") == "bnce: Give a recipe, a run or a corpus, or --check to check the installation."
    assert refused("info", trained, "--check", "--model", "rnn") == (
        "bnce: --check compares losses and files, but --model is for a description: leave it out."
    )
    assert "is only described, but --device is for --check" in refused("info", trained, "--device", "cpu")
