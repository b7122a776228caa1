"""The logarithms of words of all hypotheses of a list, small enough to leave the machine that has the model.

A file has an array per list: thousandths of a nat below 0 as 16-bit numbers, the words and the sentence end of one
hypothesis after the other's. A probability below exp(-65.535) is written as that.

Legend: N hypotheses, W words and sentence ends of all of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnce.rescoring.nbest import NBest
from bnce.rescoring.rescore import in_blocks
from bnce.scoring.model import Model
from bnce.scoring.results import Floats

PER_NAT = 1000
MOST = np.iinfo(np.uint16).max


def score_by_word(model: Model, nbest: NBest) -> tuple[list[Floats], Floats]:
    """Score all hypotheses with the constant Z: ln p of each one's words, and ln p and unknown words of each (2, N)."""
    lists = [utterance.texts for utterance in nbest.utterances]
    by_word, totals = [], []
    for texts in in_blocks(lists):
        words = [model.words(text) for text in texts]
        for scores in model.score_words(words, mode="unnormalised", share=True):
            by_word.append(scores.log_probs)
            totals.append((scores.log_probs.sum(), scores.oov.sum()))
    return by_word, np.array(totals, dtype=np.float64).T


def write_words(path: Path, lists: dict[str, list[Floats]]) -> None:
    """Write the words of several lists by the lists' names."""
    path.parent.mkdir(exist_ok=True)
    found = {}
    for name, by_word in lists.items():
        small_W = np.minimum(np.rint(-PER_NAT * np.concatenate(by_word)), MOST).astype(np.uint16)
        found[f"{name}/words"] = small_W
        found[f"{name}/lengths"] = np.array([len(log_probs) for log_probs in by_word], dtype=np.uint16)
    with open(path.with_suffix(".part"), "wb") as file:
        np.savez_compressed(file, **found)
    path.with_suffix(".part").rename(path)


def read_words(path: Path, name: str) -> tuple[Floats, NDArray[np.int64]]:
    """Read a list: ln p of all words (W,), and where each hypothesis begins (N,)."""
    with np.load(path) as found:
        log_prob_W = found[f"{name}/words"] / -PER_NAT
        length_N = found[f"{name}/lengths"].astype(np.int64)
    return log_prob_W, np.cumsum(length_N) - length_N


def mix_words(share: float, first: Path, second: Path, name: str) -> Floats:
    """Mix the probabilities of every word, and give ln p of the hypotheses (N,)."""
    (first_W, begin_N), (second_W, other_begin_N) = (read_words(path, name) for path in (first, second))
    if len(first_W) != len(second_W) or (begin_N != other_begin_N).any():
        raise SystemExit(f"{first.name} and {second.name} cut the hypotheses of {name} into different words.")
    mixed_W = np.logaddexp(np.log1p(-share) + first_W, np.log(share) + second_W)
    total_N: Floats = np.add.reduceat(mixed_W, begin_N)
    return total_N
