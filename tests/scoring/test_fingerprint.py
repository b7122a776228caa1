"""Fingerprints: the same model has the same one wherever it lies, and any file that decides scores changes it."""

from __future__ import annotations

import shutil
from pathlib import Path

from run_files import write_mixture

from bnce.scoring.fingerprint import fingerprint


def test_fingerprints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("model.safetensors", "config.toml", "vocab.txt", "state-1.safetensors", "summary.json"):
        (run / name).write_text(name, encoding="utf-8")
    arpa = tmp_path / "a.arpa"
    arpa.write_text("words", encoding="utf-8")
    first, grams = fingerprint(run), fingerprint(arpa)
    assert fingerprint(shutil.copytree(run, tmp_path / "copy")) == first
    assert fingerprint(shutil.copy(arpa, tmp_path / "b.arpa")) == grams
    (run / "state-1.safetensors").write_text("x", encoding="utf-8")
    (run / "summary.json").write_text("x", encoding="utf-8")
    assert fingerprint(run) == first
    write_mixture(tmp_path / "m.toml", [run, arpa], [0.5, 0.5])
    mixed = fingerprint(tmp_path / "m.toml")
    (run / "vocab.txt").write_text("x", encoding="utf-8")
    assert fingerprint(run) != first
    assert fingerprint(tmp_path / "m.toml") != mixed
    changed = fingerprint(run)
    (run / "anything-new.json").write_text("x", encoding="utf-8")
    assert fingerprint(run) != changed
