"""What a run will do, decided and checked before anything of it is on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from bnce.config import RunConfig, TrainingConfig
from bnce.corpus.store import Corpus
from bnce.corpus.streams import training_streams
from bnce.errors import UserError, argument
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES
from bnce.noise import bent_by
from bnce.runs.directory import Run

# Up to so many tokens a text is small; from so many on it is large enough for the largest models.
SMALL_TOKENS, LARGE_TOKENS = 20_000_000, 300_000_000


def choose_recipe(corpus: Corpus, device: torch.device) -> tuple[str, str]:
    """Choose a recipe by the size of the training text and the device, and say why in a sentence."""
    num_tokens = corpus.statistics["train"].num_tokens
    on_gpu = device.type == "cuda"
    if not on_gpu or num_tokens <= SMALL_TOKENS:
        name = "small"
    else:
        name = "wiki" if num_tokens <= LARGE_TOKENS else "news"
    where = "a GPU" if on_gpu else "a CPU"
    return (
        name,
        f"The recipe '{name}' was chosen for {num_tokens:,} training tokens on {where}; name a recipe to use another "
        "one.",
    )


# Of a Transformer's streams: below so many, the other targets of a time step are too little noise, and below so many
# those of a chunk are too much the position's own text (docs/method.md has the figures).
FEW_STREAMS, VERY_FEW_STREAMS = 256, 64
ENOUGH_DRAWN = 1000


def advise_noise(config: RunConfig) -> str | None:
    """Say in a sentence which noise gives a lower perplexity, where a Transformer reads few long streams."""
    loss, num_streams = config.loss, config.training.batch_size
    kind = LOSSES.find(loss.name)
    if not BODIES.find(config.model.name).attends or not kind.batch_is_noise or loss.num_noise:
        return None
    drawn = f"{argument('loss', 'bnce')} with loss.num_noise={ENOUGH_DRAWN}"
    if kind.whole_chunk and num_streams < VERY_FEW_STREAMS:
        return f"{kind.shown} with {num_streams} long streams: {drawn} usually gives a lower perplexity."
    if not kind.whole_chunk and num_streams < FEW_STREAMS:
        better = argument("loss", "chunk-bnce") if num_streams >= VERY_FEW_STREAMS else drawn
        return (
            f"{kind.shown} with {num_streams} streams has only {num_streams - 1} noise words per position: {better} "
            "usually gives a lower perplexity."
        )
    return None


def find_unused(settings: Sequence[str], models: Iterable[str]) -> str | None:
    """Say in a sentence which `key=value` settings of a model none of these models has a use for."""
    known = {name: BODIES.find(name) for name in models}
    of_some = {f"model.{size}" for kind in BODIES for size in (*kind.sizes, "context")}
    of_these = {f"model.{size}" for kind in known.values() for size in (*kind.sizes, *(["context"] * kind.attends))}
    given = dict.fromkeys(setting.partition("=")[0].strip() for setting in settings)
    unused = [name for name in given if name in of_some - of_these]
    if not unused:
        return None
    shown = " and ".join(kind.shown for kind in known.values())
    has = "has" if len(known) == 1 else "have"
    change = "the setting changes" if len(unused) == 1 else "the settings change"
    return f"{shown} {has} no use for {' and '.join(unused)}: {change} nothing."


def check_groups(training: TrainingConfig, num_processes: int) -> None:
    """Refuse groups of streams that the processes cannot share evenly."""
    if training.groups % num_processes:
        raise UserError(
            f"training.groups is {training.groups}, but the run has {num_processes} processes, and each must get the "
            f"same number of groups: set training.groups to a multiple of {num_processes}, or use another number of "
            "processes."
        )


def create_run(out: str | Path, config: RunConfig, corpus: Corpus, device: torch.device | None = None) -> Run:
    """Lay out a run directory, after checking that the corpus and the device, where it is known, can train it."""
    check_trainable(config, corpus, device)
    return Run.create(out, config, corpus)


def check_trainable(config: RunConfig, corpus: Corpus, device: torch.device | None = None) -> None:
    """Refuse settings that the corpus, or the device, where it is known, cannot train."""
    training, loss = config.training, config.loss
    kind = LOSSES.find(loss.name)
    training_streams(training, corpus)
    vocab_size = len(corpus.vocabulary)
    if loss.cutoffs and loss.cutoffs[-1] >= vocab_size:
        raise UserError(
            f"loss.cutoffs is {list(loss.cutoffs)}, but the corpus has {vocab_size} words: give rising numbers from 1 "
            f"to {vocab_size - 1}."
        )
    model = config.model
    if training.reset_rate:
        if not BODIES.find(model.name).resets:
            raise UserError(
                f"training.reset_rate is {training.reset_rate:g}, but {BODIES.find(model.name).shown} cannot start "
                "without context inside a chunk: leave the setting out, or use another model."
            )
        if not corpus.statistics["train"].num_sentences:
            raise UserError(
                f"training.reset_rate is {training.reset_rate:g}, but the training text has no sentence ends: leave "
                "it out, or prepare the text with sentence ends."
            )
    if BODIES.find(model.name).attends and model.context > training.num_steps:
        raise UserError(
            f"model.context is {model.context}, but training.num_steps={training.num_steps} is the longest context "
            f"in training: set model.context={training.num_steps}, or raise training.num_steps."
        )
    if loss.learn_log_z and not kind.self_normalises:
        raise UserError(f"loss.learn_log_z is on, but the loss {loss.name} has no constant Z: leave it out.")
    if kind.batch_is_noise and bent_by(loss.noise, loss.noise_power):
        drawing = " or ".join(other.name for other in LOSSES if other.draws == "must" and other.self_normalises)
        raise UserError(
            f"The loss {loss.name} takes the other targets of the batch as noise, so its noise is the unigram "
            f"distribution of the text: loss.noise={loss.noise} with loss.noise_power={loss.noise_power:g} would train "
            "a wrong model. "
            f"Leave out both settings, or use the losses {drawing}, which draw their noise."
        )
    if kind.batch_is_noise and training.batch_size + loss.num_noise < 2:
        remedy = "training.batch_size" if kind.draws == "never" else "training.batch_size or loss.num_noise"
        raise UserError(f"{kind.shown} with one stream and no drawn words has no noise: raise {remedy}.")
