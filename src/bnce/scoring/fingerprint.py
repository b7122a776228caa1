"""What tells one language model from another: a digest of all files that decide what it scores."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from bnce.errors import UserError
from bnce.files import digest_file, digest_record
from bnce.scoring.loading import MIXTURE_ENDING, mixture_components

# What a run directory has beside its model: figures, and states to go on from. Anything else may decide scores.
_BESIDE = ("state-*", "metrics.jsonl", "evaluation.json", "summary.json", "tensorboard")


def fingerprint(path: str | Path) -> str:
    """Give the SHA-256 of a run, an n-gram model or a mixture: of its files, and of those that it is made of."""
    path = Path(path)
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file() and not _is_beside(file)]
    parts = {}
    for file in files:
        try:
            # A file's name says what it is; a model that was moved is still the same.
            parts["" if file is path else file.name] = digest_file(file)
        except ValueError as error:
            raise UserError(f"'{file}' cannot be read ({error}): check the model.") from error
    if path.is_file() and path.suffix == MIXTURE_ENDING:
        parts |= {f"component {place}": fingerprint(one) for place, (one, _) in enumerate(mixture_components(path))}
    return digest_record(parts)


def _is_beside(file: Path) -> bool:
    return any(fnmatch.fnmatch(file.name, name) for name in _BESIDE)
