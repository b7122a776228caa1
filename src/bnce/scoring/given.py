"""What people give a model: sentences cut into words, and hypotheses with or without a score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from bnce.errors import UserError, shown


def word_lists(sentences: Iterable[Sequence[str]]) -> list[Sequence[str]]:
    """Take sentences that are cut into words; a string would pass for a list of letters."""
    if isinstance(sentences, str):
        raise one_string(sentences)
    found = list(sentences)
    for words in found:
        if isinstance(words, str):
            raise one_string(words)
    return found


def one_string(text: str) -> UserError:
    """Say that a text is no list of words."""
    return UserError(f"The words are one string, {shown(text)}: give a list of words, such as model.words('a text').")


def with_score(hypothesis: Any) -> tuple[str, float]:
    """Give a hypothesis with its score; a text alone has the score 0."""
    if isinstance(hypothesis, str):
        return hypothesis, 0.0
    try:
        text, score = hypothesis
    except (TypeError, ValueError):
        text, score = None, None
    if not isinstance(text, str):
        raise UserError(
            f"A hypothesis is {shown(hypothesis)}: give a text, or a text and its score, such as ('one', -3.5)."
        )
    try:
        number = float(score)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"The score of the hypothesis '{text}' is {score}: it must be a finite number.")
    return text, number
