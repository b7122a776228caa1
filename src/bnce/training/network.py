"""The model that a run trains, alone or as one of many processes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from bnce.language_model import LanguageModel
from bnce.machine.world import World
from bnce.optimisers import Optimiser, build_optimiser
from bnce.processes.working_tables import WorkingTables
from bnce.settings import RunConfig
from bnce.training.plan import check_groups
from bnce.training.step import TrainingStep

MODEL = "model."  # before the names of a model's tensors in a state
OPTIMISER = "optimiser."
STEP = "step."


class Network:
    """A model, the tables that its rows are kept in, and what trains it."""

    def __init__(self, model: LanguageModel, config: RunConfig, device: torch.device, world: World) -> None:
        training, self.model, self.world = config.training, model.to(device), world
        check_groups(training, world.size)
        self.num_groups = training.groups // world.size
        self.noise, self.num_parameters = self.model.output.noise, self.model.num_parameters
        self.num_table_parameters = sum(table.numel() for table in self.model.tables().values())
        self.tables: WorkingTables | None = None
        if training.groups > 1 or not world.is_alone:
            self.tables = WorkingTables(
                self.model,
                world,
                num_groups=self.num_groups,
                chunk_shape=(training.num_steps, training.batch_size),
                seed=training.seed,
                in_order=training.deterministic,
            )
        self.optimiser: Optimiser = build_optimiser(
            self.model, config.optimiser, deterministic=training.deterministic, tables=self.tables
        )
        self.step = TrainingStep(
            self.model,
            self.optimiser,
            training.batch_size,
            training.num_steps,
            gradient=config.optimiser.gradient,
            precision=training.precision,
            tables=self.tables,
            total_groups=training.groups,
        )

    @property
    def columns(self) -> slice:
        """The streams of this process among those of all groups."""
        here = self.step.batch_size * self.num_groups
        return slice(self.world.rank * here, (self.world.rank + 1) * here)

    def too_many_rows(self) -> int | None:
        """Give the number of rows that a step asked for, if there was no room for them."""
        if self.tables is None:
            return None
        traffic = self.tables.traffic
        asked = int(traffic.most_rows)
        return asked if asked > traffic.num_rows else None

    def is_finite(self) -> bool:
        """Say whether all numbers that this process keeps are finite."""
        kept = [] if self.tables is None else list(self.tables.kept.values())
        return all(bool(torch.isfinite(part).all()) for part in (*self.model.parameters(), *kept))

    def weights(self) -> dict[str, Tensor]:
        """Give the whole model as a `state_dict`."""
        tensors = dict(self.model.state_dict())
        if self.tables is not None:
            tensors |= {name: table.detach() for name, table in self.tables.kept.items()}
        return tensors

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a whole model."""
        if self.tables is None:
            self.model.load_state_dict(dict(tensors))
            return
        self.tables.load(tensors)
        others = {name: tensor for name, tensor in tensors.items() if name not in self.tables.kept}
        self.model.load_state_dict(others, strict=False)

    def as_whole(self) -> AbstractContextManager[LanguageModel]:
        """Give the model all its words, to be evaluated."""
        return nullcontext(self.model) if self.tables is None else self.tables.as_whole()

    def state(self) -> dict[str, Tensor]:
        """Give what a resumed run needs; all processes call it together."""
        return {
            **{f"{MODEL}{name}": tensor for name, tensor in self.weights().items()},
            **{f"{OPTIMISER}{name}": tensor for name, tensor in self.optimiser.state_tensors().items()},
            **{f"{STEP}{name}": tensor for name, tensor in self.step.tensors().items()},
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave."""
        self.load_weights(_under(MODEL, tensors))
        self.optimiser.load_state_tensors(_under(OPTIMISER, tensors))
        self.step.load_tensors(_under(STEP, tensors))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
