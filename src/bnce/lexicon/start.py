"""A new run that starts from a trained one: the same network, and the rows of its words under the new vocabulary.

Words that both have keep their rows. New ones start from `<unk>` and from the words that are spelt most like them, as
`bnce vocab` adds them. What the new vocabulary does not have goes to `<unk>`, under which the new text reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bnce.config import RunConfig
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError, argument
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES
from bnce.lexicon.change_words import TABLES, change_tables
from bnce.lexicon.row_seeding import make_up_contexts
from bnce.lexicon.word_list import NewWord
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model, read_weights
from bnce.training.run import Start

# What must be as it was for the weights to mean the same, beside the sizes of the model.
_LOSS_KEYS = ("log_z", "learn_log_z")


def inherited_settings(source: RunConfig, model: str) -> list[str]:
    """Write the settings that a run with this model takes from the one it starts from, as `key=value`."""
    kept = [f"model.{key}={getattr(source.model, key)}" for key in (*BODIES.find(model).sizes, "dropout")]
    return [*kept, *(f"loss.{key}={str(getattr(source.loss, key)).lower()}" for key in _LOSS_KEYS)]


def check_same_network(config: RunConfig, source: RunDirectory) -> None:
    """Refuse settings under which the weights of a run do not fit, naming all that differ."""
    before, now = source.config, config
    for name in (before.loss.name, now.loss.name):
        if LOSSES.find(name).structure is not None:
            raise UserError(
                f"A run with the loss {name} cannot start from another run, and no run from it: its output layer is "
                f"made for the word frequencies of one text. Train without {argument('init')}."
            )
    pairs = {argument("model"): (before.model.name, now.model.name)}
    sizes = BODIES.find(before.model.name).sizes
    pairs |= {f"model.{key}": (getattr(before.model, key), getattr(now.model, key)) for key in sizes}
    pairs |= {f"loss.{key}": (getattr(before.loss, key), getattr(now.loss, key)) for key in _LOSS_KEYS}
    differing = [f"{key} is {new}, not {old}" for key, (old, new) in pairs.items() if old != new]
    if differing:
        raise UserError(
            f"The weights of '{source.path}' fit only its own network, but {'; '.join(differing)}: leave that "
            f"setting out to use the run's value, or train without {argument('init')}."
        )


def start_from(source: RunDirectory, vocabulary: Vocabulary, counts: np.ndarray, loss: str) -> Start:
    """Take a run's best model as the start of another, with these words, target counts and loss."""
    tensors, metadata = read_weights(source)
    known = source.vocabulary

    new_words = _new_words(source, vocabulary, counts)
    dropped = [word for word in known.words if word not in vocabulary]
    _, words, _ = change_tables(source, tensors, new_words, dropped)
    order = torch.from_numpy(np.asarray(words.encode(vocabulary.words), dtype=np.int64))
    for name in TABLES:
        tensors[name] = tensors[name][order].contiguous()
    _keep_constant(source, tensors, loss)
    record = {
        "run": str(source.path.resolve()),
        "step": int(metadata.get("step", 0)),
        "vocabulary_digest": known.digest,
        "num_words_kept": len(known) - len(dropped),
        "num_words_new": len(new_words),
        "num_words_dropped": len(dropped),
    }
    return Start(tensors, record)


def _keep_constant(source: RunDirectory, tensors: dict[str, Tensor], loss: str) -> None:
    """Shift the biases so that scores are normalised by the constant of the settings, not by another one."""
    log_z, before = tensors["output.log_z"].clone(), source.config.loss
    if not before.learn_log_z:
        log_z.fill_(before.log_z)
    if LOSSES.find(loss).self_normalises and not LOSSES.find(before.name).self_normalises:
        # A softmax leaves ln Z where it likes; a loss with the constant begins where that is ln Z.
        normalised_by = float(make_up_contexts(load_model(source)).log_z_M.mean())
        tensors["output.bias"] += float(log_z) - normalised_by
    elif not torch.equal(log_z, tensors["output.log_z"]):  # the run was calibrated
        tensors["output.bias"] += log_z - tensors["output.log_z"]
    tensors["output.log_z"] = log_z


def _new_words(source: RunDirectory, vocabulary: Vocabulary, counts: np.ndarray) -> Sequence[NewWord]:
    """List the words that the run does not have, with counts as in a text of its own size."""
    scale = float(source.target_counts.sum()) / max(1.0, float(counts.sum()))
    return [
        NewWord(word, max(1, round(scale * int(count))))
        for word, count in zip(vocabulary.words, counts, strict=True)
        if word not in source.vocabulary
    ]
