"""`bnce.calibrate`: a run and a text in, the run with what its scores are divided by fitted to that text.

The constant and the head are in the model file: the constant as it always was, the head subtracted from the rows of the
output layer. So whatever uses the run uses them, and an export has them. The file's metadata say what was done.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bnce import files
from bnce.calibration import KINDS, MAX_WORDS
from bnce.calibration.fit import Fit, Quality, fit_constant, fit_head, judge, standard_error
from bnce.calibration.sample import draw_sample
from bnce.errors import UserError, argument, unknown_name
from bnce.language_model import LanguageModel
from bnce.machine.devices import choose_device
from bnce.runs.checkpoint import MODEL_FORMAT, write_tensors
from bnce.runs.directory import MODEL_FILE, Run
from bnce.runs.model_file import CALIBRATION, load_model, read_metadata
from bnce.runs.packed_rows import pack_rows
from bnce.runs.texts import check_corpus_is_there, open_part

_OF_THE_FILE = ("format", "checksum")  # metadata that every file is given when it is written


@dataclass(frozen=True)
class Calibration:
    """What was fitted, to what, and how well it holds on positions that it was not fitted to.

    `before` and `after` are of these: there `after` is what a fit to the other positions gives. What is kept is fitted
    to all.
    """

    kind: str
    texts: list[str]
    by_sentence: bool  # every sentence for itself, or in context
    date: str  # UTC
    num_positions: int
    num_held_out: int
    log_z_before: float | None  # None where the run had no constant
    log_z: float
    log_z_error: float  # its standard error: PPLn on this text is known to this share
    ridge: float | None  # of a head: how strongly it was held down
    before: Quality
    after: Quality

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as JSON has them."""
        return asdict(self)


def calibrate(
    run: str | Path | Run,
    *,
    out: str | Path,
    text: str | Path | Sequence[str | Path] | None = None,
    kind: str = "constant",
    by_sentence: bool = False,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], object] = lambda sentence: None,
) -> Calibration:
    """Fit the constant Z of a run to a text, and write the run to `out`.

    `kind` is "constant", the mean of ln Z(context), or "head", a linear function of the last hidden layer. The text is
    one file or several, or the validation split of the run's corpus. ln Z(context) is computed at 20,000 positions of
    it at most; with `by_sentence`, every sentence starts without context, as if lists are rescored. `progress` gets the
    numbers of positions done and in all, `notice` gets warnings.
    """
    if kind not in KINDS:
        raise unknown_name("kind of calibration", kind, KINDS)
    files.refuse_existing(Path(out))
    opened = run if isinstance(run, Run) else Run.open(run)
    loss = opened.config.loss
    if loss.structure:
        raise UserError(
            f"'{opened.path}' was trained with {loss.name}, whose scores are exactly normalised: there is nothing to "
            "calibrate."
        )
    chosen = choose_device(device)
    names, parts = _open_texts(opened, text, notice)
    if loss.caveat:
        notice(loss.caveat)
    network = load_model(opened, str(chosen))
    metadata = read_metadata(opened.path / MODEL_FILE)
    fit, result = _fit(network, kind, names, parts, by_sentence, progress)
    fold(network, fit)
    metadata |= {CALIBRATION: files.to_json(result.to_dict())}
    if "log_z" in metadata:
        metadata["log_z"] = repr(float(network.output.log_z))
    with files.atomic_directory(Path(out)) as partial:
        opened.copy_description(partial)
        if (summary := opened.path / "summary.json").is_file():
            shutil.copyfile(summary, partial / summary.name)
        _write_model(partial, network, metadata)
    return result


def _open_texts(
    run: Run, text: str | Path | Sequence[str | Path] | None, notice: Callable[[str], object]
) -> tuple[list[str], list[Any]]:
    """Give names and ids of the texts."""
    if text is None:
        check_corpus_is_there(run.path, run.config, f"give a text with {argument('text')}")
        return [f"valid of {run.config.corpus}"], [open_part(run).ids]
    texts = [text] if isinstance(text, str | Path) else list(text)
    if not texts:
        raise UserError(f"There is no text to calibrate on: give {argument('text')}.")
    return [str(one) for one in texts], [open_part(run, text=one, notice=notice).ids for one in texts]


def _fit(
    network: LanguageModel,
    kind: str,
    names: list[str],
    texts: list[Any],
    by_sentence: bool,
    progress: Callable[[int, int], None] | None,
) -> tuple[Fit, Calibration]:
    """Fit to one part of a sample and judge on the other; then fit to all of it."""
    sample = draw_sample(
        network, texts, MAX_WORDS, with_hidden=kind == "head", by_sentence=by_sentence, progress=progress
    )
    fitted, held_out = sample.halves()
    fit = fit_head if kind == "head" else fit_constant
    has_constant, log_z = network.output.normalises, float(network.output.log_z)
    final = fit(sample)
    return final, Calibration(
        kind=kind,
        texts=names,
        by_sentence=by_sentence,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        num_positions=len(sample),
        num_held_out=len(held_out),
        log_z_before=log_z if has_constant else None,
        log_z=final.log_z,
        log_z_error=standard_error(sample, final),
        ridge=final.ridge,
        before=judge(held_out, Fit(log_z), is_used=has_constant),
        after=judge(held_out, fit(fitted)),
    )


@torch.no_grad()
def fold(network: LanguageModel, fit: Fit) -> None:
    """Give a network what was fitted: ln Z, and the rows of the output layer less the slope."""
    output = network.output
    output.normalises = True
    output.log_z.fill_(fit.log_z)
    if fit.slope_D is not None:
        output.weight.sub_(torch.from_numpy(fit.slope_D).to(output.weight))


def _write_model(directory: Path, network: LanguageModel, metadata: dict[str, str]) -> None:
    """Write a model, with rows of as few bits as they had."""
    packed = pack_rows(network.state_dict(), network.tables(), metadata.get("rows", "float32"))
    kept = {key: value for key, value in metadata.items() if key not in _OF_THE_FILE}
    write_tensors(directory / MODEL_FILE, packed, MODEL_FORMAT, kept)
