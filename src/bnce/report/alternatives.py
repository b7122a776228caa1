"""The table of alternatives to the softmax: quality, normalisation, and what training and scoring cost."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnce import files
from bnce.kinds.alternatives import ALTERNATIVES, Alternative
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES
from bnce.report import numbers
from bnce.report.comparison import compare_runs
from bnce.report.drawing import make_logarithmic, new_axes, page_style
from bnce.report.names import name_loss
from bnce.report.runs import has_figures, number
from bnce.runs.metrics import read_metrics
from bnce.training.alternatives import CHOICE_FILE, SCORING_FILE, TRIALS, read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "alternatives"
MAX_LOG = 100.0  # of a ratio that is shown
NEAR = 0.02  # in both directions of a plot, as a difference of logarithms: names would lie on each other
BASELINE = next(alternative.name for alternative in ALTERNATIVES if LOSSES.find(alternative.loss).is_baseline)


@dataclass(frozen=True)
class Line:
    """One alternative with one model: means over seeds, and deviations where there are several."""

    model: str
    alternative: str
    shown: str
    ppl_f: float | None
    ppl_f_deviation: float | None
    ppl_n: float | None  # None where dividing by the constant gives no probabilities
    ppl_n_deviation: float | None
    ppl_n_fitted: float | None  # with the mean of ln Z over validation text as the constant
    log_z_mean_nats: float | None
    log_z_std_nats: float | None
    words_per_second: float | None
    speedup_over_softmax: float | None
    peak_memory_bytes: float | None
    cpu_scoring_words_per_second: float | None  # one thread
    gpu_scoring_words_per_second: float | None
    seeds: tuple[int, ...]
    chosen: Mapping[str, Any]
    trials: tuple[float | None, ...]  # validation PPLf, in the order they were made; None: not finite
    runs: tuple[str, ...]
    conditions: Mapping[str, Any]


def read_alternatives(out: Path) -> list[Line]:
    """Read what is there of a comparison, in the order of the table."""
    choices = read_json(out / CHOICE_FILE)
    lines = []
    for body in BODIES:
        found = [_read(out, body.name, alternative, choices) for alternative in ALTERNATIVES]
        of_model = [line for line in found if line is not None]
        softmax = next((line.words_per_second for line in of_model if line.alternative == BASELINE), None)
        for line in of_model:
            if softmax is not None and line.words_per_second is not None:
                line = dataclasses.replace(line, speedup_over_softmax=line.words_per_second / softmax)
            lines.append(line)
    return lines


def _read(out: Path, model: str, alternative: Alternative, choices: Mapping[str, Any]) -> Line | None:
    name = f"{model}-{alternative.name}"
    seeds = re.compile(rf"{re.escape(name)}-seed\d+")
    paths = sorted(path for path in out.glob(f"{name}-seed*") if has_figures(path) and seeds.fullmatch(path.name))
    if not paths:
        return None
    rows = [entry.row for entry in compare_runs(paths).entries]
    # A run whose scoring was timed had the machine to itself; others may have run beside each other.
    scoring = [read_json(path / SCORING_FILE) for path in paths]
    timed = [row for row, record in zip(rows, scoring, strict=True) if record]
    kind = LOSSES.find(alternative.loss)
    free = kind.penalises and choices.get(name, {}).get("loss.penalty", alternative.settings.get("loss.penalty")) == 0
    normalises = kind.self_normalises and not free
    ppl_f, ppl_n = ([getattr(row, key) for row in rows] for key in ("ppl_f", "ppl_n"))
    return Line(
        model=model,
        alternative=alternative.name,
        shown=alternative.shown,
        ppl_f=_mean(ppl_f),
        ppl_f_deviation=_deviation(ppl_f),
        ppl_n=_mean(ppl_n) if normalises else None,
        ppl_n_deviation=_deviation(ppl_n) if normalises else None,
        ppl_n_fitted=_mean(map(_fitted, paths)) if normalises else None,
        log_z_mean_nats=_mean(row.log_z_mean_nats for row in rows),
        log_z_std_nats=_mean(row.log_z_std_nats for row in rows),
        words_per_second=_mean(row.words_per_second for row in timed),
        speedup_over_softmax=None,
        peak_memory_bytes=_mean(row.peak_memory_bytes for row in rows),
        cpu_scoring_words_per_second=_mean(number(record, "cpu_words_per_second") for record in scoring),
        gpu_scoring_words_per_second=_mean(number(record, "cuda_words_per_second") for record in scoring),
        seeds=tuple(row.seed for row in rows if row.seed is not None),
        chosen=choices.get(name, {}),
        trials=tuple(read_metrics(path).lowest_ppl_f for path in _trials(out, name)),
        runs=tuple(path.name for path in paths),
        conditions={
            key: getattr(rows[0], key)
            for key in ("device", "torch", "bnce", "corpus", "vocab_size", "train_tokens", "epochs", "num_tokens")
        },
    )


def _fitted(path: Path) -> float | None:
    """Give PPLn on test where the constant is the mean of ln Z(context) on validation text."""
    known = [record for record in read_metrics(path).records if record.get("ppl_f") is not None]
    best = min(known, key=lambda record: record["ppl_f"], default={})
    test = read_json(path / "evaluation.json")
    constant, found, ppl_f = number(best, "log_z_mean"), number(test, "log_z_mean"), number(test, "ppl_f")
    if constant is None or found is None or ppl_f is None:
        return None
    return ppl_f * math.exp(min(constant - found, MAX_LOG))


def _trials(out: Path, name: str) -> list[Path]:
    found = (path for path in (out / TRIALS).glob(f"{name}-*") if path.name.removeprefix(f"{name}-").isdigit())
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def write_alternatives(out: Path) -> list[Path]:
    """Write the tables, the figures as JSON, and a plot per model; give the files."""
    lines = read_alternatives(out)
    written = {
        out / f"{NAME}.md": markdown(lines),
        out / f"{NAME}.json": files.to_json({"rows": [dataclasses.asdict(line) for line in lines]}, indent=2) + "\n",
    }
    for path, text in written.items():
        files.write_text(path, text)
    plots = {model: out / f"{NAME}-{model}.svg" for model in dict.fromkeys(line.model for line in lines)}
    for model, path in plots.items():
        with page_style():
            draw([line for line in lines if line.model == model]).savefig(path, metadata={"Date": None})
    return [*written, *plots.values()]


def markdown(lines: Sequence[Line]) -> str:
    """Write a table per model, what was tried, and the conditions."""
    parts = ["# Alternatives to the softmax", ""]
    for model in dict.fromkeys(line.model for line in lines):
        of_model = [line for line in lines if line.model == model]
        parts += [
            f"## {BODIES.find(model).shown}",
            "",
            "| loss | PPLf | PPLn | PPLn, Z fitted | log Z | training words/s | × softmax | peak memory "
            "| scoring words/s, one CPU thread | scoring words/s, GPU | seeds |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            *(_cells(line) for line in of_model),
            "",
            "| loss | chosen settings that differ from the recipe | validation PPLf of the trials |",
            "|---|---|---|",
            *(_search_cells(line) for line in of_model),
            "",
        ]
    return "\n".join([*parts, *_notes(lines), ""])


def _cells(line: Line) -> str:
    cells = (
        line.shown,
        _with_deviation(line.ppl_f, line.ppl_f_deviation),
        "–" if line.ppl_n is None else _with_deviation(line.ppl_n, line.ppl_n_deviation),
        "–" if line.ppl_n_fitted is None else numbers.perplexity(line.ppl_n_fitted),
        numbers.spread(line.log_z_mean_nats, line.log_z_std_nats),
        numbers.speed(line.words_per_second),
        numbers.ratio(line.speedup_over_softmax),
        numbers.memory(line.peak_memory_bytes),
        numbers.speed(line.cpu_scoring_words_per_second),
        numbers.speed(line.gpu_scoring_words_per_second),
        str(len(line.seeds)),
    )
    return f"| {' | '.join(cells)} |"


def _search_cells(line: Line) -> str:
    chosen = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in line.chosen.items()
    )
    tried = ", ".join("not finite" if trial is None else numbers.perplexity(trial) for trial in line.trials)
    return f"| {line.shown} | {chosen or 'as it is'} | {tried or '–'} |"


def _notes(lines: Sequence[Line]) -> list[str]:
    shown = [
        f"{found['device']}, torch {found['torch']}, bnce {found['bnce']}; corpus {found['corpus']}, V = "
        f"{found['vocab_size']:,}, {found['train_tokens']:,} training tokens, {found['num_tokens']:,} test tokens."
        for found in (line.conditions for line in lines)
    ]
    told = (
        'PPLf uses the sum over the vocabulary, PPLn the constant Z. "PPLn, Z fitted" uses the constant that fits '
        "validation text. PPLn is left out if the loss does not train Z(context) to be a constant. ± is the standard "
        "deviation over seeds; that of log Z is over test contexts. Speeds are those of the first seed's run, which "
        "ran alone. Every loss had five trials: both learning rates of the recipe, half of them, twice them, and two "
        "other values of one setting that only this loss has, or of the body's learning rate. Only validation text was "
        "used to choose. The scoring columns measure the probabilities of given words: a loss with a constant Z uses "
        "it; adaptive, class and hierarchical softmax compute only what a word needs; the others sum over the "
        "vocabulary."
    )
    if any(line.alternative == "negative-sampling" for line in lines):
        told += " The scores of negative sampling are not probabilities: its PPLf is that of a softmax over them."
    return [*dict.fromkeys(shown), "", told]


def draw(lines: Sequence[Line]) -> Figure:
    """Draw PPLf by training speed: lower and further right is better."""
    figure, axes = new_axes()
    named: list[tuple[float, float]] = []
    for line in lines:
        if line.ppl_f is None or line.words_per_second is None:
            continue
        settings = {"name": next(kind.loss for kind in ALTERNATIVES if kind.name == line.alternative)}
        colour = name_loss({**settings, "num_noise": line.chosen.get("loss.num_noise", 0)}).colour.light
        axes.plot(line.words_per_second, line.ppl_f, "o", color=colour)
        at = (line.words_per_second, line.ppl_f)
        # Below the point where another's name stands above it.
        crowded = any(max(abs(math.log(a / b)) for a, b in zip(at, other, strict=True)) < NEAR for other in named)
        named.append(at)
        beside = (4, -10) if crowded else (4, 3)
        axes.annotate(line.shown, at, beside, textcoords="offset points", fontsize=8, color=colour)
    axes.margins(x=0.15, y=0.1)
    axes.set_xlabel("training words per second (log scale)")
    axes.set_ylabel("test PPLf (log scale)")
    make_logarithmic(axes, "x")
    make_logarithmic(axes, "y")
    return figure


def _with_deviation(mean: float | None, deviation: float | None) -> str:
    return numbers.perplexity(mean) if mean is None or deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _deviation(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 else None
