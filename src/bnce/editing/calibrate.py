"""`bnce.calibrate`: a run and a text in, the run with what its scores are divided by fitted to that text.

A score becomes ln p less a stand-in for ln Z(context) = ln Σ_v exp(h·w_v + c_v):

constant   ln Z(context) ≈ a         a is the mean. Then the mean of ln p is that of the softmax: PPLn = PPLf.
head       ln Z(context) ≈ a + b·h   ridge regression from the last hidden layer h. Its mean is that of ln Z, too.

A head needs nothing where words are scored. h·w + c − (a + b·h) = h·(w − b) + c − a, so b is subtracted from every row
of the output layer once, and a is the constant. The softmax over all words stays the same: every score of a context
loses the same b·h. What is left of ln Z(context) then is what the head leaves over. Both are in the model file, so
whatever uses the run uses them, and an export has them. The file's metadata say what was done.

Legend: N positions, D hidden, S sentences, W windows, T time steps, B windows side by side, P places in a text,
L = 1 + context words of an n-gram body + T, C columns of a table, R ridges.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bnce import files
from bnce.corpus.vocabulary import END
from bnce.errors import UserError, argument, unknown_name
from bnce.evaluation import windows
from bnce.evaluation.breakdown import perplexity
from bnce.evaluation.evaluate import MIN_SENTENCES, num_read_before, num_side_by_side
from bnce.language_model import LanguageModel
from bnce.machine.devices import choose_device
from bnce.machine.precision import float32_products
from bnce.machine.processes import World
from bnce.runs.checkpoint import MODEL_FORMAT, write_tensors
from bnce.runs.directory import MODEL_FILE, Run
from bnce.runs.model_file import CALIBRATION, load_model, read_metadata
from bnce.runs.packed_rows import pack_rows
from bnce.runs.texts import check_corpus_is_there, open_part

Floats = NDArray[np.float64]

# At which ln Z is computed. Where its standard deviation is 0.35, its mean is then known to about 0.005, so PPLn to
# half a per cent; `bnce calibrate` prints the standard error. This takes half a minute on a CPU for 80,000 words.
MAX_POSITIONS, MIN_POSITIONS = 20_000, 100
# Of a window every so many words are measured: neighbours have much the same ln Z, and the rest of a window is read
# only so that the words have as much before them as where a text is evaluated. ln Z grows with that.
EVERY = 16
PER_WINDOW = windows.WINDOW // EVERY
MIN_BLOCKS = 16
NUM_FOLDS = 4  # of blocks: one is held out of the fit; of those it is fitted to, each in turn, to choose the ridge
# Added to the variance of every direction of h, relative to their mean; without bound, the head is the constant.
RIDGES = (*(10.0**power for power in range(-7, 2)), np.inf)


@dataclass(frozen=True)
class Quality:
    """How well scores are normalised: both perplexities, and mean and spread of ln Z(context) − what is subtracted."""

    ppl_f: float | None  # with the softmax
    ppl_n: float | None  # with what is subtracted; None where nothing was meant to be
    difference_mean: float
    difference_std: float


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
    if text is None:
        check_corpus_is_there(opened.path, opened.config, f"give a text with {argument('text')}")
        names, parts = [f"valid of {opened.config.corpus}"], [open_part(opened)]
    else:
        paths = [text] if isinstance(text, str | Path) else list(text)
        if not paths:
            raise UserError(f"There is no text to calibrate on: give {argument('text')}.")
        names, parts = [str(path) for path in paths], [open_part(opened, text=path, notice=notice) for path in paths]
    if loss.caveat:
        notice(loss.caveat)
    network, metadata = load_model(opened, str(chosen)), read_metadata(opened.path / MODEL_FILE)
    texts, has_constant, log_z = [part.ids for part in parts], network.output.normalises, float(network.output.log_z)
    sample = draw_sample(network, texts, with_hidden=kind == "head", by_sentence=by_sentence, progress=progress)
    fitted, held_out = sample.split(NUM_FOLDS - 1)
    fit = KINDS[kind]
    final = fit(sample)
    result = Calibration(
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
    fold(network, final)
    metadata[CALIBRATION] = files.to_json(result.to_dict())
    metadata.pop("checksum", None)  # that of the old file
    with files.atomic_directory(Path(out)) as partial:
        opened.copy_description(partial)
        if (summary := opened.path / "summary.json").is_file():
            shutil.copyfile(summary, partial / summary.name)
        rows = pack_rows(network.state_dict(), network.tables(), metadata.get("rows", "float32"))  # in as few bits
        write_tensors(partial / MODEL_FILE, rows, MODEL_FORMAT, metadata)
    return result


@dataclass(frozen=True)
class Sample:
    """N positions in blocks of neighbours: one position says much about the next one, and little of another block."""

    hidden_ND: Floats  # D is 0 where nobody wants it: it is all of the memory
    score_N: Floats  # of the word that comes there
    log_z_N: Floats  # ln Z(context)
    block_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_z_N)

    def split(self, fold: int) -> tuple[Sample, Sample]:
        """Give all but one fold, and the fold: every fourth block."""
        _, number_N = np.unique(self.block_N, return_inverse=True)
        in_fold_N = number_N % NUM_FOLDS == fold
        columns = self.hidden_ND, self.score_N, self.log_z_N, self.block_N
        rest, part = (Sample(*(column[chosen_N] for column in columns)) for chosen_N in (~in_fold_N, in_fold_N))
        return rest, part


@torch.no_grad()
def draw_sample(
    model: LanguageModel,
    texts: Sequence[np.ndarray],
    max_positions: int = MAX_POSITIONS,
    *,
    with_hidden: bool,
    by_sentence: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sample:
    """Compute the exact ln Z(context) at all positions of texts, or at `max_positions` that are spread over them.

    The texts, as ids, share these by their lengths. With `by_sentence`, every sentence starts afresh. `progress` is
    told of positions done and positions in all.
    """
    ends = np.cumsum([len(ids) for ids in texts])
    num_wanted, num_done = min(max_positions, int(ends[-1])), 0
    if num_wanted < MIN_POSITIONS:
        raise UserError(
            f"There are {num_wanted} words to calibrate on, and {MIN_POSITIONS} are needed: give more text."
        )
    shares = np.diff(ends * num_wanted // ends[-1], prepend=0).tolist()
    found = []
    model.eval()
    for ids, share in zip(texts, shares, strict=True):
        if not share:
            continue
        rows = []
        with float32_products(tf32=False):
            for read in windows.read_windows(model, _choose_windows(model, ids, share, by_sentence), World()):
                log_z_N, score_N = model.output.normalise(read.hidden_ND, read.target_N)
                hidden_ND = read.hidden_ND if with_hidden else read.hidden_ND[:, :0]
                columns = read.position_N[:, None], score_N[:, None], log_z_N[:, None], hidden_ND
                rows.append(torch.cat([column.double().cpu() for column in columns], dim=1))
                num_done = min(num_done + read.num_scored, num_wanted)
                if progress is not None:
                    progress(num_done, num_wanted)
        row_NC = torch.cat(rows).numpy()
        found.append(row_NC[np.argsort(row_NC[:, 0])[:share]])  # all, or all but a few at the end
    row_NC = np.concatenate(found)
    _, score_N, log_z_N = row_NC[:, :3].T.copy()
    if not np.isfinite(log_z_N).all():
        raise UserError(
            "ln Z(context) of this model is not finite at some positions: its training failed; train it again."
        )
    block_size = min(PER_WINDOW, len(row_NC) // MIN_BLOCKS)
    return Sample(row_NC[:, 3:], score_N, log_z_N, np.arange(len(row_NC)) // block_size)


def _choose_windows(
    model: LanguageModel, ids: np.ndarray, num_wanted: int, by_sentence: bool
) -> Iterator[windows.Window]:
    """Cut as much out of a text as has the positions that are wanted, or a few more, evenly spread."""
    num_parallel, num_context, before = num_side_by_side(model), model.num_context, num_read_before(model)
    num_windows = -(-num_wanted // PER_WINDOW)
    if by_sentence:
        sentences = _some_sentences(ids, num_wanted)
        yield from windows.by_sentence(sentences, max(MIN_SENTENCES, num_parallel), num_context)
    elif len(ids) < before + num_windows * windows.WINDOW:
        wanted_P = torch.zeros(len(ids), dtype=torch.bool)
        wanted_P[np.linspace(0, len(ids) - 1, num_wanted).astype(np.int64)] = True
        for part in windows.in_context(ids, num_parallel, num_context, before):
            yield part._replace(scored_TB=part.scored_TB & wanted_P[part.position_TB.clamp(0, len(ids) - 1)])
    else:
        # As long as those of `windows.in_context`, and read as those are. What depends on how far a word is from where
        # reading began, as ln Z(context) does, is then the same on average.
        start_W = np.linspace(0, len(ids) - before - windows.WINDOW, num_windows).astype(np.int64)
        place_T1 = np.arange(before + windows.WINDOW)[:, None]
        for first in range(0, num_windows, num_parallel):
            start_B = start_W[first : first + num_parallel]
            number_B = np.arange(first, first + len(start_B))
            position_LB = np.arange(-1 - num_context, len(place_T1))[:, None] + start_B
            scored_TB = (place_T1 >= before) & ((place_T1 - before + number_B) % EVERY == 0)
            yield windows.make_window(ids, position_LB, position_LB >= 0, scored_TB)


def _some_sentences(ids: np.ndarray, num_wanted: int) -> np.ndarray:
    """Take sentences that are spread evenly over a text, with as many words as are wanted or a few more."""
    border_S = np.concatenate([[0], np.flatnonzero(ids[:-1] == END) + 1, [len(ids)]])
    length_S = np.diff(border_S)
    # In an order of which any beginning is spread over the text: that of the fractions of a golden step.
    spread_S = np.argsort(np.arange(len(length_S)) * 0.6180339887498949 % 1.0, kind="stable")
    num_taken = int(np.searchsorted(np.cumsum(length_S[spread_S]), num_wanted)) + 1
    return np.concatenate([ids[border_S[number] : border_S[number + 1]] for number in np.sort(spread_S[:num_taken])])


@dataclass(frozen=True)
class Fit:
    """ln Z(context) ≈ log_z + slope·h; without a slope it is a constant."""

    log_z: float
    slope_D: Floats | None = None
    ridge: float | None = None  # of RIDGES, that was best

    def predict(self, sample: Sample) -> Floats | float:
        """Predict ln Z at every position (N,), or everywhere."""
        return self.log_z if self.slope_D is None else self.log_z + sample.hidden_ND @ self.slope_D


def judge(sample: Sample, fit: Fit, *, is_used: bool = True) -> Quality:
    """Measure what a fit makes of a sample; one that is not used has no perplexity."""
    predicted = fit.predict(sample)
    difference_N = sample.log_z_N - predicted
    return Quality(
        ppl_f=perplexity(float((sample.score_N - sample.log_z_N).sum()), len(sample)),
        ppl_n=perplexity(float((sample.score_N - predicted).sum()), len(sample)) if is_used else None,
        difference_mean=float(difference_N.mean()),
        difference_std=float(difference_N.std()),
    )


def standard_error(sample: Sample, fit: Fit) -> float:
    """Say how well the mean of what a fit leaves over is known: blocks of neighbours count as one number each."""
    difference_N = sample.log_z_N - fit.predict(sample)
    block_means = np.bincount(sample.block_N, difference_N) / np.bincount(sample.block_N)
    return float(block_means.std(ddof=1) / np.sqrt(len(block_means)))


def fit_constant(sample: Sample) -> Fit:
    """Take the mean of ln Z(context)."""
    return Fit(float(sample.log_z_N.mean()))


def fit_head(sample: Sample) -> Fit:
    """Regress ln Z(context) on the hidden layer; how strongly the slope is held down is found by cross-validation."""
    error_R = np.zeros(len(RIDGES))
    for fold in range(NUM_FOLDS):
        rest, part = sample.split(fold)
        error_R += [np.square(part.log_z_N - head.predict(part)).sum() for head in _fit_heads(rest)]
    return _fit_heads(sample)[int(error_R.argmin())]


def _fit_heads(sample: Sample) -> list[Fit]:
    """Give the regression for each of RIDGES: all are along the directions in which the hidden layers vary."""
    mean_D, log_z_mean = sample.hidden_ND.mean(0), float(sample.log_z_N.mean())
    centred_ND = sample.hidden_ND - mean_D
    variance_D, direction_DD = np.linalg.eigh(centred_ND.T @ centred_ND / len(sample))  # a direction is a column
    covariance_D = direction_DD.T @ (centred_ND.T @ (sample.log_z_N - log_z_mean)) / len(sample)
    # Rounding makes a variance of 0 a little less; where all hidden layers are the same, any scale will do.
    variance_D = np.maximum(variance_D, 0.0)
    scale = float(variance_D.mean()) or 1.0
    heads = []
    for ridge in RIDGES:
        slope_D = direction_DD @ (covariance_D / (variance_D + ridge * scale))
        heads.append(Fit(log_z_mean - float(mean_D @ slope_D), slope_D, ridge))
    return heads


@torch.no_grad()
def fold(network: LanguageModel, fit: Fit) -> None:
    """Give a network what was fitted: ln Z, and the rows of the output layer less the slope."""
    network.output.normalises = True
    network.output.log_z.fill_(fit.log_z)
    if fit.slope_D is not None:
        network.output.weight.sub_(torch.from_numpy(fit.slope_D).to(network.output.weight))


KINDS = {"constant": fit_constant, "head": fit_head}
