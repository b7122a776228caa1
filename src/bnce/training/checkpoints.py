"""The states of a run on disk: its first process writes them, and all processes read them."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from bnce.machine.world import World
from bnce.optimisers.schedule import Schedule
from bnce.runs.checkpoint import State, load_newest_state, save_state, state_file, state_files
from bnce.runs.directory import Run
from bnce.runs.metrics import METRICS_FILE, keep_metrics_up_to
from bnce.runs.resuming import check_state, remove_leftovers
from bnce.training.clock import TrainingClock
from bnce.training.network import Network
from bnce.training.observer import Observer
from bnce.training.progress import Progress


class Checkpoints:
    """Writes the state of a run, and goes back to the newest one that is whole."""

    def __init__(
        self,
        run: Run,
        network: Network,
        clock: TrainingClock,
        schedule: Schedule,
        device: torch.device,
        world: World,
    ) -> None:
        self.run, self.network, self.clock, self.schedule = run, network, clock, schedule
        self.device, self.world = device, world
        self.newest: Path | None = None  # the state that was written or read last

    def save(self, progress: Progress) -> None:
        """Write everything that the rest of the run depends on."""
        tensors = self.network.state()
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda" and self.network.tables is None:  # others seed each step
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        record = {
            **progress.to_record(),
            **self.clock.state(),
            "grad_norm": float(self.network.step.norm),
            "schedule": self.schedule.state(),
        }
        if self.world.is_first:
            save_state(self.run.path, progress.step, tensors, record, self.run.origin)
        self.world.wait()
        self.newest = state_file(self.run.path, progress.step)

    def has(self, progress: Progress) -> bool:
        """Say whether the state is the one on disk."""
        return self.newest == state_file(self.run.path, progress.step)

    def drop(self, progress: Progress) -> None:
        """Remove a state that turned out to be none to go on from."""
        if self.world.is_first:
            state_file(self.run.path, progress.step).unlink(missing_ok=True)
        self.world.wait()
        self.newest = max(state_files(self.run.path), default=None)

    def load(self, observer: Observer) -> State | None:
        """Put everything back as the newest whole state has it; None: the run was stopped before its first."""
        if self.world.is_first:
            remove_leftovers(self.run.path)
        self.world.wait()
        if not state_files(self.run.path):
            observer.noticed(f"'{self.run.path}' has no checkpoint yet: training starts at the first step.")
            if self.world.is_first:
                self.run.write_config()
            return None
        state, refused = load_newest_state(self.run.path, functools.partial(check_state, self.run))
        for sentence in refused:
            observer.noticed(f"{sentence} The previous checkpoint is used.")
        self.network.load_state(state.tensors)
        torch.set_rng_state(state.tensors["random.cpu"])
        if self.device.type == "cuda" and "random.cuda" in state.tensors:
            torch.cuda.set_rng_state(state.tensors["random.cuda"], self.device)
        self.clock.load_state(state.record)
        self.network.step.norm.fill_(state.record["grad_norm"])
        self.schedule.load_state(state.record["schedule"])
        self.newest = state.path
        return state

    def forget_after(self, state: State, step: int, observer: Observer) -> None:
        """Remove what was written after a state that the run goes back to."""
        self.world.wait()  # nobody is reading any more
        if self.world.is_first:
            for newer in state_files(self.run.path):
                if newer > state.path:
                    newer.unlink()
            if num_damaged := keep_metrics_up_to(self.run.path, step):
                observer.noticed(f"Damaged lines in '{self.run.path / METRICS_FILE}' were skipped: {num_damaged}.")
        self.world.wait()
