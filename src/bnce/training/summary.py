"""What summary.json says of a run: its size, speed, machine and command, and how far it has come."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import torch

from bnce.corpus.store import Corpus
from bnce.evaluation.evaluate import digest_ids
from bnce.runs.directory import Run
from bnce.training.trainer import Trainer
from bnce.version import __version__


def summarise(trainer: Trainer, run: Run, corpus: Corpus, status: str, command: str) -> dict[str, Any]:
    """Describe a run as it is now."""
    network = trainer.network
    # While a run goes on, and where an error broke it off, its clock has not been read.
    is_timed = status in ("finished", "stopped")
    return {
        "status": status,
        "num_parameters": network.num_parameters,
        "num_table_parameters": network.num_table_parameters,
        "vocab_size": len(run.vocabulary),
        "vocabulary_digest": run.vocabulary.digest,
        "valid_text_sha256": digest_ids(trainer.valid_ids),
        "device": ", then ".join(trainer.progress.devices),
        "processes": trainer.world.size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "bnce": __version__,
        "commit": _commit(),
        "command": command,
        "seed": run.config.training.seed,
        "words_per_second": trainer.clock.words_per_second if is_timed else None,
        "train_seconds": trainer.clock.seconds if is_timed else None,
        "startup_seconds": trainer.clock.startup_seconds if is_timed else None,
        "tokens": trainer.progress.tokens if is_timed else None,
        "epochs": trainer.progress.step / len(trainer.streams) if is_timed else None,
        "step": trainer.progress.step,
        "best_step": trainer.progress.best_step,
        "stopped_early": trainer.stops_early,
        "warnings": trainer.progress.warnings,
        "changes": trainer.progress.changes,
    }


@functools.cache
def _commit() -> str | None:
    """Name the commit of this code, where it runs from a checkout."""
    here = Path(__file__).parents[1]
    if not (here.parent.parent / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
