"""The settings of a run: the records of its model, loss, optimiser and training, read from TOML and written back."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bnce.errors import UserError, argument, shown, unknown_name
from bnce.files import parse_toml
from bnce.registry import (
    KNOWN,
    ChunkBnce,
    Loss,
    ModelConfig,
    OptimiserConfig,
    Record,
    ReluLstm,
    SgdConfig,
    Size,
    about,
    find,
)

TIME_UNITS = {"s": 1, "min": 60, "h": 3600}
FORMAT = 3  # of what runs write
Tokens = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Setting = str | tuple[str, Any]  # "section.key=value", or key and value


class TrainingConfig(Record, frozen=True):
    """How much text a step sees, for how long, and how often the run is measured and saved."""

    section = "training"
    batch_size: Annotated[Size, about("B, parallel streams, each other's noise.")] = 400
    groups: Annotated[Size, about("Groups of B streams in a step, each its own noise; processes share them.")] = 1
    num_steps: Annotated[Size, about("T, time steps of truncated back-propagation.")] = 20
    epochs: Annotated[float, Meta(gt=0, le=2**31 - 1, description="Times the text is read; 0.5: its first half.")] = 20
    budget: Annotated[str, about("Train for this time, such as 10 min, in place of a number of epochs.")] = ""
    max_train_tokens: Annotated[Tokens, about("Train on the first N tokens; 0: all.")] = 0
    reset_rate: Annotated[float, Meta(ge=0, le=1, description="Share of sentence ends to start afresh after.")] = 0.0
    evaluations_per_epoch: Annotated[Size, about("Evaluations on validation per epoch.")] = 1
    max_valid_tokens: Annotated[Tokens, about("Validate on the first N tokens; 0: all.")] = 0
    max_test_tokens: Annotated[Tokens, about("Test on the first N tokens at the end of training; 0: all.")] = 50_000
    stop_after: Annotated[Tokens, about("End after N evaluations in a row that are not better; 0: never.")] = 0
    checkpoint_seconds: Annotated[float, Meta(gt=0, description="Seconds between states; inf: if stopped.")] = 600.0
    precision: Annotated[
        Literal["auto", "float32", "tf32", "bf16"], about("Of matrix products; auto: bf16 on a GPU, float32 on a CPU.")
    ] = "auto"
    deterministic: Annotated[bool, about("The same bits every time, also on a GPU, at some cost.")] = False
    seed: Annotated[Tokens, about("Seed of all random numbers.")] = 1

    def check(self) -> None:
        """Refuse a budget that is no time."""
        if self.epochs == int(self.epochs):
            msgspec.structs.force_setattr(self, "epochs", int(self.epochs))  # shown and written without a fraction
        if self.budget.strip() and not 0 < self.budget_seconds < math.inf:
            raise UserError(
                f"training.budget is '{self.budget}': give a number above 0 and one of the units "
                f"{', '.join(TIME_UNITS)}, such as 10 min."
            )

    @property
    def budget_seconds(self) -> float:
        """The budget in seconds; 0: none."""
        parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", self.budget.strip())
        return float(parts[1]) * TIME_UNITS.get(parts[2], 0) if parts else 0.0


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes."""

    recipe: str = ""
    corpus: str = ""
    init: str = ""  # the run that the weights come from; empty: they start by chance
    model: ModelConfig = field(default_factory=ReluLstm)
    loss: Loss = field(default_factory=ChunkBnce)
    optimiser: OptimiserConfig = field(default_factory=SgdConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.model.settled(self.training.num_steps))


DEFAULTS = RunConfig()
SECTIONS: dict[str, type[Record]] = {
    "model": ModelConfig,
    "loss": Loss,
    "optimiser": OptimiserConfig,
    "training": TrainingConfig,
}
_TEXTS = ("recipe", "corpus", "init")


def from_tables(tables: Mapping[str, Any], origin: str) -> RunConfig:
    """Build a `RunConfig` from parsed TOML; unknown keys and wrong values are refused by name."""
    known_keys(tables, (*SECTIONS, *_TEXTS), origin, "key")
    for key in _TEXTS:
        if not isinstance(tables.get(key, ""), str):
            raise UserError(f"{origin}: {key} is {shown(tables[key])}: it must be text.")
    records = {section: make_record(section, tables.get(section, {}), f"{origin}: [{section}]") for section in SECTIONS}
    return RunConfig(**{key: tables[key] for key in _TEXTS if key in tables}, **records)


def make_record(section: str, table: Any, origin: str) -> Any:
    """Make the record of a section; where there are several, its name says which."""
    must_be_table(table, origin)
    kind, values = SECTIONS[section], dict(table)
    if section in KNOWN:
        kind = find(kind, values.pop("name", getattr(DEFAULTS, section).name))
    known_keys(values, kind.__struct_fields__, origin, "setting")
    return kind(**values)


def to_tables(config: RunConfig) -> dict[str, Any]:
    """Give a config as tables that `from_tables` reads."""
    texts = {key: getattr(config, key) for key in _TEXTS if key != "init" or config.init}
    return {**texts, **{section: msgspec.to_builtins(getattr(config, section)) for section in SECTIONS}}


def to_toml(config: RunConfig) -> str:
    """Write a config as TOML that `read_config` reads back to an equal one."""
    import tomli_w  # the output layer alone is used without it

    return tomli_w.dumps({"format": FORMAT, **to_tables(config)})


def change_settings(config: RunConfig, settings: Sequence[Setting]) -> RunConfig:
    """Put settings on top of a config."""
    tables = to_tables(config)
    for setting in settings:
        apply_setting(tables, setting)
    return from_tables(tables, argument("settings"))


def read_config(path: str | Path) -> RunConfig:
    """Read the `config.toml` of a run directory."""
    return from_written(read_tables(Path(path)), str(path))


def from_written(tables: Mapping[str, Any], origin: str) -> RunConfig:
    """Build a `RunConfig` from what `to_toml` wrote; text that was cut short has not all of its parts."""
    check_format(tables, origin)
    config = from_tables({key: value for key, value in tables.items() if key != "format"}, origin)
    for key in ("recipe", "corpus", *SECTIONS):
        if key not in tables:
            raise UserError(
                f"'{origin}' is cut short or damaged: it has no '{key}'. Restore it, or train the run again."
            )
    return config


def check_format(tables: Mapping[str, Any], origin: str) -> None:
    """Refuse tables that another version has written."""
    if type(written_as := tables.get("format")) is not int or written_as != FORMAT:
        found = "no format" if written_as is None else f"format {shown(written_as)}"
        raise UserError(
            f"{origin} has {found}, but this version of bnce reads format {FORMAT}: use the version that wrote the "
            "run, or train it again."
        )


def read_tables(path: Path) -> dict[str, Any]:
    """Read a file of settings."""
    try:
        return parse_toml(path.read_bytes())
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"'{path}' is not valid TOML: {error}.") from error


def apply_setting(tables: dict[str, Any], setting: Setting) -> None:
    """Put one setting on top of tables of settings."""
    key, equals, value = setting.partition("=") if isinstance(setting, str) else (setting[0], "=", setting[1])
    section, dot, name = key.strip().partition(".")
    received = f"{argument('settings')} received '{setting if isinstance(setting, str) else key}'"
    if not equals or not dot:
        raise UserError(f"{received}: write it as section.key=value, such as training.epochs=3.")
    if section not in SECTIONS:
        raise unknown_name("section", section, SECTIONS)
    if name == "name" and section in ("model", "loss"):
        raise UserError(f"{received}: the {section} has its own argument, so use that one.")
    if isinstance(setting, str):
        try:
            value = parse_toml(f"value = {value.strip()}".encode())["value"]
        except ValueError:
            value = value.strip()  # a bare word is a string
    tables[section] = {**tables[section], name: value}


def must_be_table(table: Any, origin: str) -> None:
    """Refuse what is not a table of settings."""
    if not isinstance(table, Mapping):
        raise UserError(f"{origin} must be a table of settings, not {shown(table)}.")


def known_keys(table: Mapping[str, Any], allowed: Collection[str], origin: str, kind: str) -> None:
    """Refuse keys that nobody reads."""
    for key in table:
        if key not in allowed:
            raise unknown_name(f"{kind} in {origin}:", key, allowed)
