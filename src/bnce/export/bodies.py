"""Which models can be written for other programs, which have to be told how each computes."""

from __future__ import annotations

from bnce.errors import UserError
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES
from bnce.runs.directory import Run


def refuse_unknown_body(run: Run, target: str) -> None:
    """Refuse to export a run whose body or output layer the target's writer does not know."""
    name = run.config.model.name
    if target not in BODIES.find(name).exports:
        known = ", ".join(body.name for body in BODIES if target in body.exports)
        raise UserError(
            f"The model '{name}' of '{run.path}' cannot be exported to {target}, only {known} can: "
            "export its weights alone, as safetensors."
        )
    loss = LOSSES.find(run.config.loss.name)
    if loss.structure is not None:
        raise UserError(
            f"'{run.path}' was trained with {loss.name}, whose output layer cannot be exported to {target}: export its "
            "weights alone, as safetensors."
        )
