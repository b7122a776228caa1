"""Options and arguments with values that nobody meant: every one of every command, and every setting."""

from __future__ import annotations

import dataclasses
import math
import os
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, get_args, get_type_hints

import typer

from .bed import SETTINGS, Bed
from .damage import copy
from .files import find_litter
from .process import bnce, may_take_long
from .verdict import Verdict, judge, result

NUMBERS = [
    "0", "1", "2", "-1", "0.5", "1.5", "-0.0", "1e-400", "1e400", "1e30", "nan", "inf", "-inf", "NaN", "1_0", "0x10",
    "٣", "+1", "1e3", str(2**31), str(2**32 - 1), str(2**63 - 1), str(2**63), str(2**64), "9" * 30, "-" + "9" * 30,
    "9" * 5000,
]  # fmt: skip
TEXTS = [
    "", " ", "-", "--", "x", "x" * 300, "x" * 5000, "é", "日本語", "\udcff", "a\tb", "a b", "%s%n", "'", '"', "{}",
    "[1]", "true", "None", "all", "a,b", ",", "=", "a=b", "$HOME", "~", "*", "[a", "\u202e", "https:", "emoji😀",
]  # fmt: skip
PATHS = [
    ".", "..", "missing", "missing/deep/path", "a/" * 2500 + "a", "../" * 40 + "nowhere", "empty", "empty.toml",
    "text.txt", "text.txt/below", "run", "corpus", "corpus/train.npy", "corpus/corpus.json", "run/config.toml",
    "run/model.safetensors", "small.arpa", "mixture.toml", "recipe.toml", "nbest.tsv", "text.gz", "records.parquet",
    "loop", "dangling", "/proc/nothing", "directory", "weird\u00a0name.txt", "out.tsv", "out.jsonl", "out.toml",
]  # fmt: skip
NEEDS = [
    "corpus", "run", "other", "stopped", "text.txt", "train.txt", "small.arpa", "mixture.toml", "recipe.toml",
    "nbest.tsv", "refs.txt", "add.tsv", "weights.json", "text.gz", "records.parquet",
    "records.jsonl",
]  # fmt: skip

# A command that works, by the names of its parameters; cases change one or two of them.
BASES: dict[str, dict[str, Any]] = {
    "fetch": {"name": "ltcb", "source": "text.txt", "cache": "cache"},
    "prepare": {"sources": ["train.txt"], "valid": "text.txt", "fraction": "0", "out": "out", "workers": "1"},
    "train": {"recipe": "wiki", "model": "rnn", "loss": "bnce", "corpus": "corpus", "out": "out",
              "settings": SETTINGS[1::2]},
    "evaluate": {"run": "run", "corpus": "corpus"},
    "compare": {"runs": ["run", "other"]},
    "experiment": {"table": "ltcb", "corpus": "corpus", "out": "out", "rows": "rnn-bnce",
                   "settings": SETTINGS[1::2]},
    "info": {"subject": "ltcb"},
    "score": {"run": "run", "text": "text.txt"},
    "surprisal": {"run": "run", "table": "text.txt", "out": "words.tsv"},
    "filter": {"run": "small.arpa", "sources": ["records.jsonl"], "out": "out"},
    "calibrate": {"run": "run", "text": ["text.txt"], "out": "out"},
    "rescore": {"run": "run", "nbest": "nbest.tsv"},
    "ngram": {"sources": ["text.txt"], "out": "made.arpa"},
    "interpolate": {"paths": ["run", "small.arpa"], "valid": "text.txt"},
    "generate": {"run": "run", "num_texts": "2", "max_words": "5"},
    "vocab": {"run": "run", "out": "out", "add": "add.tsv"},
    "export": {"run": "run", "to": "safetensors", "out": "out"},
    "serve": {"run": "run", "port": "0"},
}  # fmt: skip
# Training and reports take a second or more.
WEIGHTS = {"experiment": 0.3, "export": 0.7, "train": 1.5}
# Asking for much of these is asking for long work; nothing else is.
LONG = {"settings", "num_texts", "max_words", "vocab_size"}
# Perplexities of a model that has 30 words and learned a little: whatever the settings, they cannot leave this range.
MIN_PPL = 1.5


def run(bed: Bed, chance: Random) -> Verdict:
    """Change one or two options of a command that works."""
    name = choose_command(chance)
    parameters = _parameters(name)
    values: dict[str, Any] = dict(BASES.get(name, {}))
    changed = chance.sample(sorted(parameters), 2 if chance.random() < 0.3 and len(parameters) > 1 else 1)
    for key in changed:
        others = [one for other, value in values.items() if other != key for one in _each(value)]
        values[key] = _value(bed, parameters[key], values.get(key), others, chance)
    arguments = [name, "--json", *_arguments(parameters, values)]
    _set_up(bed)
    before = {path.name for path in Path().iterdir()}
    read = _contents(name, values)
    may_stop = bool(LONG & set(changed)) and not any(_is_endless(values[key]) for key in changed)
    if may_stop:
        may_take_long()
    if name == "serve":
        _serve_nothing()
    outcome = bnce(*arguments, stdin=b"ba be da\n")
    shown = " ".join(f"{argument[:60]!r}" for argument in arguments)
    # What 'info --check' finds, and an experiment's rows that failed, have a status of their own.
    verdict = judge(outcome, shown, may_stop=may_stop, finds=name in ("info", "experiment"))
    if verdict.word == "done" and name in ("train", "evaluate") and (absurd := _find_absurd(result(outcome))):
        return Verdict("silent", shown, absurd)
    if bed.devices and not all((bed.devices / device).is_char_device() for device in ("null", "full")):
        return Verdict("litter", shown, "a device was replaced by a file")
    if lost := [path for path, content in read.items() if not path.is_file() or path.read_bytes() != content]:
        return Verdict("lost", shown, f"{lost[0]}, which the command reads, was replaced")
    return verdict if verdict.failed else find_litter(verdict, before)


def _contents(name: str, values: dict[str, Any]) -> dict[Path, bytes]:
    """Read the files that a command reads, which must not change."""
    given = [values[key] for key in BASES.get(name, {}) if key != "out"]
    texts = chain.from_iterable(map(_each, given))
    return {path: path.read_bytes() for path in map(Path, texts) if os.path.isfile(path)}


def choose_command(chance: Random) -> str:
    """Choose the command of a case; the first thing that chance decides."""
    names = command_names()
    return chance.choices(names, [WEIGHTS.get(name, 1.0) for name in names])[0]


def command_names() -> list[str]:
    """List the commands; one without a base of its own begins with nothing."""
    from bnce.cli import app

    return [one.callback.__name__ for one in app.registered_commands if one.callback is not None]


def check_base(bed: Bed, name: str) -> None:
    """Refuse a base that does not work: whatever is changed of it would be refused for another reason."""
    _set_up(bed)
    if name == "serve":
        _serve_nothing()
    outcome = bnce(name, "--json", *_arguments(_parameters(name), BASES[name]))
    if outcome.status:
        raise AssertionError(f"bnce {name}: status {outcome.status}: {outcome.stderr}")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An option or an argument of a command."""

    option: str | None  # None for an argument
    kind: type
    metavar: str


def _parameters(command: str) -> dict[str, Parameter]:
    """Read what a command takes from its signature."""
    from bnce.cli import app

    function = next(one.callback for one in app.registered_commands if one.callback.__name__ == command)
    assert function is not None
    found = {}
    for name, hint in get_type_hints(function, include_extras=True).items():
        if name in ("return", "as_json", "json"):
            continue
        kind, info = get_args(hint)
        kinds = [one for one in (get_args(kind) or [kind]) if one is not type(None)]
        option = None
        if isinstance(info, typer.models.OptionInfo):
            # Typer keeps the first name where a default would be.
            declared = [str(one) for one in (info.default, *(info.param_decls or ())) if str(one).startswith("--")]
            option = (declared or [f"--{name.replace('_', '-')}"])[0].partition("/")[0]
        found[name] = Parameter(option, kinds[0], str(info.metavar or ""))
    return found


def _set_up(bed: Bed) -> None:
    for name in NEEDS:
        copy(bed.path / name)
    for name in ("empty", "empty.toml"):
        Path(name).touch()
    Path("directory").mkdir()
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nowhere")


def _value(bed: Bed, parameter: Parameter, before: Any, others: list[str], chance: Random) -> Any:
    if parameter.option == "--set":
        return [*(before or []), _setting(chance)]
    if parameter.kind is bool:
        return True
    paths = PATHS + ([str(bed.devices / name) for name in ("null", "full")] * 3 if bed.devices else [])
    known = parameter.metavar.split("|") if "|" in parameter.metavar else []
    if parameter.kind in (int, float):
        tables = [NUMBERS, NUMBERS, NUMBERS, TEXTS]
    else:
        tables = [TEXTS, paths, paths, NUMBERS, *([known] * 2 if known else []), *([others] if others else [])]
    chosen = chance.choice(chance.choice(tables))
    if isinstance(before, list):
        return chance.choice([[chosen], [*before, chosen], [chosen, *before]])
    return chosen


def _each(value: Any) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value])]


def _setting(chance: Random) -> str:
    from bnce.settings import SECTIONS

    section = chance.choice(list(SECTIONS))
    key = chance.choice([*SECTIONS[section].__struct_fields__, "num_noise", "bottleneck_size", "order"])
    if chance.random() < 0.05:
        return chance.choice(
            [f"{section}", f"{section}.=1", f".{key}=1", f"{section}.nothing=1", "=", "a.b.c=1", f"{key}=1"]
        )
    value = chance.choice(chance.choice([NUMBERS, NUMBERS, TEXTS, ["true", "[]", '""', "1979-05-27", "{a=1}"]]))
    return f"{section}.{key}={value}"


def _is_endless(value: Any) -> bool:
    """Tell whether a value asks for work without end, which must be refused."""
    text = (value[-1] if isinstance(value, list) else str(value)).rpartition("=")[2]
    try:
        return not math.isfinite(float(text))
    except ValueError:
        return False


def _arguments(parameters: dict[str, Parameter], values: dict[str, Any]) -> list[str]:
    options: list[str] = []
    positional: list[str] = []
    for key, value in values.items():
        option = parameters[key].option
        each = _each(value)
        if option is None:
            positional += each
        elif value is True:
            options.append(option)
        else:
            # As one word: a value that begins with a dash is still a value.
            options += [f"{option}={one}" for one in each]
    # After two dashes, an argument may begin with one.
    return [*options, *(["--"] if any(one.startswith("-") and one != "-" for one in positional) else []), *positional]


def _find_absurd(record: Any) -> str:
    """Find a perplexity that no model of the small corpus has."""
    if isinstance(record, dict):
        for key in ("ppl_n", "ppl_f"):
            value = record.get(key)
            if isinstance(value, float) and not value > MIN_PPL:
                return f"{key} is {value}"
        return next(filter(None, map(_find_absurd, record.values())), "")
    return ""


def _serve_nothing() -> None:
    """Let a server end as soon as it would begin to wait for requests."""
    import uvicorn

    uvicorn.Server.run = lambda self, sockets=None: None  # type: ignore[method-assign]
