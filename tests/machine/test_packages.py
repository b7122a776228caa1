"""What is not installed is listed under the extra that brings it, and named where it is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bnce.machine.packages import MissingPackageError, explain_missing, missing, need


@pytest.mark.parametrize(
    ("package", "wanted", "named"),
    [
        ("torch", "serve", "train"),
        ("torch", "layer", "layer"),
        ("fastapi", "serve", "serve"),
        ("kenlm", "train", "ngram"),
    ],
)
def test_the_extra_that_is_named_brings_the_package(package: str, wanted: str, named: str) -> None:
    assert str(missing(package, "It", wanted)).endswith(f"run pip install 'bnce[{named}]'.")


def test_an_import_that_failed_is_explained_unless_nobody_knows_the_package() -> None:
    told = "bnce serve needs the package 'fastapi', which is not installed: run pip install 'bnce[serve]'."
    assert str(explain_missing(ModuleNotFoundError(name="fastapi.part"), "bnce serve", "serve")) == told
    unknown = ModuleNotFoundError(name="somebody_elses")
    assert explain_missing(unknown, "bnce serve") is unknown


def test_a_package_may_lack_one_that_it_needs_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "halfway.py").write_text("import onnx_missing_part.inner\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPackageError, match="needs the package 'onnx_missing_part', which is not installed"):
        need("halfway", "Export")
    with pytest.raises(MissingPackageError, match="needs the package 'not_there', which is not installed"):
        need("not_there.inner", "Export")
