"""A new run that starts from a trained one: the same network, and the rows of its words under the new vocabulary.

Words that both have keep their rows. New ones share the probability of `<unk>`, as `bnce vocab` adds them. What the new
vocabulary does not have goes to `<unk>`, under which the new text reads it.

Legend: V vocabulary, M contexts, B texts side by side, L context words and the next, D hidden.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from bnce.config import RunConfig
from bnce.corpus.vocabulary import END, UNK, Vocabulary
from bnce.errors import UserError, argument
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES
from bnce.language_model import LanguageModel
from bnce.lexicon.add_words import TABLES, share_unknown
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model, read_weights
from bnce.training.run import Start

# What must be as it was for the weights to mean the same, beside the sizes of the model.
_LOSS_KEYS = ("log_z", "learn_log_z")
NUM_TEXTS, NUM_STEPS = 64, 32  # that a model makes up, to meet contexts of its own


def inherited_settings(source: RunConfig, model: str) -> list[str]:
    """Write the settings that a run with this model takes from the one it starts from, as `key=value`."""
    kept = [f"model.{key}={getattr(source.model, key)}" for key in (*BODIES.find(model).sizes, "dropout")]
    return [*kept, *(f"loss.{key}={str(getattr(source.loss, key)).lower()}" for key in _LOSS_KEYS)]


def check_same_network(config: RunConfig, source: Run) -> None:
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


def start_from(source: Run, vocabulary: Vocabulary, counts: np.ndarray, loss: str) -> Start:
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


def _keep_constant(source: Run, tensors: dict[str, Tensor], loss: str) -> None:
    """Shift the biases so that scores are normalised by the constant of the settings, not by another one."""
    log_z, before = tensors["output.log_z"].clone(), source.config.loss
    if not before.learn_log_z:
        log_z.fill_(before.log_z)
    if LOSSES.find(loss).self_normalises and not LOSSES.find(before.name).self_normalises:
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
