"""`bnce.calibrate`: a run and a text in, the run with what its scores are divided by fitted to that text.

The constant and the head are in the model file: the constant as it always was, the head subtracted from the rows of the
output layer. So whatever uses the run uses them, and an export has them. The file's metadata say what was done.
"""

from __future__ import annotations

import contextlib
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
from bnce.corpus.store import Corpus
from bnce.errors import UserError, argument, unknown_name
from bnce.kinds.losses import LOSSES
from bnce.language_model import LanguageModel
from bnce.machine.devices import choose_device
from bnce.runs.checkpoint import MODEL_FILE, MODEL_FORMAT, read_metadata, write_tensors
from bnce.runs.directory import LEXICON_FILE, RunDirectory, hold_run
from bnce.runs.model_file import CALIBRATION, load_model
from bnce.runs.packed_rows import pack_rows
from bnce.runs.texts import check_one_text, open_part

_OF_THE_FILE = ("format", "version", "checksum")  # metadata that every file is given when it is written
_EVALUATION_FILE = "evaluation.json"


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
    run: str | Path | RunDirectory,
    *,
    text: str | Path | Sequence[str | Path] | None = None,
    split: str | None = None,
    corpus: str | Path | Corpus | None = None,
    kind: str = "constant",
    out: str | Path | None = None,
    in_place: bool = False,
    max_words: int = MAX_WORDS,
    by_sentence: bool = False,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], object] = lambda sentence: None,
) -> Calibration:
    """Fit the constant Z of a run to a text, and write the run to `out`, or `in_place`.

    `kind` is "constant", the mean of ln Z(context), or "head", a linear function of the last hidden layer. The text is
    one file or several, or a split of the run's corpus ("valid" by default) or of another `corpus` with the same words.
    ln Z(context) is computed at `max_words` positions of it; with `by_sentence`, every sentence starts without context,
    as if lists are rescored. `progress` gets the numbers of positions done and in all, `notice` gets warnings.
    """
    if kind not in KINDS:
        raise unknown_name("kind of calibration", kind, KINDS)
    if (out is None) != in_place:
        raise UserError(
            f"Give either {argument('out', 'DIR')}, for a new run, or "
            f"{argument('in_place', True)}, which changes the run itself."
        )
    if out is not None:
        files.refuse_existing(Path(out))
    check_one_text(split=split, text=text, corpus=corpus)
    opened = run if isinstance(run, RunDirectory) else RunDirectory.open(run)
    loss = LOSSES.find(opened.config.loss.name)
    if loss.structure is not None:
        raise UserError(
            f"'{opened.path}' was trained with {loss.name}, whose scores are exactly normalised: there is nothing to "
            "calibrate."
        )
    chosen = choose_device(device)
    with hold_run(opened.path) if in_place else contextlib.nullcontext():
        names, parts = _open_texts(opened, text, split or "valid", corpus, notice=notice)
        if loss.caveat is not None:
            notice(loss.caveat)
        network = load_model(opened, str(chosen))
        metadata = read_metadata(opened.path / MODEL_FILE)
        fit, result = _fit(network, kind, names, parts, max_words, by_sentence, progress)
        fold(network, fit)
        metadata |= {CALIBRATION: files.to_json(result.to_dict())}
        if "log_z" in metadata:
            metadata["log_z"] = repr(float(network.output.log_z))
        if out is None:
            _write_model(opened.path, network, metadata, metadata.get("format", MODEL_FORMAT))
            # Its PPLn is of what was replaced.
            (opened.path / _EVALUATION_FILE).unlink(missing_ok=True)
            return result
        with files.atomic_directory(Path(out)) as partial:
            opened.copy_description(partial)
            for name in ("summary.json", LEXICON_FILE):
                if (opened.path / name).is_file():
                    shutil.copyfile(opened.path / name, partial / name)
            _write_model(partial, network, metadata, MODEL_FORMAT)
    return result


def _open_texts(
    run: RunDirectory,
    text: str | Path | Sequence[str | Path] | None,
    split: str,
    corpus: str | Path | Corpus | None,
    **how: Any,
) -> tuple[list[str], list[Any]]:
    """Give names and ids of the texts."""
    if text is None:
        part = open_part(run, split=split, corpus=corpus, **how)
        directory = corpus.directory if isinstance(corpus, Corpus) else corpus or run.config.corpus
        return [f"{split} of {directory}"], [part.ids]
    texts = [text] if isinstance(text, str | Path) else list(text)
    if not texts:
        raise UserError(f"There is no text to calibrate on: give {argument('text')}.")
    return [str(one) for one in texts], [open_part(run, split=split, text=one, **how).ids for one in texts]


def _fit(
    network: LanguageModel,
    kind: str,
    names: list[str],
    texts: list[Any],
    max_words: int,
    by_sentence: bool,
    progress: Callable[[int, int], None] | None,
) -> tuple[Fit, Calibration]:
    """Fit to one part of a sample and judge on the other; then fit to all of it."""
    sample = draw_sample(
        network, texts, max_words, with_hidden=kind == "head", by_sentence=by_sentence, progress=progress
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


def _write_model(directory: Path, network: LanguageModel, metadata: dict[str, str], form: str) -> None:
    """Write a model, with rows of as few bits as they had."""
    packed = pack_rows(network.state_dict(), network.tables(), metadata.get("rows", "float32"))
    kept = {key: value for key, value in metadata.items() if key not in _OF_THE_FILE}
    write_tensors(directory / MODEL_FILE, packed, form, kept)
