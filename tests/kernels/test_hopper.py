"""Kernels that are compiled when they are needed, without a GPU: what is kept of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bnce.kernels import hopper


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Give the texts that were compiled, in a cache of its own."""
    texts: list[str] = []

    def compile_text(text: str) -> bytes:
        texts.append(text)
        return text.encode()

    monkeypatch.setattr(hopper, "_compile", compile_text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return texts


def test_a_text_is_compiled_once(compiled: list[str], tmp_path: Path) -> None:
    for text in ("a", "b", "a", "b"):
        assert hopper.compile_source(text) == text.encode()
    assert compiled == ["a", "b"]
    assert len(list((tmp_path / "cache" / "bnce" / "kernels").iterdir())) == 2


def test_another_compiler_compiles_again(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    hopper.compile_source("a")
    monkeypatch.setattr("torch.version.cuda", "99.0")
    hopper.compile_source("a")
    assert compiled == ["a", "a"]


def test_without_a_place_it_is_compiled_every_time(compiled: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    for _ in range(2):
        assert hopper.compile_source("a") == b"a"
    assert compiled == ["a", "a"]


@pytest.mark.parametrize("damaged", [b"", b"a", b"x" * 40])
def test_a_damaged_file_is_compiled_again(damaged: bytes, compiled: list[str], tmp_path: Path) -> None:
    hopper.compile_source("a")
    (kept,) = (tmp_path / "cache" / "bnce" / "kernels").iterdir()
    kept.write_bytes(damaged)
    for _ in range(2):
        assert hopper.compile_source("a") == b"a"
    assert compiled == ["a", "a"]


def test_a_user_without_a_home_compiles_every_time(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert hopper.compile_source("a") == b"a"
    assert compiled == ["a"]
