"""N-best lists in the order of speaking: each utterance is scored after those before it in its document.

What was said before is not known, only guessed: the context is one hypothesis of each utterance before. That is the
best one by the weights, or the one that the list has first. Documents do not know of each other, so that the first
utterances of all of them go through the network side by side, then the second ones, and so on.

Weights decide what is the best and so what the next utterance is scored after. They are tuned in rounds: on scores
after the lists' first hypotheses, then on scores after the best by the weights so far.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bnce.errors import UserError, argument, unknown_name
from bnce.rescoring.nbest import NBest
from bnce.rescoring.rescore import Advance, Scores, in_blocks, put_together
from bnce.scoring.model import Model
from bnce.scoring.weights import FIRST_BEST, Weights

CARRY_FROM = ("best", "first")
BLANK = "blank"
MAX_ROUNDS = 3


def find_documents(nbest: NBest, documents: str | None = None) -> list[list[int]]:
    """Tell which utterances are of one document, by their places, in their order.

    None is one document of all; "blank" begins a new one after a blank line; anything else is a regular expression, and
    utterances whose names begin with the same match (or its first group) are of one document.
    """
    found: dict[object, list[int]] = {}
    pattern = None if documents in (None, BLANK) else _compile(str(documents))
    num_blank = 0
    for place, utterance in enumerate(nbest.utterances):
        num_blank += utterance.after_blank and place > 0
        key: object = num_blank if documents == BLANK else None
        if pattern is not None:
            match = pattern.match(utterance.name)
            if match is None:
                raise UserError(
                    f"The name of the utterance '{utterance.name}' does not begin with a match of '{documents}': give "
                    f"{argument('documents')} an expression that finds the document in every name, or 'blank'."
                )
            key = match[1] if pattern.groups else match[0]
        found.setdefault(key, []).append(place)
    return list(found.values())


def score_in_order(
    model: Model,
    nbest: NBest,
    weights: Weights | None,
    documents: str | None = None,
    advance: Advance = lambda num: None,
    *,
    normalised: bool = False,
) -> Scores:
    """Score every hypothesis after the best ones, by `weights`, of the utterances before; None is the first ones."""
    places = find_documents(nbest, documents)
    states = [model.start()] * len(places)
    scored: list[list[tuple[float, int]]] = [[] for _ in nbest.utterances]  # ln p and OOV words of each hypothesis
    for turn in range(max(map(len, places))):
        going = [(number, document[turn]) for number, document in enumerate(places) if turn < len(document)]
        for block in in_blocks(going, [len(nbest.utterances[place].texts) for _, place in going]):
            sentences = [[model.words(text) for text in nbest.utterances[place].texts] for _, place in block]
            after = [states[number] for (number, _), own in zip(block, sentences, strict=True) for _ in own]
            together = [words for own in sentences for words in own]
            scores = iter(model.score_words(together, normalised=normalised, share_prefixes=True, after=after))
            chosen = []
            for (_, place), own in zip(block, sentences, strict=True):
                found = [next(scores) for _ in own]
                scored[place] = [(float(one.log_probs.sum()), int(one.oov.sum())) for one in found]
                best = 0
                if weights is not None:
                    alone = replace(nbest, utterances=[nbest.utterances[place]])
                    best = int(np.argmax(put_together(alone, *zip(*scored[place], strict=True)).total(weights)))
                chosen.append(own[best])
            read = model.read_words([states[number] for number, _ in block], chosen)
            for (number, _), state in zip(block, read, strict=True):
                states[number] = state
            advance(len(together))
    return put_together(nbest, *zip(*itertools.chain.from_iterable(scored), strict=True))


def tune_in_order(
    score: Callable[[Weights | None], Scores],
    find: Callable[[Scores], Weights],
    loses: Callable[[Scores, Weights], bool],
) -> tuple[Scores, Weights]:
    """Find weights, and give the scores after the hypotheses that are the best by these very weights.

    The weights were found after other hypotheses. If with their own they lose to the first best, that is what is given.
    """
    weights = find(score(None))
    scores = score(weights)
    for _ in range(MAX_ROUNDS - 1):
        found = find(scores)
        if found == weights:
            break
        weights = found
        scores = score(weights)
    if loses(scores, weights):
        return score(None), FIRST_BEST
    return scores, weights


def check_carry_from(rule: str) -> None:
    """Refuse a rule that is not known."""
    if rule not in CARRY_FROM:
        raise unknown_name(f"value of {argument('carry_from')}", rule, CARRY_FROM)


def _compile(expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise UserError(
            f"{argument('documents')} is '{expression}', which is not a regular expression ({error}): give 'blank' or "
            "an expression such as '[^-]+-[^-]+'."
        ) from error
