"""`bnce.load`: open a run, a mixture or an n-gram model by its path; and what tells one model from another.

A mixture file is TOML; paths in it are relative to its own place:

    [[components]]
    path = "runs/relu-lstm"
    weight = 0.7
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bnce import files
from bnce.errors import UserError
from bnce.files import digest_file, digest_record, parse_toml, read_object
from bnce.runs.directory import MODEL_FILE, RUN_FILE, RUN_FILES
from bnce.runs.model_file import read_metadata
from bnce.scoring.model import Model
from bnce.scoring.run_model import load_run

MIXTURE_ENDING = ".toml"


def load(path: str | Path, device: str = "cpu") -> Model:
    """Open a run directory, a mixture (.toml) or an n-gram model.

    The device is auto, cpu, cuda or cuda:N. OMP_NUM_THREADS sets the number of CPU threads.
    """
    path = Path(path)
    if not path.is_file():
        return load_run(path, device)
    if path.suffix != MIXTURE_ENDING:
        from bnce.scoring.ngram_model import open_ngram

        return open_ngram(path)
    from bnce.scoring.mixture import MixtureModel

    pairs = mixture_components(path)
    for component, _ in pairs:
        if component.suffix == MIXTURE_ENDING:
            raise UserError(f"The mixture '{path}' contains the mixture '{component}': give its components instead.")
    components = [load(component, device) for component, _ in pairs]
    return MixtureModel(components, [weight for _, weight in pairs], str(path))


def fingerprint(path: str | Path) -> str:
    """Tell a model from others by what decides its scores, wherever it lies: a run by its manifest and its weights."""
    path = Path(path)
    try:
        if path.is_dir():
            metadata = read_metadata(path / MODEL_FILE)
            # Of a file of another program nobody has computed a checksum.
            weights = metadata if "checksum" in metadata else {"sha256": digest_file(path / MODEL_FILE)}
            return digest_record({"run": read_object(path / RUN_FILE)["sha256"], "weights": weights})
        parts = {"file": digest_file(path)}
        if path.suffix == MIXTURE_ENDING:
            parts |= {f"component {place}": fingerprint(one) for place, (one, _) in enumerate(mixture_components(path))}
        return digest_record(parts)
    except (ValueError, KeyError) as error:
        raise UserError(f"The model '{path}' cannot be read ({error}): check the path and its files.") from error


def model_files(path: str | Path) -> Iterator[Path]:
    """List the files that a model may consist of: those of a run, and of what is in a mixture."""
    path = Path(path)
    if path.is_dir():
        yield from (path / name for name in RUN_FILES)
        return
    yield path
    if path.suffix == MIXTURE_ENDING:
        for component, _ in mixture_components(path):
            if component.suffix != MIXTURE_ENDING:
                yield from model_files(component)


def write_mixture(path: str | Path, components: Sequence[str | Path], weights: Sequence[float]) -> None:
    """Write the file that `load` opens as a mixture."""
    path = Path(path)
    if path.suffix != MIXTURE_ENDING:
        raise UserError(f"The output file of the mixture is '{path}': give a name that ends in {MIXTURE_ENDING}.")
    lines = ["# p(word) = the sum of weight times each component's p(word); paths are relative to this file.\n"]
    for component, weight in zip(components, weights, strict=True):
        relative = os.path.relpath(Path(component).resolve(), path.resolve().parent)
        # A JSON string is a TOML string, too.
        lines.append(f"\n[[components]]\npath = {json.dumps(relative, ensure_ascii=False)}\nweight = {weight!r}\n")
    files.write_text(path, "".join(lines))


def mixture_components(path: Path) -> list[tuple[Path, float]]:
    """Read the components of a mixture with their weights."""
    try:
        found = parse_toml(path.read_bytes())["components"]
        return [(path.parent / str(one["path"]), float(one["weight"])) for one in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{path}' is not a mixture from 'bnce interpolate' ({error}): give [[components]] with path and weight."
        ) from error
