"""Pages whose commands and code run as they stand: how tests take them out of a page and run them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import command as command_line

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
    for scripts in ("benchmarks", "examples"):
        (directory / scripts).symlink_to(ROOT / scripts)
    return run(["sh", "-e", "-c", "\n".join(blocks(page, "sh"))], directory)


def run_commands_here(page: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run all commands of a page, but `bnce` in this process, to which PyTorch need not be imported each time.

    That a user's shell starts them is tested with the README and the tutorial.
    """
    stdout = stderr = ""
    for command in re.split(r"^(bnce (?:.*\\\n)*.*\n)", "\n".join(blocks(page, "sh")), flags=re.MULTILINE):
        done = call(command, directory) if command.startswith("bnce ") else run(["sh", "-e", "-c", command], directory)
        stdout, stderr = stdout + done.stdout, stderr + done.stderr
        if done.returncode:
            return subprocess.CompletedProcess(command, done.returncode, stdout, stderr)
    return subprocess.CompletedProcess(page, 0, stdout, stderr)


def call(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run one command `bnce …` in this process, as a shell would understand it."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    assert not {"|", ">", "<", "&", ";"} & set(words), f"only a shell can run this: {command}"
    with contextlib.chdir(directory), mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
        outcome = command_line.call(*words[1:])
    return subprocess.CompletedProcess(words, *outcome)
