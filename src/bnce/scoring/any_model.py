"""Whatever scores words, opened by its path: a run directory, an n-gram model, or a file with a mixture of such.

A mixture file is TOML; paths in it are relative to its own place:

    [[components]]
    path = "runs/relu-lstm"
    weight = 0.7
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bnce import files
from bnce.corpus.vocabulary import UNK, Vocabulary
from bnce.errors import UserError
from bnce.reading import parse_toml
from bnce.scoring.component import Component, Context, Floats, Words, WordScores
from bnce.scoring.mixture import Mixture
from bnce.scoring.model import Model, load
from bnce.scoring.ngram import open_ngram
from bnce.scoring.scorer import refuse_unnormalised
from bnce.scoring.sentences import SentenceScorer

MODES = ("unnormalised", "normalised")
MIXTURE_ENDING = ".toml"
# Of so many words of the vocabulary one or more: then all of them are scored at once.
MANY_WORDS = 16


class RunComponent(Component):
    """A run as one component; with `carry` its `score` goes on from the sentences before, until a document begins."""

    def __init__(self, model: Model, name: str, normalised: bool = False, carry: bool = False) -> None:
        if not normalised:
            refuse_unnormalised(model.network)
        self.model, self.name, self.normalised = model, name, normalised
        self.normaliser = model.normaliser
        self._scorer = SentenceScorer(model.network, "normalised" if normalised else "unnormalised", carry=carry)

    def score(self, sentences: Sequence[Words], share_prefixes: bool = False) -> list[WordScores]:
        """Score sentences, in one tree where they begin alike and else side by side."""
        if share_prefixes:
            return self.model.score_lists(sentences, normalised=self.normalised)
        ids = [self.model.encode(words) for words in sentences]
        found = zip(sentences, ids, self._scorer.score(ids), strict=True)
        return [self.model.word_scores(words, numbers, log_probs) for words, numbers, log_probs in found]

    def start(self) -> Context:
        """Give the network's state at the start of a text."""
        return self.model.start()

    def score_after(self, contexts: Sequence[Context], sentences: Sequence[Words]) -> list[WordScores]:
        """Score sentences in trees, one for each state that they come after."""
        return self.model.score_lists(sentences, normalised=self.normalised, after=contexts)

    def read(self, contexts: Sequence[Context], sentences: Sequence[Words]) -> list[Context]:
        """Move states on, side by side."""
        return list(self.model.read_words(contexts, sentences))

    def begin_document(self) -> None:
        """Go back to the state at the start of a text."""
        self._scorer.begin_document()

    @property
    def vocabulary(self) -> Vocabulary:
        """The run's words."""
        return self.model.vocabulary

    @property
    def self_normalised(self) -> bool:
        """Whether the run was trained to do without the softmax."""
        return self.model.log_z is not None

    @property
    def has_constant(self) -> bool:
        """A run has a constant Z, or was trained with the softmax in place of one."""
        return True

    def in_mode(self, normalised: bool, carry: bool = False) -> RunComponent:
        """Give the same run in that mode."""
        return RunComponent(self.model, self.name, normalised, carry)

    def advance(self, context: Context, word: str) -> Context:
        """Give the state after one more word."""
        return self.model.scorer().advance([context], self.vocabulary.encode([word]).tolist())[0]

    def next_log_probs(self, context: Context, words: Words) -> Floats:
        """Compute ln p of words; where they are much of the vocabulary, in one pass over it."""
        ids, scorer = self.vocabulary.encode(words), self.model.scorer()
        if len(ids) * MANY_WORDS < len(self.vocabulary):
            found = scorer.score([context], torch.from_numpy(ids[None]), self.normalised)[0]
        else:
            found = scorer.score_all(context, self.normalised)[torch.from_numpy(ids)]
        log_probs: Floats = found.double().cpu().numpy()
        # Among a run's own words <unk> is there once: others are unknown to it and may have shares.
        if self.model.unknown_words is None or np.count_nonzero(ids == UNK) < 2:
            return log_probs
        return self.model.word_scores(words, ids, log_probs).log_probs

    def ids(self, words: Words) -> list[int]:
        """Give the numbers of words in the run's vocabulary."""
        numbers: list[int] = self.model.encode(words).tolist()
        return numbers


def open_any(path: str | Path, normalised: bool = False, device: str = "cpu", carry: bool = False) -> Component:
    """Open a run, an n-gram model or a mixture; runs give the softmax's probabilities if `normalised`.

    With `carry` the `score` of a run goes on from the sentences before. N-gram models start every sentence afresh.
    """
    path = Path(path)
    if path.suffix == MIXTURE_ENDING and path.is_file():
        return _open_mixture(path, normalised, device, carry)
    if path.is_file():
        return open_ngram(path)
    return RunComponent(load(path, device), str(path), normalised, carry)


def write_mixture(path: str | Path, components: Sequence[str | Path], weights: Sequence[float]) -> None:
    """Write the file that `open_any` opens as a mixture."""
    path = Path(path)
    if path.suffix != MIXTURE_ENDING:
        raise UserError(f"The mixture is to be written to '{path}': give a name that ends in {MIXTURE_ENDING}.")
    lines = ["# p(word) = the sum of weight times each component's p(word); paths are relative to this file.\n"]
    for component, weight in zip(components, weights, strict=True):
        relative = os.path.relpath(Path(component).resolve(), path.resolve().parent)
        # A JSON string is a TOML string, too.
        lines.append(f"\n[[components]]\npath = {json.dumps(relative, ensure_ascii=False)}\nweight = {weight!r}\n")
    files.write_text(path, "".join(lines))


def _open_mixture(path: Path, normalised: bool, device: str, carry: bool) -> Mixture:
    try:
        found = parse_toml(path.read_bytes())["components"]
        pairs = [(path.parent / str(one["path"]), float(one["weight"])) for one in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{path}' is no mixture as 'bnce interpolate' writes it ({error}): give [[components]] with path "
            "and weight."
        ) from error
    for component, _ in pairs:
        if component.suffix == MIXTURE_ENDING:
            raise UserError(f"The mixture '{path}' has the mixture '{component}' in it: give its components instead.")
    components = [open_any(component, normalised, device, carry) for component, _ in pairs]
    return Mixture(components, [weight for _, weight in pairs], str(path))
