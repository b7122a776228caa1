"""The model that a run trains, wherever its rows are: in this process, or divided among many."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from bnce.config import RunConfig
from bnce.language_model import LanguageModel
from bnce.machine.world import World
from bnce.optimisers import Optimiser, build_optimiser
from bnce.processes.working_tables import WorkingTables
from bnce.training.plan import check_groups
from bnce.training.step import TrainingStep

TABLES = "model."  # before the names of a model's tensors in a state
OPTIMISER = "optimiser."
STEP = "step."


class Network:
    """A model, the tables that its rows are kept in, and what trains it."""

    def __init__(self, model: LanguageModel, config: RunConfig, device: torch.device, world: World) -> None:
        training, self.model, self.world = config.training, model, world
        check_groups(training, world.size)
        self.num_groups = training.groups // world.size
        self.noise, self.num_parameters = self.model.output.noise, self.model.num_parameters
        self.num_table_parameters = sum(table.numel() for table in self.model.tables().values())
        self.tables: WorkingTables | None = None
        if training.groups > 1 or not world.is_alone:
            self.tables = WorkingTables(
                self.model,
                world,
                sharded=training.tables == "sharded" or (training.tables == "auto" and world.size > 1),
                num_groups=self.num_groups,
                chunk_shape=(training.num_steps, training.batch_size),
                device=device,
                seed=training.seed,
                capacity=training.row_capacity,
                wire=torch.bfloat16 if training.wire == "bf16" else None,
                in_order=training.deterministic,
            )
        self.model.to(device)
        self.noise = self.noise.to(device)
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

    @property
    def is_divided(self) -> bool:
        """Whether each process has a share of the rows."""
        return self.tables is not None and self.tables.is_sharded

    def too_many_rows(self) -> int | None:
        """Give the number of rows that a step asked for, if there was no room for them."""
        if self.tables is None:
            return None
        traffic = self.tables.traffic
        asked = int(traffic.most_rows)
        return asked if asked > traffic.capacity else None

    def is_finite(self) -> bool:
        """Say whether all numbers that this process keeps are finite."""
        kept = [] if self.tables is None else list(self.tables.kept.values())
        return all(bool(torch.isfinite(part).all()) for part in (*self.model.parameters(), *kept))

    def weights(self) -> dict[str, Tensor]:
        """Give the whole model as a `state_dict`; all processes call it together."""
        tensors = dict(self.model.state_dict())
        if self.tables is not None:
            tensors |= {name: self.tables.whole(name) for name in self.tables.kept}
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
        """Give a model that knows all words, to be evaluated by all processes together."""
        return nullcontext(self.model) if self.tables is None else self.tables.as_whole()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Give what a resumed run needs: what all processes have alike, and the rows that this one keeps."""
        common = {f"{TABLES}{name}": tensor for name, tensor in self.model.state_dict().items()}
        common |= {f"{OPTIMISER}{name}": tensor for name, tensor in self.optimiser.state_tensors().items()}
        common |= {f"{STEP}{name}": tensor for name, tensor in self.step.tensors().items()}
        if self.tables is None:
            return common, {}
        common |= {f"{TABLES}{name}": tensor.detach() for name, tensor in self.tables.kept.items()}
        if not self.is_divided:
            return common, {}
        rows = {name: common.pop(name)[: len(self.tables.own_words)] for name in list(common) if self._is_by_row(name)}
        return common, rows

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave, with the rows of all processes in the order of words."""
        self.load_weights(_under(TABLES, tensors))
        states = _under(OPTIMISER, tensors)
        if self.is_divided and self.tables is not None:
            states = {
                name: self.tables.own(tensor) if self._is_by_row(OPTIMISER + name) else tensor
                for name, tensor in states.items()
            }
        self.optimiser.load_state_tensors(states)
        self.step.load_tensors(_under(STEP, tensors))

    def _is_by_row(self, name: str) -> bool:
        """Say whether a tensor of a state has a row per word: tables, and what an optimiser keeps of their rows."""
        assert self.tables is not None
        if name.removeprefix(TABLES) in self.tables.kept:
            return name.startswith(TABLES) and name.removeprefix(TABLES) in self.tables.divided
        known = self.optimiser.state_tensors().get(name.removeprefix(OPTIMISER))
        of_table = any(name.endswith(f".{table}") for table in self.tables.divided)
        return name.startswith(OPTIMISER) and of_table and known is not None and known.ndim > 0


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
