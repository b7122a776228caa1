"""What a check-up finds, one line for everything looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what, whether it is well, and the figure."""

    name: str
    well: bool
    detail: str


def look(name: str, check: Callable[..., str], *arguments: Any) -> Finding:
    """Make a finding of what a check tells, or of why it could not; so the rest is looked at all the same."""
    try:
        return Finding(name, True, check(*arguments))
    except (ValueError, OSError) as error:
        return Finding(name, False, str(error))
    except Exception as error:
        # What nobody thought of is a finding, too: a check-up ends with a verdict.
        return Finding(name, False, f"{type(error).__name__}: {error}")
