"""What tells one language model from another: a digest of what decides its scores."""

from __future__ import annotations

from pathlib import Path

from bnce.errors import UserError
from bnce.files import digest_file, digest_record
from bnce.runs.directory import MODEL_FILE, RUN_FILE
from bnce.scoring.loading import MIXTURE_ENDING, mixture_components


def fingerprint(path: str | Path) -> str:
    """Give the SHA-256 of a run's manifest and weights, of an n-gram model, or of a mixture and its components."""
    path = Path(path)
    parts = {}
    for file in [path] if path.is_file() else [path / RUN_FILE, path / MODEL_FILE]:
        try:
            parts["" if file is path else file.name] = digest_file(file)  # a model that was moved is still the same
        except ValueError as error:
            raise UserError(f"'{file}' cannot be read ({error}): check the model.") from error
    if path.is_file() and path.suffix == MIXTURE_ENDING:
        parts |= {f"component {place}": fingerprint(one) for place, (one, _) in enumerate(mixture_components(path))}
    return digest_record(parts)
