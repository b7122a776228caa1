"""Several n-best lists as one: their weights are tuned together."""

from __future__ import annotations

from collections.abc import Sequence

from bnce.errors import UserError
from bnce.rescoring.nbest import NBest


def pool(lists: Sequence[tuple[str, NBest]]) -> NBest:
    """Put lists with the same scores and different utterances together; each has a path for messages."""
    _, first = lists[0]
    if len(lists) == 1:
        return first
    seen: dict[str, str] = {}
    for path, nbest in lists:
        check_same_scores(lists[0], (path, nbest))
        for utterance in nbest.utterances:
            if utterance.name in seen:
                raise UserError(
                    f"'{path}' has the utterance '{utterance.name}', which '{seen[utterance.name]}' has, too: give "
                    "lists of different utterances."
                )
            seen[utterance.name] = path
    utterances = [utterance for _, nbest in lists for utterance in nbest.utterances]
    left_out = tuple(sentence for _, nbest in lists for sentence in nbest.left_out)
    return NBest(utterances, first.score_names, first.sources, left_out, first.form)


def check_same_scores(first: tuple[str, NBest], other: tuple[str, NBest]) -> None:
    """Refuse lists with different scores: weights of one would mean nothing to the other."""
    if set(first[1].score_names) != set(other[1].score_names):
        raise UserError(
            f"'{first[0]}' has {_told(first[1])} and '{other[0]}' has {_told(other[1])}: give lists with the same "
            "scores."
        )


def _told(nbest: NBest) -> str:
    return f"the scores {', '.join(nbest.score_names)}" if nbest.score_names else "no scores"
