"""Which bodies can be written for other programs, which have to be told how each computes."""

from __future__ import annotations

from bnce.errors import UserError
from bnce.kinds.bodies import BODIES
from bnce.runs.directory import RunDirectory


def refuse_unknown_body(run: RunDirectory, target: str) -> None:
    """Refuse to export a run whose body the target's writer does not know."""
    name = run.config.model.name
    if target not in BODIES.find(name).exports:
        known = ", ".join(body.name for body in BODIES if target in body.exports)
        raise UserError(
            f"The model '{name}' of '{run.path}' cannot be exported to {target}, only {known} can: "
            "export its weights alone, as safetensors."
        )
