"""A loss in a file of one's own, the one that docs/api.md shows: trained, resumed and compared by the command line."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command import Command, settings

import bnce as package

API = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
NAME = "blackout"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Write the file as the page says."""
    (code,) = re.findall(r"Save it as `blackout.py`:\n\n```python\n(.*?)```", API, flags=re.DOTALL)
    path = tmp_path / f"{NAME}.py"
    path.write_text(code, encoding="utf-8")
    return path


def test_it_is_trained_resumed_and_compared_in_a_process_of_its_own(script: Path, corpus: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        environment = os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1])}
        command = [sys.executable, script, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    outs = [tmp_path / name for name in ("outside", "inside")]
    sizes = ["--corpus", corpus, "--model", "rnn", "--device", "cpu", "--json", *settings()]
    drawn = ["--set", "loss.num_noise=5", "--set", "loss.noise_power=0.4"]
    first = json.loads(run("train", "wiki", "--loss", NAME, "--out", outs[0], *sizes, *drawn))
    again = json.loads(
        run("train", "--out", outs[0], "--resume", "--set", "training.epochs=2", "--device", "cpu", "--json")
    )
    assert again["step"] == 2 * first["step"]
    run("train", "wiki", "--loss", "bnce", "--out", outs[1], *sizes)
    rows = json.loads(run("compare", *outs, "--json"))["rows"]
    labels = {row["run"]: row["label"] for row in rows}
    assert labels == {"outside": "RNN (BlackOut, K=5)", "inside": "RNN (B-NCE)"}
    assert all(row["ppl_f"] < 40 for row in rows)


@pytest.mark.usefixtures("losses_of_its_own")
def test_commands_and_the_layer_know_it_where_it_was_imported(
    script: Path, corpus: Path, bnce: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(script.parent)
    importlib.import_module(NAME)
    try:
        layer = package.OutputLayer(4, 30, torch.arange(30, 0, -1), package.LOSSES[NAME](num_noise=6), reduction="none")
        losses_TB = layer(torch.randn(3, 5, 4), torch.randint(30, (3, 5)))
        assert losses_TB.shape == (3, 5)
        assert losses_TB.isfinite().all()
        out, told = tmp_path / "run", ["--corpus", corpus, "--model", "rnn", "--loss", NAME, "--device", "cpu"]
        refused = bnce("train", "wiki", *told, "--out", out, *settings("loss.log_z=8"))
        assert refused.status == 2
        assert "Unknown setting in wiki: [loss]: 'log_z': choose one of num_noise, noise_power." in refused.stderr
        trained = bnce("train", "wiki", *told, "--out", out, *settings("loss.num_noise=5"), "--json").json
        assert trained["test"]["ppl_n"] is None
        assert bnce("info", out, "--json").json["settings"]["loss"]["name"] == NAME
    finally:
        del sys.modules[NAME]
