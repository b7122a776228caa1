"""Perplexity of a model on a text: PPLf (softmax) and PPLn (the constant Z) in one pass, with the spread of log Z.

In context, the result depends on WINDOW and CONTEXT only: how many windows run side by side affects the speed, not the
result. A text of up to CONTEXT + WINDOW tokens is one window, read as one stream. In a longer text every later word
sees CONTEXT + 1 to CONTEXT + WINDOW words before it; a feed-forward model sees only its last few words. By sentence, a
second pass, a word sees those before it in its sentence.

Legend: N scored positions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnce.corpus.vocabulary import END, UNK
from bnce.errors import UserError
from bnce.evaluation import windows
from bnce.evaluation.breakdown import Detail, WordCounts, find_detail, perplexity
from bnce.evaluation.windows import WINDOW, Window, read_windows
from bnce.language_model import LanguageModel
from bnce.machine.precision import float32_products
from bnce.machine.processes import World

CONTEXT = 64
MIN_SENTENCES = 64  # side by side: they are shorter than windows
HISTOGRAM_BINS = 60


@dataclass(frozen=True)
class BySentence:
    """What a model makes of a text whose sentences it meets one by one; the fields are those of an evaluation."""

    ppl_n: float | None
    ppl_f: float
    log_z_mean: float
    log_z_std: float


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of a text, in context: perplexities per token, `</s>` and `<unk>` counted, and ln Z.

    Bits per byte are −log2 of the softmax's probability of the whole text over its size. Of a word that is `<unk>` the
    bytes count, but not what it would cost to spell it.
    """

    ppl_n: float | None  # with the constant Z; None for a model that was trained with the softmax
    ppl_f: float  # with the full softmax
    ppl_n_no_unk: float | None  # the same over the tokens that are in the vocabulary
    ppl_f_no_unk: float | None  # None where no token is in the vocabulary
    log_z: float  # ln Z, the constant
    log_z_mean: float  # of ln Z(context), the softmax's own normaliser
    log_z_std: float
    log_z_histogram: dict[str, list[float]]  # "counts" between "edges", of which there is one more
    log10_prob_n: float | None  # totals over all tokens
    log10_prob_f: float
    num_tokens: int
    num_oov: int
    num_sentences: int
    # Words before it that a word is predicted from; near the start of the text there are fewer than the least.
    min_context: int
    max_context: int
    num_bytes: int | None  # of the text before words became <unk>; None where nobody knows
    bits_per_byte: float | None
    text_sha256: str  # of the ids that were evaluated (`digest_ids`), so that other text can be told from this
    # Each sentence for itself, from </s> on, as it is scored and rescored; None where it was not measured.
    by_sentence: BySentence | None = None
    detail: Detail | None = None  # where the text is hard, if it was asked for

    def to_dict(self) -> dict[str, object]:
        """Give the fields as JSON has them; what was not asked for is no field."""
        record = dataclasses.asdict(self)
        return {
            key: value for key, value in record.items() if value is not None or key not in ("by_sentence", "detail")
        }


@torch.no_grad()
def evaluate(
    model: LanguageModel,
    ids: np.ndarray,
    *,
    num_parallel: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    known: WordCounts | None = None,
    world: World | None = None,
    num_bytes: int | None = None,
    by_sentence: bool = False,
) -> Evaluation:
    """Evaluate on a text of ids of `num_bytes`; `progress` is told of tokens done and tokens in all.

    The processes of a `world` share the windows, and all get the result.

    With `known`, the words and their counts, the result says where the text is hard, too. With `by_sentence`, the text
    is read a second time, each sentence for itself; a text without sentence ends has no such figures.
    """
    if len(ids) == 0:
        raise UserError("The text has no tokens to evaluate: give a text with words.")
    world, num_parallel = world or World(), num_parallel or num_side_by_side(model)
    by_sentence = by_sentence and bool((ids == END).any())
    num_tokens = len(ids) * (2 if by_sentence else 1)  # that are read

    def tell(num_done: int) -> None:
        if progress is not None:
            progress(num_done, num_tokens)

    was_training = model.training
    model.eval()
    try:
        with float32_products(tf32=False):
            parts = windows.in_context(ids, num_parallel, model.num_context, num_read_before(model))
            scored = _score(model, parts, len(ids), tell, world)
            result = _summarise(*scored, ids, model, num_bytes)
            if by_sentence:
                parts = windows.by_sentence(ids, max(num_parallel, MIN_SENTENCES), model.num_context)
                read = _score(model, parts, len(ids), lambda num_done: tell(len(ids) + num_done), world)
                alone = _summarise(*read, ids, model, num_bytes)
                figures = BySentence(alone.ppl_n, alone.ppl_f, alone.log_z_mean, alone.log_z_std)
                result = dataclasses.replace(result, by_sentence=figures)
    finally:
        model.train(was_training)
    if known is None:
        return result
    score_N, normaliser_N = scored
    log_prob_n_N = (score_N - result.log_z).numpy() if model.output.normalises else None
    detail = find_detail(ids.astype(np.int64), (score_N - normaliser_N).numpy(), log_prob_n_N, known)
    return dataclasses.replace(result, detail=detail)


def digest_ids(ids: np.ndarray) -> str:
    """Give the SHA-256 of a text, of whichever type its ids are; the same ids are the same words in one vocabulary."""
    return hashlib.sha256(ids.astype("<u4").data).hexdigest()


def _score(
    model: LanguageModel, parts: Iterable[Window], num_tokens: int, progress: Callable[[int], None], world: World
) -> tuple[Tensor, Tensor]:
    """Compute, for every token in the order of the text, its score and the log normaliser of its context."""
    found, num_done = [], 0
    for read in read_windows(model, parts, world):
        normaliser_N, score_N = model.output.normalise(read.hidden_ND, read.target_N)
        # Sums over a large text want more digits than one probability has.
        found.append(torch.stack([read.position_N.double(), score_N.double().cpu(), normaliser_N.double().cpu()], 1))
        num_done += read.num_scored
        progress(num_done)
    # Of all processes, whose windows lie between each other's.
    rows_N3 = torch.cat(world.gather_uneven(torch.cat(found)))
    score_N, normaliser_N = torch.empty(2, num_tokens, dtype=torch.float64)
    position_N = rows_N3[:, 0].long()
    score_N[position_N], normaliser_N[position_N] = rows_N3[:, 1], rows_N3[:, 2]
    return score_N, normaliser_N


def _summarise(
    score_N: Tensor, normaliser_N: Tensor, ids: np.ndarray, model: LanguageModel, num_bytes: int | None
) -> Evaluation:
    log_z = float(model.output.log_z)
    log_prob_f_N = score_N - normaliser_N
    log_prob_n_N = score_N - log_z
    known_N = torch.from_numpy(ids != UNK)
    num_known, constant = int(known_N.sum()), model.output.normalises
    total_f, total_n = float(log_prob_f_N.sum()), float(log_prob_n_N.sum())
    ppl_f = perplexity(total_f, len(ids))
    assert ppl_f is not None  # a text without tokens is refused
    # A model that blew up still gets its perplexity, which is not finite either; a histogram needs numbers.
    counts, edges = np.histogram(normaliser_N[normaliser_N.isfinite()].numpy(), bins=HISTOGRAM_BINS)
    before, seen = num_read_before(model), model.body.num_words or sys.maxsize
    return Evaluation(
        ppl_n=perplexity(total_n, len(ids)) if constant else None,
        ppl_f=ppl_f,
        ppl_n_no_unk=perplexity(float(log_prob_n_N[known_N].sum()), num_known) if constant else None,
        ppl_f_no_unk=perplexity(float(log_prob_f_N[known_N].sum()), num_known),
        log_z=log_z,
        log_z_mean=float(normaliser_N.mean()),
        log_z_std=float(normaliser_N.std(correction=0)),
        log_z_histogram={"edges": edges.tolist(), "counts": counts.tolist()},
        log10_prob_n=total_n / math.log(10) if constant else None,
        log10_prob_f=total_f / math.log(10),
        num_tokens=len(ids),
        num_oov=len(ids) - num_known,
        num_sentences=int((ids == END).sum()),
        min_context=min(before + 1, seen),
        max_context=min(before + WINDOW, seen),
        num_bytes=num_bytes,
        bits_per_byte=-total_f / math.log(2) / num_bytes if num_bytes else None,
        text_sha256=digest_ids(ids),
    )


def num_side_by_side(model: LanguageModel) -> int:
    """Say how many windows go through the network together: more are no faster."""
    return 16 if model.embedding.device.type == "cpu" else 512


def num_read_before(model: LanguageModel) -> int:
    """Count the words that are read before a window: half of those that a body attends to, at least."""
    return max(CONTEXT, model.body.context // 2)
