"""What README and docs quote from benchmarks/results, a module per subject. benchmarks/publish.py writes it there."""

from __future__ import annotations

from . import (
    alternatives_page,
    choosing,
    cpu_pages,
    gpu_pages,
    optimisers_table,
    paper_runs,
    readme,
    recognisers,
    verdicts,
    words_and_pieces,
)
from .sources import Block, Said

SUBJECTS = (
    readme,
    paper_runs,
    verdicts,
    words_and_pieces,
    choosing,
    recognisers,
    cpu_pages,
    gpu_pages,
    optimisers_table,
    alternatives_page,
)


def all_quotes() -> list[Block | Said]:
    """Give every quote of every page."""
    return [quote for subject in SUBJECTS for quote in subject.quotes()]
