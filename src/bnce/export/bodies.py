"""Which models can be written for other programs, which have to be told how each computes."""

from __future__ import annotations

from bnce.errors import UserError
from bnce.registry import MODELS
from bnce.runs.directory import Run


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
