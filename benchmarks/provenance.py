"""What a result file says about its origin: the commit of the code and the seeds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commit() -> str:
    """Name the commit of this code. Where the code was copied without its history, BNCE_COMMIT can name it."""
    if named := os.environ.get("BNCE_COMMIT"):
        return named
    if not (ROOT / ".git").exists():  # or git would name that of a directory above
        return "not recorded"
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not recorded"


def origin(seeds: str) -> str:
    """Write the last line of a result file."""
    return f"Commit: {commit()}. Seeds: {seeds}."
