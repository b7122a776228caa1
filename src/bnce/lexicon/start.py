"""A new run that starts from a trained one: the same network, and the rows of its words under the new vocabulary.

Words that both have keep their rows. New ones share the probability of `<unk>`, as `bnce vocab` adds them. What the new
vocabulary does not have goes to `<unk>`, under which the new text reads it.

Legend: V vocabulary, M contexts, B texts side by side, L context words and the next, D hidden.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnce.corpus.vocabulary import END, UNK, Vocabulary
from bnce.errors import UserError, argument
from bnce.language_model import LanguageModel
from bnce.lexicon.add_words import TABLES, share_unknown
from bnce.registry import LOG_Z, Loss, ModelConfig, find
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model, read_weights
from bnce.settings import RunConfig, Setting
from bnce.training.run import Start

_LOSS_KEYS, _FREE = ("log_z", "learn_log_z"), ("dropout", "context")  # what fits weights beside a model's other sizes
NUM_TEXTS, NUM_STEPS = 64, 32  # that a model makes up, to meet contexts of its own


def _shared_settings(source: RunConfig, model: type[ModelConfig], loss: type[Loss]) -> Iterator[tuple[str, str, Any]]:
    """Give what must be as it was for the weights to mean the same: section, key and value."""
    for before, now in ((source.model, model), (source.loss, loss)):
        for key in before.__struct_fields__:
            if key in now.__struct_fields__ and (key in _LOSS_KEYS if before is source.loss else key not in _FREE):
                yield before.section, key, getattr(before, key)


def inherited_settings(source: RunConfig, model: str, loss: str) -> list[Setting]:
    """Give the settings that a run with this model and this loss takes from the one it starts from."""
    shared = _shared_settings(source, find(ModelConfig, model), find(Loss, loss))
    return [("model.dropout", source.model.dropout), *((f"{section}.{key}", value) for section, key, value in shared)]


def check_same_network(config: RunConfig, source: Run) -> None:
    """Refuse settings under which the weights of a run do not fit, naming all that differ."""
    before, now = source.config, config
    for loss in (before.loss, now.loss):
        if loss.structure:
            raise UserError(
                f"A run with the loss {loss.name} cannot start from another run, and no run from it: its output layer "
                f"is made for the word frequencies of one text. Train without {argument('init')}."
            )
    shared = _shared_settings(before, type(now.model), type(now.loss))
    pairs = {f"{section}.{key}": (old, getattr(getattr(now, section), key)) for section, key, old in shared}
    pairs = {argument("model"): (before.model.name, now.model.name)} | pairs
    differing = [f"{key} is {new}, not {old}" for key, (old, new) in pairs.items() if old != new]
    if differing:
        raise UserError(
            f"The weights of '{source.path}' fit only its own network, but {'; '.join(differing)}: leave that "
            f"setting out to use the run's value, or train without {argument('init')}."
        )


def start_from(source: Run, vocabulary: Vocabulary, counts: np.ndarray, loss: Loss) -> Start:
    """Take a run's best model as the start of another, with these words, target counts and loss."""
    tensors, metadata = read_weights(source)
    known, counts_V = source.vocabulary, source.target_counts.astype(np.float64)
    kept_V = np.array([word in vocabulary for word in known.words])
    is_new = np.array([word not in known for word in vocabulary.words])
    # Counts as in a text of the run's own size.
    scale = float(counts_V.sum()) / max(1.0, float(counts.sum()))
    new_counts = np.maximum(1.0, (scale * counts[is_new]).round())
    lost = float(counts_V[~kept_V].sum())
    tensors["output.bias"][UNK] += math.log1p(lost / max(1.0, counts_V[UNK]))  # as frequent as all that it stands for
    counts_V[UNK] += lost
    for name in TABLES:
        tensors[name] = tensors[name][torch.from_numpy(kept_V)]
    share_unknown(tensors, counts_V[kept_V], new_counts)
    words = itertools.chain(itertools.compress(known.words, kept_V), itertools.compress(vocabulary.words, is_new))
    place = {word: number for number, word in enumerate(words)}
    order = torch.tensor([place[word] for word in vocabulary.words])
    for name in TABLES:
        tensors[name] = tensors[name][order]
    _keep_constant(source, tensors, loss)
    record = {
        "run": str(source.path.resolve()),
        "step": int(metadata.get("step", 0)),
        "vocabulary_digest": known.digest,
        "num_words_kept": int(kept_V.sum()),
        "num_words_new": int(is_new.sum()),
        "num_words_dropped": int((~kept_V).sum()),
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


@torch.no_grad()
def make_up_contexts(model: LanguageModel) -> Tensor:
    """Let the model write texts, and give ln Z of every context on the way (M,)."""
    generator = torch.Generator().manual_seed(1)
    input_LB = torch.full((model.num_context + 1, NUM_TEXTS), END)
    state = model.initial_state(NUM_TEXTS)
    log_z = []
    for _ in range(NUM_STEPS):
        hidden_TBD, state = model(input_LB, state)
        score_BV = model.output.all_scores(hidden_TBD[-1])
        log_z_B = torch.logsumexp(score_BV, dim=1)
        log_z.append(log_z_B)
        # Where a draw falls in the running sum: a tenth of torch.multinomial's time at V = 800K.
        sum_BV = score_BV.sub_(log_z_B.unsqueeze(1)).exp_().cumsum(1)
        draw_B1 = torch.rand(NUM_TEXTS, 1, generator=generator) * sum_BV[:, -1:]
        word_B1 = torch.searchsorted(sum_BV, draw_B1).clamp_(max=sum_BV.shape[1] - 1)
        input_LB = torch.cat([input_LB, word_B1.t()])[1:]
    return torch.cat(log_z)
