"""What fit.py says of surprisals and reading times, and the tables of it."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

NGRAM = "5-gram"
GPT3 = "gpt3_surprisal_bits"  # the name of the column in the table of words
CONSTANT = "-z"  # after the name of a run: surprisals with the constant Z
MEAN = "-mean"  # after the name of a model: the mean of the surprisals of its seeds
PARTS = ("stories 1 to 7", "all ten stories")
SHARES = (0.1, 0.3, 0.5)  # of the n-gram model in a mixture with the Transformers

_GAIN = re.compile(r"  (?P<name>.+): (?P<gain>\S+) millinats per word \[(?P<low>\S+), (?P<high>\S+)\]")
_PART = re.compile(r"(?P<part>\S.*), (?P<num>\d+) words")


class Gain(NamedTuple):
    """Millinats per word, and the 95% interval."""

    gain: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_signed(self.gain)} [{_signed(self.low)}, {_signed(self.high)}]"


class Fitted(NamedTuple):
    """One set of stories: how many words were fitted, and the gain of each column alone and over an earlier one."""

    num_words: int
    gains: dict[str, Gain]

    def over(self, name: str, other: str) -> Gain | None:
        """Give how much more one column gains than another."""
        if (found := self.gains.get(f"{name} − {other}")) is not None:
            return found
        turned = self.gains.get(f"{other} − {name}")
        return None if turned is None else Gain(-turned.gain, -turned.high, -turned.low)


def parse(said: str) -> dict[str, Fitted]:
    """Read what fit.py prints."""
    found: dict[str, Fitted] = {}
    gains: dict[str, Gain] = {}
    for line in said.splitlines():
        if (match := _GAIN.fullmatch(line)) is not None:
            gains[match["name"]] = Gain(float(match["gain"]), float(match["low"]), float(match["high"]))
        elif (match := _PART.fullmatch(line)) is not None:
            gains = {}
            found[match["part"]] = Fitted(int(match["num"]), gains)
        else:
            raise ValueError(f"fit.py printed {line!r}. Expected '  NAME: GAIN millinats per word [LOW, HIGH]'.")
    if tuple(found) != PARTS:
        raise ValueError(f"fit.py printed the parts {list(found)}. Expected {list(PARTS)}.")
    return found


def seeds_of(columns: Any, model: str, mode: str = "") -> list[str]:
    """List the columns of the seeds of a model."""
    return [name for name in columns if re.fullmatch(rf"{model}-\d+{mode}", name)]


def means_over_seeds(columns: dict[str, list[str]], models: list[str]) -> dict[str, list[str]]:
    """Make one more column of every model that has several seeds: the mean of their exact surprisals."""
    made = {}
    for model in models:
        names = seeds_of(columns, model)
        if len(names) > 1:
            made[f"{model}{MEAN}"] = _join(columns, names, statistics.fmean)
    return made


def other_ways(columns: dict[str, list[str]], models: list[str]) -> dict[str, list[str]]:
    """Make columns of other ways to use the same surprisals: means over models, and a mixture with the n-gram model."""
    made = {}
    runs = {model: seeds_of(columns, model) for model in models}
    for told, kinds in (("all models", models), ("relu-lstm and transformer", ["relu-lstm", "transformer"])):
        if all(runs.get(kind) for kind in kinds):
            made[told] = _join(columns, [name for kind in kinds for name in runs[kind]], statistics.fmean)
    seeds = runs.get("transformer", [])
    for share in SHARES if seeds and NGRAM in columns else ():

        def mix(bits: list[float], share: float = share) -> float:
            *of_runs, of_ngram = (2**-value for value in bits)
            return -math.log2((1 - share) * statistics.fmean(of_runs) + share * of_ngram)

        made[f"transformer with {share:g} of {NGRAM}"] = _join(columns, [*seeds, NGRAM], mix)
    return made


def _join(columns: dict[str, list[str]], names: list[str], how: Callable[[list[float]], float]) -> list[str]:
    """Make one column of several, empty where one of them is."""
    rows = zip(*(columns[name] for name in names), strict=True)
    return [f"{how(list(map(float, cells))):.4f}" if all(cells) else "" for cells in rows]


def make_report(
    directory: Path, fitted: dict[str, Fitted], columns: dict[str, list[str]], shown: dict[str, str], small: bool
) -> str:
    """Lay out all tables and the conditions."""
    trained = {path.stem: read_json(path) for path in sorted((directory / "trained").glob("*.json"))}
    lines = ["# Reading times of Natural Stories", ""]
    if small:
        lines += ["A small trial with tiny models. The figures mean nothing.", ""]
    lines += [
        "The gain says how much the surprisal (−log p) of a word and of the three words before it improves a "
        "prediction of reading times from",
        "position, length and frequency. It is in millinats of log-likelihood per word, cross-validated over stories. "
        "Brackets have 95%",
        "intervals, from a bootstrap over blocks of 100 words. A higher gain is better. PPLf is the perplexity per "
        "token of the books' test",
        "text with the full softmax, PPLn with the constant Z; lower is better.",
        "",
        *_summary(fitted, columns, trained, shown),
        "",
        '± is the standard deviation over seeds. "mean of the seeds" is the gain of one more column, the mean '
        "surprisal "
        "of the seeds.",
        f"The {NGRAM} starts every sentence without context, also for its PPLf. The runs use earlier sentences as "
        "context."
        if NGRAM in columns
        else "There is no n-gram model here: its stage was not run.",
        "",
        "This does not show that a model reads like people. It is one measure on one corpus of ten stories. The "
        "intervals are about the",
        "words of these stories, not about other stories or readers.",
        "",
        *_others(fitted, columns),
        "## Each seed",
        "",
        *_each(fitted, columns, trained, shown),
        "",
        "## Conditions",
        "",
        *_conditions(directory, fitted, columns, trained),
        "",
    ]
    return "\n".join(lines)


def read_json(path: Path) -> Any:
    """Read a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(values: list[float], signed: bool = False) -> str:
    if not values:
        return ""
    mean = statistics.fmean(values)
    told = _signed(mean) if signed else f"{mean:.1f}"
    return told if len(values) < 2 else f"{told} ± {statistics.stdev(values):.1f}"


def _over(fit: Fitted, names: list[str]) -> list[float]:
    return [found.gain for name in names if (found := fit.over(name, NGRAM)) is not None]


def _summary(
    fitted: dict[str, Fitted], columns: dict[str, list[str]], trained: dict[str, Any], shown: dict[str, str]
) -> list[str]:
    parts = [fitted[part] for part in PARTS]
    gains = [f"gain, {part}" for part in PARTS] + [f"minus {NGRAM}, {part}" for part in PARTS]
    lines = [
        _row("surprisal of", "seeds", "PPLf", "PPLn", *gains),
        f"|---|{'---:|' * 7}",
    ]

    def one(told: str, name: str, perplexity: str = "") -> str:
        over = [fit.over(name, NGRAM) for fit in parts]
        return _row(
            told, "", perplexity, "", *(str(fit.gains[name]) for fit in parts), *(str(gain or "") for gain in over)
        )

    lines.append(one("GPT-3 davinci, as published", GPT3))
    if NGRAM in columns:
        measured = (trained.get(NGRAM) or {}).get("ppl_f")
        lines.append(one(f"{NGRAM} of the same text", NGRAM, f"{measured:.1f}" if measured else ""))
    for model, told in shown.items():
        for mode, how in (("", "exact"), (CONSTANT, "constant Z")):
            names = seeds_of(columns, model, mode)
            if not names:
                continue
            runs = [trained[name.removesuffix(CONSTANT)] for name in names if name.removesuffix(CONSTANT) in trained]
            perplexities = [_spread([run[key] for run in runs if run.get(key)]) for key in ("ppl_f", "ppl_n")]
            cells = [_spread([fit.gains[name].gain for name in names], True) for fit in parts]
            over = [_spread(_over(fit, names), True) for fit in parts]
            lines.append(_row(f"{told}, {how}", str(len(names)), *perplexities, *cells, *over))
        if f"{model}{MEAN}" in columns:
            lines.append(one(f"{told}, mean of the seeds", f"{model}{MEAN}"))
    return lines


def _others(fitted: dict[str, Fitted], columns: dict[str, list[str]]) -> list[str]:
    names = [name for name in columns if " " in name]
    if not names:
        return []
    parts = [fitted[part] for part in PARTS]
    gains = [f"gain, {part}" for part in PARTS] + [f"minus {NGRAM}, {part}" for part in PARTS]
    return [
        "## Other ways to use the same surprisals",
        "",
        _row("surprisal of", *gains),
        "|---|---:|---:|---:|---:|",
        *(
            _row(name, *(str(fit.gains[name]) for fit in parts), *(str(fit.over(name, NGRAM) or "") for fit in parts))
            for name in names
        ),
        "",
        "Rows of several models are means of the surprisals of all their seeds. In a mixture the Transformers' "
        f"probabilities are mixed with those of the {NGRAM}.",
        "",
    ]


def _each(
    fitted: dict[str, Fitted], columns: dict[str, list[str]], trained: dict[str, Any], shown: dict[str, str]
) -> list[str]:
    parts = [fitted[part] for part in PARTS]
    gains = [f"gain, {part}" for part in PARTS] + [f"minus {NGRAM}, {part}" for part in PARTS]
    lines = [_row("run", "PPLf", "PPLn", *gains), "|---|---:|---:|---:|---:|---:|---:|"]
    for model, told in shown.items():
        for mode, how in (("", "exact"), (CONSTANT, "constant Z")):
            for name in seeds_of(columns, model, mode):
                run = name.removesuffix(CONSTANT)
                known = trained.get(run, {})
                perplexities = [f"{known[key]:.1f}" if known.get(key) else "" for key in ("ppl_f", "ppl_n")]
                over = [str(fit.over(name, NGRAM) or "") for fit in parts]
                cells = [str(fit.gains[name]) for fit in parts]
                lines.append(_row(f"{told}, seed {run.rsplit('-', 1)[1]}, {how}", *perplexities, *cells, *over))
    return lines


def _conditions(
    directory: Path, fitted: dict[str, Fitted], columns: dict[str, list[str]], trained: dict[str, Any]
) -> list[str]:
    num_fitted = " and ".join(f"{fitted[part].num_words:,} ({part})" for part in PARTS)
    empty = {name: sum(not cell for cell in cells) for name, cells in columns.items()}
    lines = [
        f"- Words fitted: {num_fitted}. They are the same for all columns: a word is left out if it, or one of the "
        "three words before it,",
        "  has no surprisal in one of them. Words without a surprisal: "
        + (", ".join(f"{name} {num:,}" for name, num in empty.items() if num) or "none")
        + ".",
        "- The surprisal is that of the word as it was shown, with its punctuation marks. Runs predict it from the "
        "words before it in its story and spell unknown",
        f"  words. The {NGRAM} predicts it from the four words before it in its sentence and has no surprisal for "
        "unknown words.",
    ]
    runs = [one for name, one in trained.items() if name != NGRAM]
    for key in ("device", "torch", "bnce", "commit"):
        if told := sorted({str(run[key]) for run in runs if run.get(key)}):
            lines.append(f"- {key}: {', '.join(told)}.")
        elif key == "commit":
            lines.append("- commit: not recorded.")
    if runs:
        seconds = [run["train_seconds"] for run in runs if run.get("train_seconds")]
        tokens = sorted({f"{run['tokens']:,}" for run in runs if run.get("tokens")})
        lines.append(
            f"- {len(runs)} runs, seeds {', '.join(sorted({str(run['seed']) for run in runs}))}; training tokens per "
            f"run: {', '.join(tokens)}"
            + (f"; training took {min(seconds):.0f} to {max(seconds):.0f} s per run." if seconds else ".")
        )
        read = sorted({f"{run['num_tokens']:,} tokens, {run['num_oov']:,} of them <unk>" for run in runs})
        lines.append(f"- Test text: {'; '.join(read)}.")
    if (directory / "dropped.json").exists():
        lines.append(
            "- Left out of the training text, because it shares nine words in a row with a story (books: the lines; "
            "wiki: the article):"
        )
        for name, one in read_json(directory / "dropped.json").items():
            lines.append(
                f"  {name}: {one['dropped_lines']:,} of {one['lines']:,} lines and {one['dropped_words']:,} of "
                f"{one['words']:,} words, in {one['documents_with_drops']:,} of {one['documents']:,} documents."
            )
    commands = [read_json(path) for path in (directory / "commands").glob("*.json")]
    if commands:
        commands.sort(key=lambda one: one["started"])
        lines += ["", "```sh", *(f"{one['command']}    # {one['seconds']} s" for one in commands), "```"]
    return lines
