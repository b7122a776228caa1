"""The settings of a run: the records of its model, loss, optimiser and training, read from TOML and written back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bnce.errors import UserError, argument, shown, unknown_name
from bnce.files import parse_toml
from bnce.registry import ChunkBnce, Loss, ModelConfig, OptimiserConfig, Record, ReluLstm, SgdConfig, Size, make

FORMAT = 3  # of what runs write
Table = dict[str, Any]
Tokens = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Setting = str | tuple[str, Any]  # "section.key=value", or key and value


class TrainingConfig(Record, frozen=True):
    """How much text a step sees, for how long, and how often the run is measured and saved."""

    section = "training"
    batch_size: Size = 400  # B, parallel streams, each other's noise
    groups: Size = 1  # groups of B streams in a step, each its own noise; processes share them
    num_steps: Size = 20  # T, time steps of truncated back-propagation
    epochs: Annotated[float, Meta(gt=0, le=2**31 - 1)] = 20.0  # times the text is read; 0.5: its first half
    budget_seconds: Annotated[float, Meta(ge=0, le=1e38)] = 0.0  # train for so long instead of epochs; 0: no limit
    max_train_tokens: Tokens = 0  # train on the first N tokens; 0: all
    reset_rate: Annotated[float, Meta(ge=0, le=1)] = 0.0  # share of sentence ends to start afresh after
    evaluations_per_epoch: Size = 1  # evaluations on validation per epoch
    max_valid_tokens: Tokens = 0  # validate on the first N tokens; 0: all
    max_test_tokens: Tokens = 50_000  # test on the first N tokens at the end of training; 0: all
    stop_after: Tokens = 0  # end after N evaluations in a row that are not better; 0: never
    checkpoint_seconds: Annotated[float, Meta(gt=0)] = 600.0  # seconds between states; inf: if stopped
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"  # of products; auto: bf16 on a GPU, float32 on a CPU
    deterministic: bool = False  # the same bits every time, also on a GPU, at some cost
    seed: Tokens = 1  # seed of all random numbers


class RunConfig(Record, frozen=True):
    """Everything that decides what a run computes."""

    recipe: str = ""
    corpus: str = ""
    init: str = ""  # the run that the weights come from; empty: they start by chance
    model: ModelConfig = ReluLstm()
    loss: Loss = ChunkBnce()
    optimiser: OptimiserConfig = SgdConfig()
    training: TrainingConfig = TrainingConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "model", self.model.settled(self.training.num_steps))


DEFAULTS = RunConfig()
_KINDS: tuple[type[Record], ...] = (ModelConfig, Loss, OptimiserConfig, TrainingConfig)
SECTIONS = {kind.section: kind for kind in _KINDS}


def from_tables(tables: Mapping[str, Any], origin: str) -> RunConfig:
    """Build a `RunConfig` from parsed TOML; unknown keys and wrong values are refused by name."""
    made = {key: make(kind, tables[key], f"{origin}: [{key}]") for key, kind in SECTIONS.items() if key in tables}
    return make(RunConfig, {**tables, **made}, origin)


def to_tables(config: RunConfig) -> Table:
    """Give a config as tables that `from_tables` reads."""
    tables: Table = msgspec.to_builtins(config)
    return tables


def to_toml(config: RunConfig) -> str:
    """Write a config as TOML that `read_config` reads back to an equal one."""
    import tomli_w  # the output layer alone is used without it

    return tomli_w.dumps({"format": FORMAT, **to_tables(config)})


def change_settings(config: RunConfig, settings: Sequence[Setting]) -> RunConfig:
    """Put settings on top of a config."""
    return from_tables(lay(to_tables(config), as_tables(settings)), argument("settings"))


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


def as_tables(settings: Sequence[Setting]) -> Table:
    """Read settings as tables; the last of several for one key holds."""
    tables: Table = {section: {} for section in SECTIONS}
    for setting in settings:
        key, equals, value = setting.partition("=") if isinstance(setting, str) else (setting[0], "=", setting[1])
        section, dot, name = key.strip().partition(".")
        received = f"{argument('settings')} received '{setting if isinstance(setting, str) else key}'"
        if not equals or not dot:
            raise UserError(f"{received}: write it as section.key=value, such as training.epochs=3.")
        if section not in SECTIONS:
            raise unknown_name("section", section, SECTIONS)
        if name == "name" and section in ("model", "loss"):
            raise UserError(f"{received}: the {section} has its own argument, so use that one.")
        tables[section][name] = _parse(value.strip()) if isinstance(setting, str) else value
    return tables


def _parse(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}".encode())["value"]
    except ValueError:
        return text  # a bare word is a string


def lay(*tables: Table) -> Table:
    """Lay tables over each other, key by key: what a later one says goes before what an earlier one does."""
    laid: Table = {}
    for table in tables:
        for key, value in table.items():
            nested = isinstance(value, dict) and isinstance(laid.get(key), dict)
            laid[key] = lay(laid[key], value) if nested else value
    return laid
