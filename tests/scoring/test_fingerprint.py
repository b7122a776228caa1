"""Fingerprints: the same model has the same one wherever it lies, and what decides its scores changes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from export.exported_runs import make_run
from run_files import write_mixture
from small_corpus import small_model

from bnce import UserError
from bnce.runs.directory import Run
from bnce.runs.model_file import save_weights
from bnce.scoring.loading import fingerprint


def test_fingerprints(tmp_path: Path) -> None:
    run = make_run(tmp_path, "lstm").path
    arpa = tmp_path / "a.arpa"
    arpa.write_text("words", encoding="utf-8")
    first, grams = fingerprint(run), fingerprint(arpa)
    assert fingerprint(shutil.copytree(run, tmp_path / "copy")) == first
    assert fingerprint(shutil.copy(arpa, tmp_path / "b.arpa")) == grams
    write_mixture(tmp_path / "m.toml", [run, arpa], [0.5, 0.5])
    mixed = fingerprint(tmp_path / "m.toml")
    # A note, an editor's backup and what training goes on from decide no score.
    for name in ("state-1.safetensors", "summary.json", "note.txt", "vocab.txt~", "#config.toml#"):
        (run / name).write_text("x", encoding="utf-8")
    assert (fingerprint(run), fingerprint(tmp_path / "m.toml")) == (first, mixed)


def test_a_run_trained_again_in_its_place_is_another(tmp_path: Path) -> None:
    run = make_run(tmp_path, "lstm")
    first = fingerprint(run.path)
    weights = small_model("lstm").state_dict()
    weights["output.bias"] += 1
    save_weights(Run.open(run.path), weights, step=1)
    assert fingerprint(run.path) != first


def test_what_is_no_model(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match=r"cannot be read|incomplete or not a safetensors file"):
            fingerprint(path)
