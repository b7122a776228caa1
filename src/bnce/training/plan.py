"""What a run will do, decided and checked before anything of it is on disk."""

from __future__ import annotations

from pathlib import Path

import torch

from bnce.corpus.store import Corpus
from bnce.corpus.streams import training_streams
from bnce.errors import UserError, argument
from bnce.runs.directory import RunDirectory
from bnce.settings import RunConfig, TrainingConfig

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
    if not config.model.attends or loss.batch_noise == "none" or getattr(loss, "num_noise", 0) > 0:
        return None
    drawn = f"{argument('loss', 'bnce')} with loss.num_noise={ENOUGH_DRAWN}"
    if loss.batch_noise == "streams" and num_streams < VERY_FEW_STREAMS:
        return f"{loss.title} with {num_streams} long streams: {drawn} usually gives a lower perplexity."
    if loss.batch_noise == "step" and num_streams < FEW_STREAMS:
        better = argument("loss", "chunk-bnce") if num_streams >= VERY_FEW_STREAMS else drawn
        return (
            f"{loss.title} with {num_streams} streams has only {num_streams - 1} noise words per position: {better} "
            "usually gives a lower perplexity."
        )
    return None


def check_groups(training: TrainingConfig, num_processes: int) -> None:
    """Refuse groups of streams that the processes cannot share evenly."""
    if training.groups % num_processes:
        raise UserError(
            f"training.groups is {training.groups}, but the run has {num_processes} processes, and each must get the "
            f"same number of groups: set training.groups to a multiple of {num_processes}, or use another number of "
            "processes."
        )


def create_run(out: str | Path, config: RunConfig, corpus: Corpus, device: torch.device | None = None) -> RunDirectory:
    """Lay out a run directory, after checking that the corpus and the device, where it is known, can train it."""
    check_trainable(config, corpus, device)
    return RunDirectory.create(out, config, corpus)


def check_trainable(config: RunConfig, corpus: Corpus, device: torch.device | None = None) -> None:
    """Refuse settings that the corpus, or the device, where it is known, cannot train."""
    training, model, loss = config.training, config.model, config.loss
    training_streams(training, corpus)
    vocab_size = len(corpus.vocabulary)
    cutoffs = list(getattr(loss, "cutoffs", ()))
    if cutoffs and cutoffs[-1] >= vocab_size:
        raise UserError(
            f"loss.cutoffs is {cutoffs}, but the corpus has {vocab_size} words: give rising numbers from 1 "
            f"to {vocab_size - 1}."
        )
    if training.reset_rate:
        if not model.resets:
            raise UserError(
                f"training.reset_rate is {training.reset_rate:g}, but {model.title} cannot start "
                "without context inside a chunk: leave the setting out, or use another model."
            )
        if not corpus.statistics["train"].num_sentences:
            raise UserError(
                f"training.reset_rate is {training.reset_rate:g}, but the training text has no sentence ends: leave "
                "it out, or prepare the text with sentence ends."
            )
    context = getattr(model, "context", 0)
    if context > training.num_steps:
        raise UserError(
            f"model.context is {context}, but training.num_steps={training.num_steps} is the longest context "
            f"in training: set model.context={training.num_steps}, or raise training.num_steps."
        )
    if loss.batch_noise != "none" and training.batch_size + getattr(loss, "num_noise", 0) < 2:
        also = " or loss.num_noise" if hasattr(loss, "num_noise") else ""
        raise UserError(
            f"{loss.title} with one stream and no drawn words has no noise: raise training.batch_size{also}."
        )
