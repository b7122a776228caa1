"""How far a run has come: what a checkpoint keeps of it besides tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """The place of a run in its text, its best evaluation so far, and what is to be told of it at the end."""

    step: int = 0
    tokens: int = 0
    tokens_at_evaluation: int = 0
    best_perplexity: float = math.inf
    best_step: int = 0
    evaluations_without_better: int = 0
    evaluated_step: int = 0  # the last step that was evaluated
    warnings: list[str] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)  # of settings, when the run was resumed
    is_astray: bool = False
    budget_used_seconds: float = 0.0  # of training.budget, where there is one
    devices: list[str] = field(default_factory=list)  # more than one where a run was resumed on another

    def take_in(self, perplexity: float) -> None:
        """Count an evaluation on validation after the last step."""
        self.evaluations_without_better += 1
        if perplexity < self.best_perplexity:
            self.best_perplexity, self.best_step, self.evaluations_without_better = perplexity, self.step, 0
        self.tokens_at_evaluation, self.evaluated_step = self.tokens, self.step

    def to_record(self) -> dict[str, Any]:
        """Give it as JSON has it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Progress:
        """Read what `to_record` gave."""
        return cls(**{one.name: record[one.name] for one in dataclasses.fields(cls)})
