"""The table of alternatives to the softmax: its rows, and what runs say of them as Markdown, JSON and plots.

`alternatives.py` trains the runs and writes the table.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bnce

Setting = float | int | bool | str
Settings = Mapping[str, Setting]

TRIALS = "trials"  # their directory
SCORING_FILE = "scoring.json"  # of a run: how fast it scores
CHOICE_FILE = "choices.json"  # of all: what the trials chose
BODY_RATE = "optimiser.body_learning_rate"
MAX_LOG = 100.0  # of a ratio that is shown
NEAR = 0.02  # in both directions of a plot, as a difference of logarithms: names would lie on each other
NOTES = (
    'PPLf uses the sum over the vocabulary, PPLn the constant Z. "PPLn, Z fitted" uses the constant that fits '
    "validation text. PPLn is left out if the loss does not train Z(context) to be a constant. ± is the standard "
    "deviation over seeds; that of log Z is over test contexts. Speeds are those of the first seed's run, which ran "
    "alone. Every loss had five trials: both learning rates of the recipe, half of them, twice them, and two other "
    "values of one setting that only this loss has, or of the body's learning rate. Only validation text was used to "
    "choose. The scoring columns measure the probabilities of given words: a loss with a constant Z uses it; adaptive, "
    "class and hierarchical softmax compute only what a word needs; the others sum over the vocabulary. The scores of "
    "negative sampling are not probabilities: its PPLf is that of a softmax over them."
)


@dataclass(frozen=True)
class Alternative:
    """One row: a loss, how it is set, and one setting of its own that is searched beside the learning rates."""

    name: str  # of its runs
    loss: str
    shown: str
    settings: Settings = field(default_factory=dict)
    knob: str = BODY_RATE  # the setting
    values: tuple[float, float] = (0.5, 2.0)  # that are tried beside the one it has; of the body's rate, as factors


def _adaptive(num_noise: int) -> Alternative:
    return Alternative(f"bnce-{num_noise}", "bnce", f"adaptive B-NCE, K = {num_noise:,}", {"loss.num_noise": num_noise})


_UNIGRAM: Settings = {"loss.noise": "unigram", "loss.replacement": True}
_SELF_NORMALISED = "self-normalised-softmax"
# noise_power is BlackOut's α, as in its authors' program, and that of word2vec. We chose K.
_BLACKOUT: Settings = {"loss.num_noise": 500, "loss.noise_power": 0.4}
_WORD2VEC: Settings = {"loss.num_noise": 500, "loss.noise_power": 0.75}

# Every one has the same number of trials. Where the literature gives a value, that is the first one.
ALTERNATIVES = (
    Alternative("softmax", "softmax", "softmax"),
    Alternative(_SELF_NORMALISED, _SELF_NORMALISED, "self-normalised softmax", {}, "loss.penalty", (0.02, 0.5)),
    Alternative("adaptive-softmax", "adaptive-softmax", "adaptive softmax", {}, "loss.div_value", (2.0, 8.0)),
    Alternative("class-softmax", "class-softmax", "class-factored softmax"),
    Alternative("hierarchical-softmax", "hierarchical-softmax", "hierarchical softmax"),
    Alternative("sampled-softmax", "sampled-softmax", "sampled softmax, log-uniform"),
    Alternative("sampled-softmax-unigram", "sampled-softmax", "sampled softmax, unigram", _UNIGRAM),
    Alternative("nce", "nce", "NCE"),
    Alternative("nce-learned-z", "nce", "NCE, learned Z", {"loss.learn_log_z": True}),
    Alternative("snce", "snce", "S-NCE"),
    Alternative("blackout", "blackout", "BlackOut", _BLACKOUT, "loss.noise_power", (0.2, 0.6)),
    Alternative(
        "negative-sampling", "negative-sampling", "negative sampling", _WORD2VEC, "loss.noise_power", (0.5, 1.0)
    ),
    Alternative("bnce", "bnce", "B-NCE"),
    _adaptive(200),
    _adaptive(1000),
    _adaptive(4000),
    Alternative("chunk-bnce", "chunk-bnce", "chunk B-NCE"),
    Alternative("chunk-softmax-free", "chunk-softmax", "chunk softmax, no penalty", {"loss.penalty": 0.0}),
    Alternative("chunk-softmax", "chunk-softmax", "chunk softmax", {}, "loss.penalty", (0.02, 0.2)),
)


def read_rows(out: Path) -> list[dict[str, Any]]:
    """Read what is there of a comparison, in the order of the table: means over seeds, and deviations of several."""
    choices = read_json(out / CHOICE_FILE)
    found = [_read(out, model, row, choices) for model in bnce.MODELS for row in ALTERNATIVES]
    rows = [row for row in found if row is not None]
    for row in rows:
        softmax = next((one for one in rows if (one["model"], one["alternative"]) == (row["model"], "softmax")), row)
        speeds = row["words_per_second"], softmax["words_per_second"]
        row["speedup_over_softmax"] = (
            speeds[0] / speeds[1] if softmax["alternative"] == "softmax" and all(speeds) else None
        )
    return rows


def _read(out: Path, model: str, alternative: Alternative, choices: Mapping[str, Any]) -> dict[str, Any] | None:
    name = f"{model}-{alternative.name}"
    found = (path.parent for path in out.glob(f"{name}-seed*/evaluation.json"))
    paths = sorted(path for path in found if path.name.removeprefix(f"{name}-seed").isdigit())
    if not paths:
        return None
    tests, summaries, scoring = (
        [read_json(path / file) for path in paths] for file in ("evaluation.json", "summary.json", SCORING_FILE)
    )
    # A run whose scoring was timed had the machine to itself; others may have run beside each other.
    timed = [summary for summary, record in zip(summaries, scoring, strict=True) if record]
    chosen = choices.get(name, {})
    settings = {**alternative.settings, **chosen}
    of_loss = {key.removeprefix("loss."): value for key, value in settings.items() if key.startswith("loss.")}
    ppl_n, fitted = [test.get("ppl_n") for test in tests], map(_fitted, paths)
    if not bnce.LOSSES[alternative.loss](**of_loss).normalises:
        ppl_n, fitted = [], map(_fitted, [])  # dividing by the constant gives no probabilities
    ppl_f = [test["ppl_f"] for test in tests]
    return {
        "model": model,
        "alternative": alternative.name,
        "shown": alternative.shown,
        "ppl_f": mean(ppl_f),
        "ppl_f_deviation": deviation(ppl_f),
        "ppl_n": mean(ppl_n),
        "ppl_n_deviation": deviation(ppl_n),
        "ppl_n_fitted": mean(fitted),  # with the mean of ln Z over validation text as the constant
        "log_z_mean_nats": mean(test["log_z_mean"] for test in tests),
        "log_z_std_nats": mean(test["log_z_std"] for test in tests),
        "words_per_second": mean(summary["words_per_second"] for summary in timed),
        "peak_memory_bytes": mean(_peak_memory(path) for path in paths),
        "cpu_scoring_words_per_second": mean(record.get("cpu_words_per_second") for record in scoring),  # one thread
        "gpu_scoring_words_per_second": mean(record.get("cuda_words_per_second") for record in scoring),
        "seeds": [summary["seed"] for summary in summaries],
        "chosen": chosen,
        "trials": [_finite(lowest_perplexity(path)) for path in _trials(out, name)],  # in the order they were made
        "runs": [path.name for path in paths],
        "conditions": {key: summaries[0][key] for key in ("device", "torch", "bnce", "vocab_size", "tokens")},
    }


def _fitted(path: Path) -> float | None:
    """Give PPLn on test where the constant is the mean of ln Z(context) on validation text."""
    test, valid = read_json(path / "evaluation.json"), min(evaluations(path), key=lambda one: one["ppl_f"], default={})
    constant, found = valid.get("log_z_mean"), test.get("log_z_mean")
    if constant is None or found is None:
        return None
    return float(test["ppl_f"]) * math.exp(min(constant - found, MAX_LOG))


def _peak_memory(path: Path) -> float | None:
    return max((one["peak_memory_bytes"] or 0 for one in evaluations(path)), default=0) or None


def _trials(out: Path, name: str) -> list[Path]:
    found = (path for path in (out / TRIALS).glob(f"{name}-*") if path.name.removeprefix(f"{name}-").isdigit())
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def evaluations(path: Path) -> list[dict[str, Any]]:
    """Read the evaluations of a run on validation text."""
    file = path / "metrics.jsonl"
    records = map(json.loads, file.read_text(encoding="utf-8").splitlines() if file.is_file() else [])
    return [record for record in records if record.get("ppl_f") is not None]


def lowest_perplexity(path: Path) -> float:
    """Give the lowest validation PPLf of a run; infinite where it diverged or failed."""
    is_finished = read_json(path / "summary.json").get("status") == "finished"
    return min((one["ppl_f"] for one in evaluations(path) if is_finished), default=math.inf)


def write_report(out: Path) -> list[dict[str, Any]]:
    """Write the tables, the figures as JSON, and a plot per model; give the figures."""
    rows = read_rows(out)
    (out / "alternatives.md").write_text(markdown(rows), encoding="utf-8")
    write_json(out / "alternatives.json", {"rows": rows})
    for model in dict.fromkeys(row["model"] for row in rows):
        draw([row for row in rows if row["model"] == model], out / f"alternatives-{model}.svg")
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a table per model, what was tried, and the conditions."""
    parts = ["# Alternatives to the softmax", ""]
    for model in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == model]
        parts += [
            f"## {bnce.MODELS[model].title}",
            "",
            "| loss | PPLf | PPLn | PPLn, Z fitted | log Z | training words/s | × softmax | peak memory "
            "| scoring words/s, one CPU thread | scoring words/s, GPU | seeds |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            *(_cells(row) for row in of_model),
            "",
            "| loss | chosen settings that differ from the recipe | validation PPLf of the trials |",
            "|---|---|---|",
            *(_search_cells(row) for row in of_model),
            "",
        ]
    shown = [
        f"{found['device']}, torch {found['torch']}, bnce {found['bnce']}; V = {found['vocab_size']:,}, "
        f"{found['tokens']:,} training tokens."
        for found in (row["conditions"] for row in rows)
    ]
    return "\n".join([*parts, *dict.fromkeys(shown), "", NOTES, ""])


def _cells(row: Mapping[str, Any]) -> str:
    from bnce.report import numbers

    def perplexity(name: str) -> str:
        if row[name] is None:
            return "–"
        apart = row.get(f"{name}_deviation")
        return numbers.perplexity(row[name]) if apart is None else f"{row[name]:.2f} ± {apart:.2f}"

    cells = (
        row["shown"],
        *map(perplexity, ("ppl_f", "ppl_n", "ppl_n_fitted")),
        numbers.spread(row["log_z_mean_nats"], row["log_z_std_nats"]),
        numbers.speed(row["words_per_second"]),
        numbers.ratio(row["speedup_over_softmax"]),
        numbers.memory(row["peak_memory_bytes"]),
        numbers.speed(row["cpu_scoring_words_per_second"]),
        numbers.speed(row["gpu_scoring_words_per_second"]),
        str(len(row["seeds"])),
    )
    return f"| {' | '.join(cells)} |"


def _search_cells(row: Mapping[str, Any]) -> str:
    chosen = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in row["chosen"].items()
    )
    tried = ", ".join("not finite" if trial is None else f"{trial:.1f}" for trial in row["trials"])
    return f"| {row['shown']} | {chosen or 'as it is'} | {tried or '–'} |"


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw PPLf by training speed: lower and further right is better."""
    from bnce.report.drawing import make_logarithmic, new_axes, page_style

    with page_style():
        figure, axes = new_axes()
        named: list[tuple[float, float]] = []
        for row in rows:
            at = row["words_per_second"], row["ppl_f"]
            if None in at:
                continue
            (point,) = axes.plot(*at, "o")
            # Below the point where another's name stands above it.
            crowded = any(max(abs(math.log(a / b)) for a, b in zip(at, other, strict=True)) < NEAR for other in named)
            named.append(at)
            beside, colour = (4, -10) if crowded else (4, 3), point.get_color()
            axes.annotate(row["shown"], at, beside, textcoords="offset points", fontsize=8, color=colour)
        axes.margins(x=0.15, y=0.1)
        axes.set_xlabel("training words per second (log scale)")
        axes.set_ylabel("test PPLf (log scale)")
        make_logarithmic(axes, "x")
        make_logarithmic(axes, "y")
        figure.savefig(path, metadata={"Date": None})


def mean(values: Iterable[float | None]) -> float | None:
    """Average what is known."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def deviation(values: Iterable[float | None]) -> float | None:
    """Give the standard deviation of what is known, from two values on."""
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file, which has no fields where there is none."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
