"""A run that ends when its time is used, whatever the speed: the steps that are left are estimated as it goes."""

from __future__ import annotations

import time

from bnce.machine.processes import World


class Budget:
    """Counts the wall-clock seconds of training and its evaluations; those of a run's earlier parts count, too."""

    def __init__(self, seconds: float, world: World) -> None:
        self.seconds, self.world = seconds, world
        self.used_seconds = 0.0
        self._since: float | None = None

    def start(self, used_seconds: float) -> None:
        """Let the time run; so much of it was used before."""
        self.used_seconds, self._since = used_seconds, time.monotonic()

    def use(self) -> None:
        """Count the time since the last call; where there are many processes, all call it, and the first one counts."""
        now = time.monotonic()
        if self._since is not None:
            self.used_seconds = self.world.share(self.used_seconds + now - self._since)
            self._since = now

    def total_steps(self, step: int, unmeasured: int) -> int:
        """Estimate the number of steps of the run from those it has made; `unmeasured` before there are any."""
        share = self.used_seconds / self.seconds
        if share >= 1.0:
            return step
        return max(step + 1, round(step / share) if step and share else unmeasured)
