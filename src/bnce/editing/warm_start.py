"""A new run that starts from a trained one: the same network, and the rows of its words under the new vocabulary.

Words that both have keep their rows. New ones share the probability of `<unk>`, as `bnce vocab` adds them. What the new
vocabulary does not have goes to `<unk>`, under which the new text reads it.

Legend: V vocabulary, M contexts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnce.corpus.vocabulary import Vocabulary
from bnce.editing.vocabulary import spread_rows
from bnce.engine.network import Query
from bnce.engine.packer import score
from bnce.engine.sampling import Sampling, generate
from bnce.engine.torch_network import TorchNetwork
from bnce.errors import UserError, argument
from bnce.language_model import LanguageModel
from bnce.registry import LOG_Z, Loss, ModelConfig, find
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model, read_weights
from bnce.runs.resuming import find_differences
from bnce.settings import RunConfig
from bnce.training.run import Start

NUM_TEXTS, NUM_WORDS = 64, 32  # that a model makes up, to meet contexts of its own


def inherited_settings(source: RunConfig, model: str, loss: str) -> dict[str, Any]:
    """Give the settings that a run with this model and this loss takes from the one it starts from, by name."""
    model_keys = [key for key in find(ModelConfig, model).__struct_fields__ if key != "context"]
    loss_keys = [key for key in find(Loss, loss).__struct_fields__ if key in ("log_z", "learn_log_z")]
    return {
        f"{section.section}.{key}": getattr(section, key)
        for section, keys in ((source.model, model_keys), (source.loss, loss_keys))
        for key in section.__struct_fields__
        if key in keys
    }


def check_same_network(config: RunConfig, source: Run) -> None:
    """Refuse settings under which the weights of a run do not fit, naming all that differ."""
    before, now = source.config, config
    for loss in (before.loss, now.loss):
        if loss.structure:
            raise UserError(
                f"A run with the loss {loss.name} cannot start from another run, and no run from it: its output layer "
                f"is made for the word frequencies of one text. Train without {argument('init')}."
            )
    fixed = {"model.name", *inherited_settings(before, now.model.name, now.loss.name)} - {"model.dropout"}
    differing = [
        f"{name.replace('model.name', argument('model'))} is {new}, not {old}"
        for name, (old, new) in find_differences(before, now).items()
        if name in fixed
    ]
    if differing:
        raise UserError(
            f"The weights of '{source.path}' fit only its own network, but {'; '.join(differing)}: leave that "
            f"setting out to use the run's value, or train without {argument('init')}."
        )


def start_from(source: Run, vocabulary: Vocabulary, counts: np.ndarray, loss: Loss) -> Start:
    """Take a run's best model as the start of another, with these words, target counts and loss."""
    tensors, metadata = read_weights(source)
    is_new_V = np.array([word not in source.vocabulary for word in vocabulary.words])
    # Counts as in a text of the run's own size.
    scale = float(source.target_counts.sum()) / max(1.0, float(counts.sum()))
    spread_rows(tensors, source, vocabulary, np.maximum(1.0, (scale * counts[is_new_V]).round()))
    _keep_constant(source, tensors, loss)
    num_kept, num_new = int((~is_new_V).sum()), int(is_new_V.sum())
    record = {
        "run": str(source.path.resolve()),
        "step": int(metadata.get("step", 0)),
        "vocabulary_digest": source.vocabulary.digest,
        "num_words_kept": num_kept,
        "num_words_new": num_new,
        "num_words_dropped": len(source.vocabulary) - num_kept,
    }
    return Start(tensors, record)


def _keep_constant(source: Run, tensors: dict[str, Tensor], loss: Loss) -> None:
    """Shift the biases so that scores are normalised by the constant of the settings, not by another one."""
    log_z, before = tensors["output.log_z"].clone(), source.config.loss
    if not getattr(before, "learn_log_z", False):
        log_z.fill_(getattr(before, "log_z", LOG_Z))
    if loss.normalises and not before.normalises:
        # A softmax leaves ln Z where it likes; a loss with the constant begins where that is ln Z.
        tensors["output.bias"] += float(log_z) - float(make_up_contexts(load_model(source)).mean())
    elif not torch.equal(log_z, tensors["output.log_z"]):  # the run was calibrated
        tensors["output.bias"] += log_z - tensors["output.log_z"]
    tensors["output.log_z"] = log_z


def make_up_contexts(model: LanguageModel) -> np.ndarray:
    """Let the model write texts, and give ln Z of every context on the way (M,)."""
    network = TorchNetwork(model)
    texts = generate(network, [], NUM_TEXTS, NUM_WORDS, Sampling(), seed=1)
    log_z_M = score(network, [np.array(words) for words in texts], Query(log_z=True)).log_z_N
    assert log_z_M is not None
    return log_z_M
