"""Settings: one small frozen dataclass per component, read from TOML and written back as TOML.

A `RunConfig` is what a run directory keeps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bnce.errors import UserError, argument, shown, unknown_name
from bnce.files import parse_toml
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES, Loss
from bnce.kinds.optimisers import OPTIMISERS

NOISE_NAMES = ("unigram", "uniform", "log-uniform")
SCHEDULE_NAMES = ("halve", "linear", "cosine")
PRECISION_NAMES = ("auto", "float32", "tf32", "bf16")
MAX_RATE = 1e38  # what float32 can hold
MIN_EPS = 1e-20  # squares of gradients below this are 0 in float32, and a step divided by less than it has no bound
MAX_SEED = 2**63 - 1
MAX_SIZE = 2**31 - 1  # of what is counted in settings, but for tokens
MAX_LOG_Z = 100.0  # far beyond ln V; a score in float32 must still tell words apart when ln Z is added to it
MAX_EMBEDDING_RANGE = 100.0  # far beyond 0.1, what a range usually is; a score must stay within float32
MAX_NOISE_POWER = 10.0  # beyond it, the probability of a rare word would be 0, or that of a frequent one
GRADIENT_NAMES = ("streams", "tokens")
HEAD_SIZE = 64  # units of a Transformer's head, about
DEFAULT_CONTEXT = 128  # where no chunk says how many words there are
TIME_UNITS = {"s": 1, "min": 60, "h": 3600}
FORMAT = 2  # of what runs write
# Settings that every run of 0.2 has written and that are no settings any more.
GONE = {"loss": ("remove_hits", "num_classes", "softmax"), "training": ("tables", "wire", "row_capacity")}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The body of the network: from words to the last hidden layer."""

    name: str = "relu-lstm"
    embedding_size: int = 200
    hidden_size: int = 600
    bottleneck_size: int = 400  # the ReLu layer before the output, in models that have one
    order: int = 5  # of n-gram models: they see order - 1 words
    num_layers: int = 0  # of recurrent models and Transformers; 0: one recurrent layer, six of a Transformer
    num_heads: int = 0  # of Transformers, parts of a layer that attend each for itself; 0: one for about 64 units
    context: int = 0  # of Transformers, words that a layer attends to; 0: as many as a chunk has
    dropout: float = 0.0
    embedding_range: float = 0.0  # an embedding's numbers start between minus this and this; 0: what suits the model

    def __post_init__(self) -> None:
        kind = BODIES.find(self.name)
        for key in ("embedding_size", "hidden_size", "bottleneck_size"):
            _at_least(f"model.{key}", getattr(self, key), 1)
        _at_least("model.order", self.order, 2)
        for key in ("num_layers", "num_heads", "context"):
            _at_least(f"model.{key}", getattr(self, key), 0)
        if "num_heads" in kind.sizes and self.num_heads and self.hidden_size % self.num_heads:
            raise UserError(
                f"model.hidden_size is {self.hidden_size}, which {self.num_heads} heads cannot share evenly: make it a "
                f"multiple of {self.num_heads}, or change model.num_heads."
            )
        _must(0 <= self.dropout < 1, "model.dropout", self.dropout, "it must be at least 0 and below 1")
        _within("model.embedding_range", self.embedding_range, 0, MAX_EMBEDDING_RANGE)
        if self.num_layers > 1 and "num_layers" not in kind.sizes:
            raise UserError(
                f"model.num_layers is {self.num_layers}, but {kind.shown} has no number of layers to choose: leave it "
                "out, or use another model."
            )

    def settled(self, num_steps: int = DEFAULT_CONTEXT) -> ModelConfig:
        """Put the numbers that 0 stands for in their places; a chunk has `num_steps` words."""
        kind = BODIES.find(self.name)
        num_layers, num_heads, context = self.num_layers, self.num_heads, self.context
        if "num_layers" in kind.sizes:
            num_layers = num_layers or kind.num_layers
        if "num_heads" in kind.sizes:
            # About 64 units each, as many as can share a layer evenly.
            most = max(1, self.hidden_size // HEAD_SIZE)
            fitting = (number for number in range(most, 0, -1) if self.hidden_size % number == 0)
            num_heads = num_heads or next(fitting)
        if kind.attends:
            context = context or num_steps
        return dataclasses.replace(self, num_layers=num_layers, num_heads=num_heads, context=context)


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The output layer's loss and its noise."""

    name: str = "bnce"
    num_noise: int = 0  # K: drawn noise words
    log_z: float = 9.0  # ln Z, the constant the model learns to be normalised by
    learn_log_z: bool = False
    noise: str = "unigram"
    noise_power: float = 1.0  # flattens the unigram when below 1
    replacement: bool = True  # sampled-softmax only: whether a word may be drawn twice; false: K different words
    penalty: float = 0.1  # chunk-softmax, self-normalised-softmax: λ, on how far ln Z(context) is from ln Z
    cutoffs: tuple[int, ...] = ()  # adaptive-softmax only: the frequency ranks at which its tails begin; (): by V
    div_value: float = 4.0  # adaptive-softmax only: each tail's hidden layer is so many times smaller than the last

    def __post_init__(self) -> None:
        kind = LOSSES.find(self.name)
        _among("noise", self.noise, NOISE_NAMES)
        _at_least("loss.num_noise", self.num_noise, 0)
        _within("loss.log_z", self.log_z, -MAX_LOG_Z, MAX_LOG_Z)
        _within("loss.penalty", self.penalty, 0, MAX_RATE)
        _within("loss.noise_power", self.noise_power, -MAX_NOISE_POWER, MAX_NOISE_POWER)
        self._check_own(kind)
        if kind.draws == "must":
            _at_least(f"loss.num_noise of {self.name}", self.num_noise, 1)

    def _check_own(self, kind: Loss) -> None:
        """Check the settings that not all losses have, and refuse those of others."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for other in LOSSES:
            for name in other.settings:
                if name not in kind.settings and getattr(self, name) != defaults[name]:
                    value = shown(as_list(getattr(self, name)))
                    raise UserError(
                        f"loss.{name} is {value}, but {self.name} has no use for it: leave it out, or use "
                        f"{argument('loss', other.name)}."
                    )
        is_rising = all(before < after for before, after in itertools.pairwise((0, *self.cutoffs)))
        _must(is_rising, "loss.cutoffs", list(self.cutoffs), "give rising numbers from 1 on")
        _within("loss.div_value", self.div_value, 1, MAX_RATE)
        if kind.structure is None:
            return
        if self.learn_log_z:
            raise UserError(f"loss.learn_log_z is on, but {self.name} is exactly normalised: leave it out.")
        if self.noise != "unigram" or self.noise_power != 1:
            raise UserError(
                f"loss.noise is {self.noise} with loss.noise_power {self.noise_power:g}, but {self.name} has no noise "
                "and takes the frequencies of words as they are: leave both out."
            )


@dataclasses.dataclass(frozen=True)
class OptimiserConfig:
    """How gradients become steps."""

    name: str = "sgd"
    learning_rate: float = 0.4  # of everything, or of the tables where the body has its own
    body_learning_rate: float = 0.004  # of the body, in optimisers that have one for it
    clip_norm: float = 5.0  # over all parameters, duplicate rows merged first
    gradient: str = "streams"  # averaged over streams and summed over time (the paper), or averaged over tokens
    schedule: str = "halve"
    patience: int = 7  # halve: epochs without a better validation perplexity
    warmup_steps: int = 0  # linear and cosine: steps to the full rate
    initial_accumulator: float = 0.0  # rowwise only: what a row's mean squared gradients start from
    beta2: float = 0.99  # rowwise-adam only: the share of a row's mean squared gradients that one step leaves
    eps: float = 1e-6  # rowwise-adam only: added to a row's root mean squared gradient before it divides

    def __post_init__(self) -> None:
        OPTIMISERS.find(self.name)
        _among("optimiser.gradient", self.gradient, GRADIENT_NAMES)
        _among("optimiser.schedule", self.schedule, SCHEDULE_NAMES)
        for key in ("learning_rate", "body_learning_rate", "clip_norm"):
            rate = getattr(self, key)
            _must(0 < rate <= MAX_RATE, f"optimiser.{key}", rate, f"it must be above 0 and at most {MAX_RATE:g}")
        _within("optimiser.initial_accumulator", self.initial_accumulator, 0, MAX_RATE)
        _must(0 <= self.beta2 < 1, "optimiser.beta2", self.beta2, "it must be at least 0 and below 1")
        _within("optimiser.eps", self.eps, MIN_EPS, MAX_RATE)
        _at_least("optimiser.patience", self.patience, 1)
        _at_least("optimiser.warmup_steps", self.warmup_steps, 0)


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How much text a step sees, for how long, and how often the run is measured and saved."""

    batch_size: int = 400  # B, parallel streams, each other's noise
    groups: int = 1  # G groups of B streams in a step, each its own noise; processes share them
    num_steps: int = 20  # T, time steps of truncated back-propagation
    epochs: float = 20.0  # times the text is read; 0.5: its first half
    budget: str = ""  # train for so long, such as 10 min, in place of a number of epochs; empty: no limit
    max_train_tokens: int = 0  # 0: all of them
    reset_rate: float = 0.0  # share of sentence ends that a model starts afresh after, as it scores a sentence
    evaluations_per_epoch: int = 1
    max_valid_tokens: int = 0  # 0: all of them
    max_test_tokens: int = 50_000  # that training evaluates at its end; 0: all of them
    stop_after: int = 0  # end after N evaluations in a row without a better validation perplexity; 0: never
    checkpoint_seconds: float = 600.0  # inf: saved only when stopped
    precision: str = "auto"  # of matrix products: bf16 on a GPU and float32 on a CPU; masters are always float32
    deterministic: bool = False  # the same bits every time, also on a GPU, at some cost
    seed: int = 1

    def __post_init__(self) -> None:
        for key in ("batch_size", "groups", "num_steps", "evaluations_per_epoch"):
            _at_least(f"training.{key}", getattr(self, key), 1)
        bounds = f"it must be above 0 and at most {MAX_SIZE}"
        _must(0 < self.epochs <= MAX_SIZE, "training.epochs", f"{self.epochs:g}", bounds)
        if self.epochs == int(self.epochs):
            object.__setattr__(self, "epochs", int(self.epochs))  # shown and written as it was when it had to be whole
        object.__setattr__(self, "budget", self.budget.strip())
        _seconds(self.budget)
        for key in ("max_train_tokens", "max_valid_tokens", "max_test_tokens", "stop_after", "seed"):
            _at_least(f"training.{key}", getattr(self, key), 0, most=MAX_SEED)
        _among("training.precision", self.precision, PRECISION_NAMES)
        _within("training.reset_rate", self.reset_rate, 0, 1)
        _must(self.checkpoint_seconds > 0, "training.checkpoint_seconds", self.checkpoint_seconds, "it must be above 0")

    @property
    def budget_seconds(self) -> float:
        """The budget in seconds; 0: none."""
        return _seconds(self.budget)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes."""

    recipe: str = ""
    corpus: str = ""
    init: str = ""  # the run that the weights come from; empty: they start by chance
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    optimiser: OptimiserConfig = dataclasses.field(default_factory=OptimiserConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.model.settled(self.training.num_steps))


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "loss": LossConfig,
    "optimiser": OptimiserConfig,
    "training": TrainingConfig,
}
_TEXTS = ("recipe", "corpus", "init")

Section = TypeVar("Section")
_TYPES: dict[Any, str] = {tuple: "list, of whole numbers"}


def from_tables(tables: Mapping[str, Any], origin: str) -> RunConfig:
    """Build a `RunConfig` from parsed TOML; unknown keys and wrong types are refused by name."""
    known_keys(tables, (*SECTIONS, *_TEXTS), origin, "key")
    texts = {key: tables.get(key, "") for key in _TEXTS}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise UserError(f"{origin}: {key} is {shown(value)}: it must be of type str.")
    sections: dict[str, Any] = {
        key: _section(kind, tables.get(key, {}), f"{origin}: [{key}]") for key, kind in SECTIONS.items()
    }
    return RunConfig(**texts, **sections)


def change_settings(config: RunConfig, settings: Sequence[str]) -> RunConfig:
    """Put `key=value` settings on top of a config."""
    tables = dataclasses.asdict(config)
    for setting in settings:
        apply_setting(tables, setting)
    return from_tables(tables, argument("settings"))


def read_config(path: str | Path) -> RunConfig:
    """Read the `config.toml` of a run directory; one that was cut short has not all of its parts."""
    tables = parse_tables(read_bytes(Path(path)), str(path))
    config = from_written(tables, str(path))
    for key in ("recipe", "corpus", *SECTIONS):
        if key not in tables:
            raise UserError(f"'{path}' is cut short or damaged: it has no '{key}'. Restore it, or train the run again.")
    return config


def from_written(tables: Mapping[str, Any], origin: str) -> RunConfig:
    """Build a `RunConfig` from what `to_toml` wrote."""
    return from_tables(read_format(tables, origin), origin)


def read_format(tables: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Give the tables that a run has written, without settings that are gone; an unknown format is refused."""
    if type(written_as := tables.get("format")) is not int or written_as != FORMAT:
        told = "no format" if written_as is None else f"format {shown(written_as)}"
        raise UserError(
            f"{origin} has {told}, but this version of bnce reads format {FORMAT}: use the version that wrote the run, "
            "or train it again."
        )
    read = {key: value for key, value in tables.items() if key != "format"}
    for section, gone in GONE.items():
        if isinstance(table := read.get(section), Mapping):
            read[section] = {key: value for key, value in table.items() if key not in gone}
    return read


def to_toml(config: RunConfig) -> str:
    """Write a config as TOML that `read_config` reads back to an equal one."""
    texts = (f"{key} = {toml_value(getattr(config, key))}" for key in _TEXTS if key != "init" or config.init)
    lines = [f"format = {FORMAT}", *texts]
    for key in SECTIONS:
        lines += ["", f"[{key}]"]
        for name, value in dataclasses.asdict(getattr(config, key)).items():
            lines.append(f"{name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """Write the value of a setting as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = "".join(
            f"\\u{ord(c):04X}" if ord(c) < 32 or ord(c) == 127 else "\\" + c if c in '"\\' else c for c in value
        )
        return f'"{escaped}"'
    return repr(as_list(value))


def as_list(value: Any) -> Any:
    """Give a list of settings as people write it, with brackets; other values stay as they are."""
    return list(value) if isinstance(value, tuple) else value


def read_bytes(path: Path) -> bytes:
    """Read a file of settings."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror}.") from error


def parse_tables(data: bytes, origin: str) -> dict[str, Any]:
    """Parse TOML that stands at `origin`."""
    try:
        return parse_toml(data)
    except ValueError as error:
        raise UserError(f"'{origin}' is not valid TOML: {error}.") from error


def apply_setting(tables: dict[str, Any], setting: str) -> None:
    """Put one `section.key=value` on top of tables of settings."""
    key, equals, text = setting.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot:
        raise UserError(
            f"{argument('settings')} received '{setting}': write it as section.key=value, such as training.epochs=3."
        )
    if section not in SECTIONS:
        raise unknown_name("section", section, SECTIONS)
    if name == "name" and section in ("model", "loss"):
        raise UserError(
            f"{argument('settings')} received '{setting}': the {section} has its own argument, so use that one."
        )
    try:
        value = parse_toml(f"value = {text.strip()}".encode())["value"]
    except ValueError:
        value = text.strip()  # a bare word is a string
    tables[section] = {**tables[section], name: value}


def _section(kind: type[Section], table: Any, origin: str) -> Section:
    must_be_table(table, origin)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    known_keys(table, tuple(fields), origin, "setting")
    values = {}
    for name, value in table.items():
        wanted = type(fields[name].default)
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                value = float(value)
        if wanted is tuple and isinstance(value, (list, tuple)) and all(type(item) is int for item in value):
            value = tuple(value)
        if type(value) is not wanted:
            raise UserError(
                f"{origin} {name} is {shown(value)}: it must be of type {_TYPES.get(wanted, wanted.__name__)}."
            )
        values[name] = value
    return kind(**values)


def must_be_table(table: Any, origin: str) -> None:
    """Refuse what is not a table of settings."""
    if not isinstance(table, Mapping):
        raise UserError(f"{origin} must be a table of settings, not {shown(table)}.")


def known_keys(table: Mapping[str, Any], allowed: Sequence[str], origin: str, kind: str) -> None:
    """Refuse keys that nobody reads."""
    for key in table:
        if key not in allowed:
            raise unknown_name(f"{kind} in {origin}:", key, allowed)


def _seconds(text: str) -> float:
    """Read a time such as `10 min`; nothing is 0."""
    if not text:
        return 0.0
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text)
    seconds = float(parts[1]) * TIME_UNITS.get(parts[2], 0) if parts else 0.0
    if not 0 < seconds < math.inf:
        raise UserError(
            f"training.budget is '{text}': give a number above 0 and one of the units {', '.join(TIME_UNITS)}, such as "
            "10 min."
        )
    return seconds


def _among(kind: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise unknown_name(kind, value, allowed)


def _at_least(key: str, value: int, least: int, most: int = MAX_SIZE) -> None:
    _must(value >= least, key, value, f"it must be at least {least}")
    _must(value <= most, key, value, f"it must be at most {most}")


def _within(key: str, value: float, least: float, most: float) -> None:
    _must(least <= value <= most, key, value, f"it must be from {least:g} to {most:g}")


def _must(holds: bool, key: str, value: object, rule: str) -> None:
    if not holds:
        raise UserError(f"{key} is {value}: {rule}.")
