"""Runs of a second, trained as users train them: by `bnce.train`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command import ctrl_c_after_step

import bnce

RECIPE = Path(__file__).with_name("small.toml")


def train_small(
    out: Path,
    corpus: bnce.Corpus | Path | None = None,
    *,
    observer: Any = None,
    resume: bool = False,
    stop_after: int | None = None,
    **sections: Mapping[str, Any],
) -> dict[str, Any]:
    """Train with the settings of small.toml, of which `sections` change single ones, and give the summary.

    Ctrl-C stops the run after the step `stop_after`: then there is no summary but that in its directory.
    """
    settings = {f"{part}.{key}": value for part, values in sections.items() for key, value in values.items()}
    names = {} if resume else {part: settings.pop(f"{part}.name", None) for part in ("model", "loss")}
    with contextlib.ExitStack() as stack:
        if stop_after is not None:
            stack.enter_context(pytest.raises(KeyboardInterrupt))
            stack.enter_context(ctrl_c_after_step(stop_after))
        return bnce.train(
            None if resume else RECIPE,
            corpus=corpus,
            out=out,
            settings=settings,
            resume=resume,
            device="cpu",
            observer=observer,
            **names,
        )
    return {}


def resume_small(out: Path, corpus: bnce.Corpus | Path | None = None, **given: Any) -> dict[str, Any]:
    """Continue a run of `train_small`."""
    return train_small(out, corpus, resume=True, **given)
