"""Kernels that are compiled when they are needed, without a GPU: what is kept of them, and whether they compile."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bnce.kernels.hopper import nvrtc, persistent


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Give the texts that were compiled, in a cache of its own."""
    texts: list[str] = []

    def compile_text(text: str) -> bytes:
        texts.append(text)
        return text.encode()

    monkeypatch.setattr(nvrtc, "_compile", compile_text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return texts


def test_a_text_is_compiled_once(compiled: list[str], tmp_path: Path) -> None:
    for text in ("a", "b", "a", "b"):
        assert nvrtc.compile_source(text) == text.encode()
    assert compiled == ["a", "b"]
    assert len(list((tmp_path / "cache" / "bnce" / "kernels").iterdir())) == 2


def test_another_compiler_compiles_again(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc.compile_source("a")
    monkeypatch.setattr("torch.version.cuda", "99.0")
    nvrtc.compile_source("a")
    assert compiled == ["a", "a"]


def test_without_a_place_it_is_compiled_every_time(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "cache").touch()
    for _ in range(2):
        assert nvrtc.compile_source("a") == b"a"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert nvrtc.compile_source("a") == b"a"
    assert compiled == ["a", "a", "a"]


@pytest.mark.parametrize("damaged", [b"", b"a", b"x" * 40])
def test_a_damaged_file_is_compiled_again(damaged: bytes, compiled: list[str], tmp_path: Path) -> None:
    nvrtc.compile_source("a")
    (kept,) = (tmp_path / "cache" / "bnce" / "kernels").iterdir()
    kept.write_bytes(damaged)
    for _ in range(2):
        assert nvrtc.compile_source("a") == b"a"
    assert compiled == ["a", "a"]


@pytest.fixture
def with_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have NVRTC compile, which comes with PyTorch for GPUs, and for others as a package of its own."""
    found = [path for entry in sys.path for path in sorted(Path(entry).glob("nvidia/*/lib/libnvrtc.so.*"))]
    if not found:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    monkeypatch.setattr("torch.version.cuda", found[-1].suffix[1:])


def chosen_plans(name: str) -> list[persistent.Plan]:
    """Give one plan for each number of streams per group that is chosen without being asked for."""
    (_, wide_H), (min_B, max_B) = persistent.FASTER[name.split("_")[0]]
    plans = [
        persistent.make_plan(name, wide_H, B, max_ctas)
        for B in range(min_B, max_B + 1)
        for max_ctas in (persistent.MEASURED_CTAS, 120)  # in clusters, 120 were found on an H200
    ]
    return [*{plan.N: plan for plan in plans}.values()]


@pytest.mark.usefixtures("with_nvrtc")
@pytest.mark.parametrize("name", ["lstm_forward", "lstm_backward", "rnn_forward", "rnn_backward"])
def test_one_launch_compiles_and_keeps_its_weights_in_registers(name: str, tmp_path: Path) -> None:
    nvidia = pytest.importorskip("triton.backends.nvidia")
    reader = Path(nvidia.__path__[0], "bin", "cuobjdump")
    for plan in chosen_plans(name):
        for has_resets in (False, True):
            of = f"N={plan.N}, resets={has_resets}"
            (tmp_path / "kernel").write_bytes(nvrtc._compile(plan.source(has_resets=has_resets)))
            told = subprocess.run([reader, "-res-usage", tmp_path / "kernel"], capture_output=True, text=True)
            found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", told.stdout + told.stderr)
            assert found is not None, told.stderr
            registers, stack, shared, local = map(int, found.groups())
            assert registers * nvrtc.THREADS <= 65536, of
            assert stack + local <= 32, f"a thread has {stack + local} bytes beside its registers: {of}"
            # A multiprocessor has 228 KB, of which every CTA takes 1 KB beside its own.
            assert shared <= 1024, of
