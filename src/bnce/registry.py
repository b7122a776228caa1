"""The losses, models and optimisers: one frozen record each. It says what it is called, what can be set, and its code.

Values are checked when a record is made, whether from TOML, from `--set` or in Python, and nowhere else.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Meta

from bnce.errors import UserError, shown, unknown_name

LOG_Z = 9.0  # the paper's
BASELINE = "softmax"  # the loss that speeds and qualities are compared with
HEAD_SIZE = 64  # units of a Transformer's head, about
DEFAULT_CONTEXT = 128  # words, where no chunk says how many there are

# Bounds are what 32-bit sizes and float32 hold.
Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Rate = Annotated[float, Meta(gt=0, le=1e38)]
Penalty = Annotated[float, Meta(ge=0, le=1e38)]
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table of settings",
}


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """Settings that belong together.

    The docstring of one that is registered reads "Title: what it is in a few words".
    """

    section: ClassVar[str] = ""  # of config.toml
    title: ClassVar[str] = ""  # as tables print it
    help: ClassVar[str] = ""
    code: ClassVar[str] = ""  # "package.module:name" of what computes it, imported when it is needed

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            converted = getattr(self, field.name)
            if not isinstance(converted, Record):  # which was checked when it was made
                converted = convert(converted, field.type, f"{self.section}.{field.name}".removeprefix("."))
            # The default itself where the value is equal to it, which the record's text then leaves out.
            msgspec.structs.force_setattr(self, field.name, field.default if converted == field.default else converted)
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together."""

    @property
    def name(self) -> str:
        """The name in settings and on the command line."""
        return str(self.__struct_config__.tag)


def convert(value: object, wanted: Any, key: str) -> Any:
    """Take the value of a key as the type that it must have; one that does not fit is refused in a sentence."""
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        if isinstance(value, str) and get_origin(wanted) is Literal:
            raise unknown_name(key, value, get_args(wanted)) from None
        found = re.match(r"Expected ([^,]+)(?:, got `\w+`)?(.*)", str(error))
        rule = f"{found[1]}{found[2]}" if found else "a number that float32 holds"
        rule = re.sub(r"`(\w+)`", lambda name: _TYPES[name[1]], rule)
        raise UserError(f"{key} is {shown(value)}: it must be {rule}.") from None


class Loss(Record, tag_field="name", frozen=True):
    """The loss of an output layer: `code` computes it for every position from an `OutputBatch` and this record.

    The layer and the trainer use these fields of a record that has them: `log_z`, `learn_log_z`, `num_noise`, `noise`,
    `noise_power`, `penalty`, `replacement`.
    """

    section = "loss"
    structure: ClassVar[str] = ""  # "package.module:Class" that finds the rows of a word: the layer is then exact
    batch_noise: ClassVar[Literal["none", "step", "streams"]] = "none"  # the targets of the batch that are noise
    scores_odds: ClassVar[bool] = False  # its scores are ln p − ln(K · p_n), no log-probabilities less a constant
    caveat: ClassVar[str] = ""  # what must be said beside its perplexity

    @property
    def normalises(self) -> bool:
        """Whether the constant Z may replace the sum over the vocabulary."""
        return True

    def check(self) -> None:
        """Refuse to train a constant that nothing holds the sum at."""
        if getattr(self, "learn_log_z", False) and not self.normalises:
            raise UserError(f"loss.learn_log_z is on, but {self.name} has no constant Z as it is set: leave it out.")


class ModelConfig(Record, tag_field="name", frozen=True):
    """The layers from embedded words to the last hidden layer."""

    section = "model"
    layers: ClassVar[str]  # as the paper's Tables 1 and 3 write them, with names of settings in braces
    resets: ClassVar[bool] = False  # whether its `forward` takes the places where texts begin anew
    attends: ClassVar[bool] = False  # to `context` words before a position, of which a chunk must have as many
    embedding_range: ClassVar[float] = 0.1  # an embedding's numbers start between minus this and this
    embedding_size: Size = 200  # numbers per word
    hidden_size: Size = 600  # units per layer
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # probability of dropping a number

    def settled(self, num_steps: int = DEFAULT_CONTEXT) -> ModelConfig:
        """Put the numbers that 0 stands for in their places; a chunk has `num_steps` words."""
        return self


class OptimiserConfig(Record, tag_field="name", frozen=True):
    """How gradients become steps."""

    section = "optimiser"
    learning_rate: Rate = 0.4  # of everything, or of the tables where the body has its own
    clip_norm: Rate = 5.0  # largest norm of all gradients
    gradient: Literal["streams", "tokens"] = "streams"  # what it is averaged over
    schedule: Literal["halve", "linear", "cosine"] = "halve"  # how rates fall
    patience: Size = 7  # schedule halve: epochs without a better validation perplexity
    warmup_steps: Count = 0  # schedules linear and cosine: steps to the full rate

    @property
    def rates(self) -> list[str]:
        """The settings that are its learning rates."""
        return [name for name in self.__struct_fields__ if name.endswith("learning_rate")]


R = TypeVar("R", bound=Record)
LOSSES: dict[str, type[Loss]] = {}
MODELS: dict[str, type[ModelConfig]] = {}
OPTIMISERS: dict[str, type[OptimiserConfig]] = {}
load = pkgutil.resolve_name  # of the code of a record
KNOWN: dict[str, dict[str, Any]] = {"model": MODELS, "loss": LOSSES, "optimiser": OPTIMISERS}


def register(kind: type[R]) -> type[R]:
    """Decorate the record of a loss, model or optimiser, so that it is known by its tag."""
    name, known = str(kind.__struct_config__.tag), KNOWN[kind.section]
    # Names stand in lists with commas and become directories.
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or name == "all" or name in known:
        raise UserError(
            f"A {kind.section} cannot be called '{name}': give it a new tag, of lower-case letters, digits and hyphens "
            "between them, and not 'all'."
        )
    kind.title, _, kind.help = (kind.__doc__ or "").partition(": ")
    known[name] = kind
    return kind


def names_with_help(known: Mapping[str, type[Record]]) -> str:
    """List all names, each with its few words."""
    return ", ".join(f"{name} ({kind.help})" for name, kind in known.items())


def find(kind: type[R], name: object) -> type[R]:
    """Find a record by its name, such as `find(Loss, "bnce")`."""
    if not isinstance(name, str) or name not in KNOWN[kind.section]:
        raise unknown_name(kind.section, name, KNOWN[kind.section])
    return cast(type[R], KNOWN[kind.section][name])


def make(kind: type[R], table: object, origin: str) -> R:
    """Make the record that a table describes; where there are several, its name says which."""
    settings = convert(table, dict[str, Any], origin)
    if kind.section in KNOWN:
        kind = find(kind, settings.pop("name", None))
    check_keys(settings, kind.__struct_fields__, f"setting in {origin}:")
    return kind(**settings)


def check_keys(table: Iterable[str], allowed: Collection[str], what: str) -> None:
    """Refuse keys that nobody reads."""
    for key in table:
        if key not in allowed:
            raise unknown_name(what, key, allowed)


class ConstantLoss(Loss, frozen=True):
    """with a constant Z"""

    log_z: Annotated[float, Meta(ge=-100, le=100)] = LOG_Z  # which the model learns to be normalised by
    learn_log_z: bool = False  # whether ln Z is trained


class DrawnLoss(ConstantLoss, frozen=True):
    """with drawn noise words"""

    num_noise: Size = 100  # K, the number of drawn noise words
    noise: Literal["unigram", "uniform", "log-uniform"] = "unigram"  # what words are drawn from
    noise_power: Annotated[float, Meta(ge=-10, le=10)] = 1.0  # below 1 it flattens the unigram


@register
class Softmax(ConstantLoss, tag="softmax", frozen=True):
    """softmax: exact; slow for large vocabularies"""

    code = "bnce.losses.softmax:softmax"
    penalty: Penalty = 0.0  # λ, on how far ln Z(context) is from ln Z; 0: no PPLn

    @property
    def normalises(self) -> bool:
        """Whether a penalty keeps the sum near the constant."""
        return self.penalty > 0


@register
class SelfNormalisedSoftmax(Softmax, tag="self-normalised-softmax", frozen=True):
    """self-normalised softmax: softmax with a penalty that keeps its sum near the constant Z; as slow as softmax"""

    penalty: Penalty = 0.1


@register
class Nce(DrawnLoss, tag="nce", frozen=True):
    """NCE: separate noise words for each position"""

    code = "bnce.losses.sampled_nce:nce"


@register
class SharedNce(DrawnLoss, tag="snce", frozen=True):
    """S-NCE: noise words shared by the batch"""

    code = "bnce.losses.sampled_nce:shared_nce"


@register
class SampledSoftmax(DrawnLoss, tag="sampled-softmax", frozen=True):
    """sampled softmax: softmax over drawn words that all positions of a chunk share"""

    code = "bnce.losses.sampled_softmax:sampled_softmax"
    normalises = False
    num_noise: Size = 8192
    replacement: bool = True  # whether a word may be drawn more than once


@register
class BatchNce(ConstantLoss, tag="bnce", frozen=True):
    """B-NCE: the other target words of the batch are the noise; with loss.num_noise > 0, drawn words are added"""

    code = "bnce.losses.batch_nce:batch_nce"
    batch_noise = "step"
    num_noise: Count = 0  # K, the number of noise words that are drawn beside those of the batch


@register
class Chunk(ConstantLoss, tag="chunk", frozen=True):
    """chunk: a mix of chunk-bnce (loss.beta 1) and chunk-softmax (loss.beta 0)"""

    code = "bnce.losses.chunk:chunk"
    batch_noise = "streams"
    beta: Annotated[float, Meta(ge=0, le=1)] = 1.0  # the share of chunk B-NCE
    penalty: Penalty = 0.0  # λ, on how far the chunk's estimate of ln Z(context) is from ln Z

    @property
    def normalises(self) -> bool:
        """Whether B-NCE or a penalty keeps the sum near the constant."""
        return self.beta > 0 or self.penalty > 0


@register
class ChunkBnce(Chunk, tag="chunk-bnce", frozen=True):
    """chunk B-NCE: the target words of the other streams, at all time steps of the chunk, are the noise"""


@register
class ChunkSoftmax(Chunk, tag="chunk-softmax", frozen=True):
    """chunk softmax: softmax over the target words of the other streams, at all time steps of the chunk"""

    beta: Annotated[float, Meta(ge=0, le=1)] = 0.0
    penalty: Penalty = 0.1


@register
class AdaptiveSoftmax(Loss, tag="adaptive-softmax", frozen=True):
    """adaptive softmax: exact; one softmax over the frequent words, smaller ones over groups of rare words"""

    code = "bnce.losses.adaptive_softmax:adaptive_softmax"
    structure = "bnce.losses.adaptive_softmax:AdaptiveSoftmax"
    cutoffs: tuple[Size, ...] = ()  # the frequency ranks at which its tails begin; []: by V
    div_value: Annotated[float, Meta(ge=1, le=1e38)] = 4.0  # a tail's layer is smaller by this factor

    def check(self) -> None:
        """Refuse ranks that do not rise."""
        if list(self.cutoffs) != sorted(set(self.cutoffs)):
            raise UserError(f"loss.cutoffs is {list(self.cutoffs)}: give rising numbers from 1 on.")


@register
class Ffnn(ModelConfig, tag="ffnn", frozen=True):
    """FFNN: n-gram feed-forward network"""

    code = "bnce.models.feedforward:FeedForward"
    layers = "{num_words}×{embedding_size}–{hidden_size}–{bottleneck_size}(B)–V"
    resets = True
    bottleneck_size: Size = 400  # units of the ReLu layer before the output
    order: Annotated[int, Meta(ge=2, le=2**31 - 1)] = 5  # a word is predicted from order − 1 words


@register
class Rnn(ModelConfig, tag="rnn", frozen=True):
    """RNN: tanh RNN layers"""

    code = "bnce.models.recurrent:rnn"
    layers = "{embedding_size}–{repeated}{hidden_size}(R)–V"
    resets = True
    num_layers: Size = 1  # recurrent layers


@register
class ReluRnn(Rnn, tag="relu-rnn", frozen=True):
    """ReLu-RNN: RNN, then a smaller ReLu layer"""

    layers = "{embedding_size}–{repeated}{hidden_size}(R)–{bottleneck_size}(B)–V"
    bottleneck_size: Size = 400  # units of the ReLu layer before the output


@register
class Lstm(Rnn, tag="lstm", frozen=True):
    """LSTM: LSTM layers"""

    code = "bnce.models.recurrent:lstm"


@register
class ReluLstm(ReluRnn, tag="relu-lstm", frozen=True):
    """ReLu-LSTM: LSTM, then a smaller ReLu layer"""

    code = "bnce.models.recurrent:lstm"


@register
class Transformer(ModelConfig, tag="transformer", frozen=True):
    """Transformer: decoder-only Transformer"""

    code = "bnce.models.transformer:Transformer"
    layers = "{embedding_size}–{num_layers}×{hidden_size}(T)–V"
    resets = attends = True
    # A row is normed before the first layer, so its length only decides how far a step turns it: from 0.1 a run on
    # 25.6M words ended at a validation perplexity of 62.3, from 0.035 at 60.5, from 0.01 at 59.9.
    embedding_range = 0.01
    num_layers: Size = 6  # layers of attention
    num_heads: Count = 0  # parts of a layer that attend each for itself; 0: one per 64 units
    context: Count = 0  # words that a layer attends to; 0: training.num_steps

    def check(self) -> None:
        """Refuse heads of different sizes."""
        if self.num_heads and self.hidden_size % self.num_heads:
            raise UserError(
                f"model.hidden_size is {self.hidden_size}, which {self.num_heads} heads cannot share evenly: make it a "
                f"multiple of {self.num_heads}, or change model.num_heads."
            )

    def settled(self, num_steps: int = DEFAULT_CONTEXT) -> Transformer:
        """Choose the heads, as many of about 64 units as can share a layer evenly, and the context."""
        most = max(1, self.hidden_size // HEAD_SIZE)
        fitting = next(number for number in range(most, 0, -1) if self.hidden_size % number == 0)
        return msgspec.structs.replace(self, num_heads=self.num_heads or fitting, context=self.context or num_steps)


@register
class SgdConfig(OptimiserConfig, tag="sgd", frozen=True):
    """SGD: plain SGD, as in the paper"""

    code = "bnce.optimisers.optimiser:Sgd"


@register
class RowwiseAdagradConfig(OptimiserConfig, tag="rowwise", frozen=True):
    """row-wise Adagrad: row-wise Adagrad on the word tables, Adam on the other layers"""

    code = "bnce.optimisers.optimiser:Rowwise"
    body_learning_rate: Rate = 0.004  # of the layers that are no tables


@register
class RowwiseAdamConfig(RowwiseAdagradConfig, tag="rowwise-adam", frozen=True):
    """row-wise Adam: row-wise Adam on the word tables, Adam on the other layers"""

    # Squares of gradients below 1e-20 are 0 in float32, and a step divided by less than that has no bound.
    eps: Annotated[float, Meta(ge=1e-20, le=1e38)] = 1e-6  # added to a row's root mean squared gradient
