"""Finds the browser that the server's page is tested in, and installs one where that needs nobody's help.

`make test` runs this file. BNCE_CHROMIUM names a browser; BNCE_CHROMIUM=none hides every browser and installs none.
A missing browser is no failure: the tests that need one are skipped, and the last lines of the run say so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLE = "BNCE_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
MAC_PROGRAMS = ("Google Chrome", "Chromium", "Microsoft Edge")
HOW_TO = f"Install Chromium (on Debian and Ubuntu: apt-get install chromium), or set {VARIABLE} to its path."
# Long enough for a slow mirror; a machine without a network gives up far earlier.
MAX_SECONDS = 600


def find() -> str | None:
    """Give the path of a browser that runs; a browser that was named has to be one."""
    named = os.environ.get(VARIABLE, "")
    if named == "none":
        return None
    if named:
        found = shutil.which(named)
        if found is None or not runs(found):
            raise FileNotFoundError(f"{VARIABLE} is '{named}', which is not a browser that runs. {HOW_TO}")
        return found
    on_path = [found for found in map(shutil.which, NAMES) if found]
    apps = [f"/Applications/{name}.app/Contents/MacOS/{name}" for name in MAC_PROGRAMS]
    # Ubuntu's chromium-browser is a stub that only says what to install: a browser counts when it runs.
    return next((path for path in [*on_path, *apps, *downloaded()] if runs(path)), None)


def downloaded() -> list[str]:
    """List the browser that Playwright downloads for itself, where it has."""
    if importlib.util.find_spec("playwright") is None:
        return []
    from playwright.sync_api import Error, sync_playwright

    try:
        with sync_playwright() as playwright:
            path = playwright.chromium.executable_path
    except Error:
        return []
    return [path] if Path(path).is_file() else []


def runs(path: str) -> bool:
    """Say whether this program can say its version."""
    return run([path, "--version"], seconds=60) == ""


def install() -> list[str]:
    """Try every way that asks no question, until one gives a browser; return what went wrong on the way."""
    problems = []
    for command in commands():
        problem = run(command, seconds=MAX_SECONDS)
        if problem:
            problems.append(f"{' '.join(command)}: {problem}")
        if find():
            break
    return problems


def commands() -> list[list[str]]:
    """Give the commands that may bring a browser: apt-get as root or by sudo without a password, then Playwright's."""
    found = []
    if shutil.which("apt-get"):
        sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
        if not sudo or (shutil.which("sudo") and run([*sudo, "true"], seconds=10) == ""):
            # The lists of packages may be old or missing, and may not all be had: the package counts.
            found += [[*sudo, "apt-get", "update", "-qq"]]
            found += [[*sudo, "apt-get", "install", "-y", "-qq", "-o", "DPkg::Lock::Timeout=60", "chromium"]]
    if importlib.util.find_spec("playwright"):
        found.append([sys.executable, "-m", "playwright", "install", "chromium"])
    return found


def run(command: list[str], *, seconds: float) -> str:
    """Run a command that must not ask anything, and return what went wrong: nothing when it ended well."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "a"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=quiet,
            timeout=seconds,
            check=False,
            # Without a terminal, nothing can ask for a password behind our back.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = done.stdout.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    return f"status {done.returncode}: {said[-1]}"


def main() -> None:
    """Say which browser the tests will use, after installing one where there is none."""
    if os.environ.get(VARIABLE) == "none":
        print(f"{VARIABLE} is none: the browser tests will be skipped.")
        return
    found = find()
    if found is None:
        print("No browser was found. Trying to install Chromium.", flush=True)
        for problem in install():
            print(problem)
        found = find()
    if found is None:
        print(f"No browser could be installed: the browser tests will be skipped. {HOW_TO}")
    else:
        print(f"The browser tests use {found}.")


if __name__ == "__main__":
    main()
