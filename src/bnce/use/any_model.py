"""Whatever scores words, opened by its path: a run directory, an n-gram model, or a file with a mixture of such.

A mixture file is TOML; paths in it are relative to its own place:

    [[components]]
    path = "runs/relu-lstm"
    weight = 0.7
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path

from bnce import files
from bnce.errors import UserError
from bnce.use.component import Component, Words, WordScores
from bnce.use.mixture import Mixture
from bnce.use.model import Model, load
from bnce.use.ngram import open_ngram
from bnce.use.score import SentenceScorer
from bnce.use.scorer import refuse_unnormalised

MODES = ("unnormalised", "normalised")
MIXTURE_ENDING = ".toml"


class RunComponent(Component):
    """A run as one component."""

    def __init__(self, model: Model, name: str, normalised: bool = False) -> None:
        if not normalised:
            refuse_unnormalised(model.network)
        self.model, self.name, self.normalised = model, name, normalised
        self.normaliser = model.normaliser

    def score(self, sentences: Sequence[Words], share_prefixes: bool = False) -> list[WordScores]:
        """Score sentences, in one tree where they begin alike and else side by side."""
        if share_prefixes:
            return self.model.score_lists(sentences, normalised=self.normalised)
        scorer = SentenceScorer(self.model.network, "normalised" if self.normalised else "unnormalised")
        ids = [self.model.encode(words) for words in sentences]
        found = zip(sentences, ids, scorer.score(ids), strict=True)
        return [self.model.word_scores(words, numbers, log_probs) for words, numbers, log_probs in found]

    def ids(self, words: Words) -> list[int]:
        """Give the numbers of words in the run's vocabulary."""
        numbers: list[int] = self.model.encode(words).tolist()
        return numbers


def open_any(path: Path, normalised: bool = False, device: str = "cpu") -> Component:
    """Open a run, an n-gram model or a mixture; runs give the softmax's probabilities if `normalised`."""
    if path.suffix == MIXTURE_ENDING and path.is_file():
        return _open_mixture(path, normalised, device)
    if path.is_file():
        return open_ngram(path)
    return RunComponent(load(path, device), str(path), normalised)


def write_mixture(path: Path, components: Sequence[Path], weights: Sequence[float]) -> None:
    """Write the file that `open_any` opens as a mixture."""
    if path.suffix != MIXTURE_ENDING:
        raise UserError(f"The mixture is to be written to '{path}': give a name that ends in {MIXTURE_ENDING}.")
    lines = ["# p(word) = the sum of weight times each component's p(word); paths are relative to this file.\n"]
    for component, weight in zip(components, weights, strict=True):
        relative = os.path.relpath(component.resolve(), path.resolve().parent)
        # A JSON string is a TOML string, too.
        lines.append(f"\n[[components]]\npath = {json.dumps(relative, ensure_ascii=False)}\nweight = {weight!r}\n")
    files.write_text(path, "".join(lines))


def _open_mixture(path: Path, normalised: bool, device: str) -> Mixture:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))["components"]
        pairs = [(path.parent / str(one["path"]), float(one["weight"])) for one in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{path}' is no mixture as 'bnce interpolate --out' writes it ({error}): give [[components]] with path "
            "and weight."
        ) from error
    for component, _ in pairs:
        if component.suffix == MIXTURE_ENDING:
            raise UserError(f"The mixture '{path}' has the mixture '{component}' in it: give its components instead.")
    components = [open_any(component, normalised, device) for component, _ in pairs]
    return Mixture(components, [weight for _, weight in pairs], str(path))
