"""Which weights decide: those given by name, those of a file, and cautious ones where nothing was tuned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from bnce.errors import UserError, argument, unknown_name
from bnce.rescoring.nbest import AM, OLD_LM, NBest
from bnce.scoring.weights import (
    NAMES,
    OOV_PENALTY_PER_LM_WEIGHT,
    OTHER,
    RANK_WEIGHT,
    UNTUNED_LM_WEIGHT,
    Weights,
)

_OF_ROLES = {AM: "am_weight", OLD_LM: "old_lm_weight"}
LM = "lm"  # ln p of the new language model; lists may have a score with this name


def resolve(given: Iterable[tuple[str, str]], nbest: NBest) -> dict[str, float]:
    """Tell which weights are meant: by the names of a list's scores, by their own names, or by `lm`."""
    sources = {own: role for role, own in nbest.sources.items()}
    meanings = {name: name for name in NAMES} | {LM: "lm_weight"} | _OF_ROLES
    others = {name: f"{OTHER}{name}" for name in nbest.score_names if name not in _OF_ROLES}
    meanings |= {own: (others | _OF_ROLES)[role] for own, role in sources.items()} | others
    found: dict[str, float] = {}
    for name, value in given:
        if name == LM and LM in sources:
            raise UserError(
                f"{argument('weight')} is '{LM}={value}', but the list has a score '{LM}', too: give lm_weight={value} "
                f"for the new language model, or {sources[LM]}_weight={value} for that score."
            )
        if name not in meanings:
            raise unknown_name(f"score in {argument('weight')}", name, [*nbest.score_names, LM, *NAMES])
        weight = meanings[name]
        if weight in found:
            raise UserError(
                f"{argument('weight')} is '{name}={value}', after another value for it: give each weight once."
            )
        try:
            found[weight] = float(value)
        except ValueError:
            found[weight] = math.nan
        if not math.isfinite(found[weight]):
            raise UserError(f"{argument('weight')} is '{name}={value}': give a finite number.")
    return found


def check_scores(weights: Weights, nbest: NBest, path: str, given: Mapping[str, float]) -> None:
    """Refuse weights of scores that a list does not have."""
    for role, name in _OF_ROLES.items():
        if given.get(name) and role not in nbest.score_names:
            kind = "acoustic" if role == AM else "old language model"
            raise UserError(
                f"{argument('weight')} is '{name}={given[name]:g}', but '{path}' has no {kind} scores: leave it out."
            )
    for name, weight in weights.scores:
        if weight and name not in nbest.score_names:
            raise UserError(
                f"The score '{name}' has the weight {weight:g}, but '{path}' does not have it: give a list with this "
                "score, or other weights."
            )


def complete_weights(weights: Weights | None, given: Mapping[str, float], nbest: NBest, tunes: bool) -> Weights:
    """Fill in what neither a file nor an option gives; a recogniser without scores is taken at its order."""
    if weights is None:
        weights = Weights()
        if nbest.has_am and not tunes:  # tuning goes on from weights that take no side
            lm_weight = given.get("lm_weight", UNTUNED_LM_WEIGHT)
            weights = Weights(lm_weight=lm_weight, oov_penalty=OOV_PENALTY_PER_LM_WEIGHT * max(0.0, lm_weight))
    weights = weights.changed(given)
    if nbest.has_am:
        return weights
    weights = replace(weights, am_weight=0.0)
    uses_scores = any(value for name, value in given.items() if name.startswith(OTHER))
    if not weights.rank_weight and "rank_weight" not in given and not (uses_scores and not tunes):
        # Tuning measures the other weights by this one, so that it is 1 there, as the acoustic weight is elsewhere.
        weights = replace(weights, rank_weight=1.0 if tunes else RANK_WEIGHT)
    return weights
