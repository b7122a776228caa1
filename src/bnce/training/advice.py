"""What is told of a run: why it cannot be trained as it is set, and what would go better, before, in and after it."""

from __future__ import annotations

from pathlib import Path

import torch

from bnce.corpus.store import Corpus
from bnce.corpus.streams import training_streams
from bnce.errors import UserError, argument, counted
from bnce.registry import OptimiserConfig
from bnce.runs.resuming import resume_command
from bnce.settings import RunConfig, TrainingConfig
from bnce.training.progress import Progress

# Up to so many tokens a text is small; from so many on it is large enough for the largest models.
SMALL_TOKENS, LARGE_TOKENS = 20_000_000, 300_000_000
# Of a Transformer's streams: below so many, the other targets of a time step are too little noise, and below so many
# those of a chunk are too much the position's own text (docs/method.md has the figures).
FEW_STREAMS, VERY_FEW_STREAMS = 256, 64
ENOUGH_DRAWN = 1000
# A run of fewer steps, with a batch that could be smaller, learns little.
FEW_STEPS = 500
LARGE_BATCH = 64
ALL_BUT_LITTLE = 0.9  # of a text; who trains on less of it is told


def choose_recipe(corpus: Corpus, device: torch.device) -> tuple[str, str]:
    """Choose a recipe by the size of the training text and the device, and say why in a sentence."""
    num_tokens, on_gpu = corpus.statistics["train"].num_tokens, device.type == "cuda"
    large = "wiki" if num_tokens <= LARGE_TOKENS else "news"
    name = large if on_gpu and num_tokens > SMALL_TOKENS else "small"
    where = "a GPU" if on_gpu else "a CPU"
    chosen = f"The recipe '{name}' was chosen for {num_tokens:,} training tokens on {where}"
    return name, f"{chosen}; name a recipe to use another one."


def check_groups(training: TrainingConfig, num_processes: int) -> None:
    """Refuse groups of streams that the processes cannot share evenly."""
    if training.groups % num_processes:
        raise UserError(
            f"training.groups is {training.groups}, but the run has {num_processes} processes, and each must get the "
            f"same number of groups: set training.groups to a multiple of {num_processes}, or use another number of "
            "processes."
        )


def check_trainable(config: RunConfig, corpus: Corpus) -> None:
    """Refuse settings that cannot be trained on the corpus."""
    training, model, loss = config.training, config.model, config.loss
    training_streams(training, corpus)
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


def advise_noise(config: RunConfig) -> str | None:
    """Say which noise gives a lower perplexity, where a Transformer reads few long streams."""
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


def advise_whole_text(config: RunConfig, corpus: Corpus) -> str | None:
    """Say that much of the text is left out: somebody may have meant to train on all of it."""
    limit, num_tokens = config.training.max_train_tokens, corpus.statistics["train"].num_tokens
    if not 0 < limit < ALL_BUT_LITTLE * num_tokens:
        return None
    return (
        f"Training uses the first {limit:,} of the corpus's {num_tokens:,} training tokens "
        f"({100 * limit / num_tokens:.0f}%), as training.max_train_tokens says: set it to 0 to use all of them."
    )


def advise_smaller_batch(num_steps: int, batch_size: int) -> str | None:
    """Say that a run has few steps, where more of them could be made of its text."""
    if num_steps >= FEW_STEPS or batch_size <= LARGE_BATCH:
        return None
    return (
        f"The whole run has only {counted(num_steps, 'step')}: lower training.batch_size ({batch_size}), as the recipe "
        "small does, or train on more text."
    )


def describe_astray(optimiser: OptimiserConfig, start: float) -> str:
    """Say that the model has become worse than what it started as: the frequencies of the words."""
    told = " or ".join(f"optimiser.{rate} ({getattr(optimiser, rate):g})" for rate in optimiser.rates)
    return f"Validation PPLf has become worse than at the start of training ({start:.5g}): lower {told}."


def describe_early_stop(progress: Progress, total_steps: int, training: TrainingConfig) -> str:
    """Say why a run ends before its time."""
    in_vain = counted(progress.evaluations_without_better, "evaluation")
    return (
        f"Training stops early at step {progress.step} of {total_steps}: {in_vain} in a row found no validation PPLf "
        f"below {progress.best_perplexity:.5g} (step {progress.best_step}), and training.stop_after is "
        f"{training.stop_after}."
    )


def advise_lower_rates(path: Path, config: RunConfig, factor: float, checkpoint: Path | None, has_figures: bool) -> str:
    """Name the rate of a run that diverged, and say how to go on: with half of it from where it can, else a tenth."""
    optimiser = config.optimiser
    penalty, usual = (getattr(loss, "penalty", 0.0) for loss in (config.loss, type(config.loss)()))
    with_rate = f"learning rate {optimiser.learning_rate * factor:g}"
    if penalty > usual:  # which a resumed run cannot change
        with_rate += f"; loss.penalty is {penalty:g}, usually {usual:g}, and a new run may need a lower one"
    share = 10 if checkpoint is None else 2
    settings = [f"optimiser.{key}={getattr(optimiser, key) / share:g}" for key in optimiser.rates]
    command = resume_command(path, *(word for setting in settings for word in ("--set", setting)))
    if checkpoint is not None:
        remedy = f"the last good checkpoint is '{checkpoint}'. Continue from it with lower rates:  {command}"
    elif has_figures:  # which a new start would take away
        remedy = f"there is no checkpoint. Train a new run with lower rates, such as {' and '.join(settings)}."
    else:
        remedy = f"there is no checkpoint yet. Start it again with lower rates:  {command}"
    return f"({with_rate}): {remedy}"
