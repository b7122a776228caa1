"""`make test` passes on a machine without a browser, and says what it left out; it never waits for a password."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import browser
import pytest

ROOT = Path(__file__).parents[1]


def write_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that is all there is on the path, of a machine on which Playwright has no browser either."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    monkeypatch.setattr(browser, "downloaded", list)
    monkeypatch.setattr(browser, "MAC_PROGRAMS", ())
    return folder


def test_without_a_browser_its_tests_are_skipped_and_the_last_lines_say_so() -> None:
    page = "tests/cli/test_serve_page.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", page],
        cwd=ROOT,
        env={**os.environ, browser.VARIABLE: "none"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout[done.stdout.index("no browser") :]
    names = [line.strip() for line in said.splitlines() if line.startswith("    ")]
    assert f"{len(names)} tests were skipped, because they need a browser and none was found:" in said
    assert f"{page}::test_next_words_go_in_by_keyboard_alone" in names
    assert "apt-get install chromium" in said
    assert "pytest -m browser" in said
    assert "passed" not in done.stdout


@pytest.mark.parametrize("hidden", [True, False])
def test_make_test_passes_where_no_browser_is_and_none_can_be_installed(tmp_path: Path, hidden: bool) -> None:
    """All but the browser's part of `make test` is stubbed: its steps and their order are the Makefile's."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "browser.py", tmp_path / "tests")
    log = tmp_path / "log"
    installed = tmp_path / ".venv" / "bin"
    for name in ("pytest", "ruff", "mypy"):
        write_program(installed / name, f'echo {name} "$@" >>"{log}"')
    # Isolated: Playwright, which might have a browser or fetch one, is not importable there.
    write_program(installed / "python", f'exec "{sys.executable}" -I -S "$@"')
    for name in (".installed", ".installed-test"):
        (installed.parent / name).touch()
    path = tmp_path / "programs"
    for name in ("apt-get", "sudo"):
        write_program(path / name, f'echo {name} "$@" >>"{log}"; echo "E: no network" >&2; exit 100')
    for name in ("sh", "make", "touch"):
        (path / name).symlink_to(shutil.which(name) or name)
    environment = {"PATH": str(path)} | ({browser.VARIABLE: "none"} if hidden else {})
    done = subprocess.run(
        ["make", "test"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the browser tests will be skipped" in done.stdout
    steps = log.read_text(encoding="utf-8").splitlines()
    assert steps[-1].startswith("pytest ") and "tests/" not in steps[-1]  # noqa: PT018
    assert any(step.startswith(("apt-get", "sudo")) for step in steps) is not hidden


def test_the_first_name_that_runs_is_taken(programs: Path) -> None:
    assert browser.find() is None
    # As on Ubuntu without snap.
    write_program(programs / "chromium-browser", "echo requires the chromium snap >&2; exit 1")
    assert browser.find() is None
    write_program(programs / "google-chrome", "echo Google Chrome 1")
    assert browser.find() == str(programs / "google-chrome")
    write_program(programs / "chromium", "echo Chromium 1")
    assert browser.find() == str(programs / "chromium")


def test_a_named_browser_must_run(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(programs / "chromium", "echo Chromium 1")
    monkeypatch.setenv(browser.VARIABLE, str(programs / "other"))
    with pytest.raises(FileNotFoundError, match=r"BNCE_CHROMIUM is '.*other', which is not a browser that runs"):
        browser.find()
    write_program(programs / "other", "echo Chromium 2")
    assert browser.find() == str(programs / "other")
    monkeypatch.setenv(browser.VARIABLE, "none")
    assert browser.find() is None


def test_root_installs_a_browser(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    browser_script = programs.parent / "browser"
    write_program(browser_script, "echo Chromium 1")
    # The lists are not all to be had, as where one of several mirrors is down.
    write_program(
        programs / "apt-get", f'[ "$1" = install ] || exit 100; /bin/cp "{browser_script}" "{programs}/chromium"'
    )
    assert [problem.split(":")[0] for problem in browser.install()] == ["apt-get update -qq"]
    assert browser.find() == str(programs / "chromium")


def test_sudo_is_used_only_where_it_asks_for_no_password(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    write_program(programs / "apt-get", "exit 1")
    assert not any("apt-get" in command for command in browser.commands())
    write_program(programs / "sudo", 'if [ "$1" = -n ]; then exit 1; fi; read password </dev/tty')
    assert not any("apt-get" in command for command in browser.commands())
    write_program(programs / "sudo", '[ "$1" = -n ]')
    assert any(command[:3] == ["sudo", "-n", "apt-get"] for command in browser.commands())


def test_an_installer_that_hangs_is_ended(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "commands", lambda: [[str(programs / "asks")]])
    monkeypatch.setattr(browser, "MAX_SECONDS", 0.2)
    write_program(programs / "asks", "exec /bin/sleep 100")
    (problem,) = browser.install()
    assert "timed out" in problem
