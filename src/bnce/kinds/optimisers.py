"""The optimisers, which `optimiser.name` chooses."""

from __future__ import annotations

from dataclasses import dataclass

from bnce.kinds.kind import Kind, Registry


@dataclass(frozen=True, kw_only=True)
class Optimiser(Kind):
    """One optimiser. It is built from a `LanguageModel` and an `OptimiserConfig`."""

    rates: tuple[str, ...]  # the settings of `[optimiser]` that are its learning rates


OPTIMISERS: Registry[Optimiser] = Registry(
    "optimiser",
    Optimiser(
        name="sgd",
        shown="SGD",
        help="plain SGD, as in the paper",
        built_by="bnce.optimisers.optimiser:Sgd",
        rates=("learning_rate",),
    ),
    Optimiser(
        name="rowwise",
        shown="row-wise Adagrad",
        help="row-wise Adagrad on the word tables, Adam on the other layers",
        built_by="bnce.optimisers.optimiser:AdagradByRow",
        rates=("learning_rate", "body_learning_rate"),
    ),
    Optimiser(
        name="rowwise-adam",
        shown="row-wise Adam",
        help="row-wise Adam on the word tables, Adam on the other layers",
        built_by="bnce.optimisers.optimiser:AdamByRow",
        rates=("learning_rate", "body_learning_rate"),
    ),
)
