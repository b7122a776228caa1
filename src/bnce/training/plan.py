"""What a run will do, checked before anything of it is on disk."""

from __future__ import annotations

from bnce.corpus.store import Corpus
from bnce.corpus.streams import training_streams
from bnce.errors import UserError
from bnce.settings import RunConfig, TrainingConfig


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
