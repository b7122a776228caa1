"""Pages whose commands and code run as they stand: how tests take them out of a page and run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Give the blocks of code of a page in one language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)


def run(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a program with `bnce` and `python` on its path and the package importable, as after an install."""
    programs = directory / "programs"
    programs.mkdir(exist_ok=True)
    for name, arguments in (("bnce", "-m bnce "), ("python", ""), ("python3", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=250)


def run_commands(page: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run all commands of a page, one after the other, where it finds the scripts of the repository."""
    scripts = directory / "benchmarks"
    if not scripts.exists():  # from the page before
        scripts.symlink_to(ROOT / "benchmarks")
    return run(["sh", "-e", "-c", "\n".join(blocks(page, "sh"))], directory)
