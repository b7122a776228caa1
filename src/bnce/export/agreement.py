"""Whether a run can be exported, and whether the export says what PyTorch says.

The allowed difference is measured, not guessed. Two right ways to add up the same float32 numbers differ from the exact
sum by as much as each other, give or take. So the export may differ from PyTorch by a few times what PyTorch's float32
differs from float64.

Legend: T time steps, B streams, C context words, L = C + T, K chosen words, D last hidden layer, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnce.errors import UserError
from bnce.language_model import LanguageModel
from bnce.models.body import State
from bnce.registry import MODELS
from bnce.runs.directory import Run

TOLERANCE_FACTOR = 8.0
_BLOCK_WORDS = 8192


@dataclass
class Agreement:
    """The difference between an export's results and PyTorch's, over all that was compared."""

    largest: float  # absolute value on the way to a result, which rounding is relative to
    difference: float = 0.0  # of the export from PyTorch
    own_error: float = 0.0  # of PyTorch's float32 from float64

    def note(self, found: Sequence[Tensor], plain: Sequence[Tensor], exact: Sequence[Tensor]) -> None:
        """Take in what the export, PyTorch and float64 make of the same input."""
        for found_one, plain_one, exact_one in zip(found, plain, exact, strict=True):
            self.largest = max(self.largest, float(exact_one.abs().max()))
            # Written so that a NaN stays one.
            self.difference = float(torch.maximum((found_one - plain_one).abs().max(), torch.tensor(self.difference)))
            self.own_error = max(self.own_error, float((plain_one - exact_one).abs().max()))

    def require(self, what: str, remedy: str) -> None:
        """Refuse what differs by more than it may."""
        if not self.difference <= self.tolerance:
            raise UserError(
                f"{what} differs from PyTorch by {self.difference:.3g}, and float32 allows {self.tolerance:.3g}: "
                f"nothing was written; {remedy}."
            )

    @property
    def tolerance(self) -> float:
        """What two right ways to compute the same may differ by."""
        return TOLERANCE_FACTOR * (self.own_error + torch.finfo(torch.float32).eps * self.largest)


def refuse_unknown_body(run: Run, target: str) -> None:
    """Refuse to export a run whose body or output layer the target's writer does not know."""
    name = run.config.model.name
    if not run.config.model.code.startswith("bnce."):
        known = ", ".join(name for name, model in MODELS.items() if model.code.startswith("bnce."))
        raise UserError(
            f"The model '{name}' of '{run.path}' cannot be exported to {target}, only {known} can: "
            "export its weights alone, as safetensors."
        )
    loss = run.config.loss
    if loss.structure:
        raise UserError(
            f"'{run.path}' was trained with {loss.name}, whose output layer cannot be exported to {target}: export its "
            "weights alone, as safetensors."
        )


def run_in_float64(model: LanguageModel, input_LB: Tensor, state: State) -> tuple[Tensor, State]:
    """Compute the last hidden layer and the state after it, in float64."""
    body = copy.deepcopy(model.body).double()
    hidden_TBD, after = body(model.embedding[input_LB].double(), tuple(part.double() for part in state))
    return hidden_TBD, after


def all_word_scores(model: LanguageModel, hidden_TBD: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute ln p of all words with the constant ln Z, and the logarithm of their sum, in either type.

    A block of the table at a time: in float64 the whole would be twice as large.
    """
    layer = model.output
    blocks = [
        hidden_TBD.to(dtype) @ weight_VD.to(dtype).t() + (bias_V - layer.log_z).to(dtype)
        for weight_VD, bias_V in zip(layer.weight.split(_BLOCK_WORDS), layer.bias.split(_BLOCK_WORDS), strict=True)
    ]
    score_TBV = torch.cat(blocks, dim=2)
    return score_TBV, torch.logsumexp(score_TBV, dim=2)
