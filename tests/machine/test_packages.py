"""What is not installed is listed under the extra that brings it: commands, and parts of those that do start."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

from bnce.machine import packages
from bnce.machine.packages import EXTRAS, PARTS, MissingPackageError, lacking, need


def hide(monkeypatch: pytest.MonkeyPatch, *hidden: str) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name in hidden else find_spec(name)

    monkeypatch.setattr(packages, "find_spec", find)


def test_the_extra_train_lacks_exports_n_gram_models_and_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name for extra in ("export", "ngram", "serve", "score") for name in EXTRAS[extra]}
    hide(monkeypatch, *(others - {*EXTRAS["train"]}))
    assert lacking() == {
        "serve": ["serve"],
        "export": ["export to ONNX", "export to transformers"],
        "ngram": ["n-gram models"],
        "score": ["exported runs"],
    }


def test_parts_of_a_command_that_cannot_start_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "torch", "onnx", "transformers")
    assert lacking()["export"] == ["export"]


def test_everything_is_installed_here() -> None:
    pytest.importorskip("kenlm")
    assert not {part for parts in lacking().values() for part in parts} & {*PARTS}
    for extra, _, wanted in PARTS.values():
        assert {*wanted} <= {*EXTRAS[extra]}


def test_a_package_may_lack_one_that_it_needs_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "halfway.py").write_text("import onnx_missing_part.inner\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPackageError, match="needs the package 'onnx_missing_part', which is not installed"):
        need("halfway", "Export")
    with pytest.raises(MissingPackageError, match="needs the package 'not_there', which is not installed"):
        need("not_there.inner", "Export")
