"""What the processes of a run find out and decide together; a process that is alone decides for itself."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from bnce.corpus.streams import Streams
from bnce.errors import UserError
from bnce.machine.devices import synchronize
from bnce.machine.processes import World
from bnce.machine.signals import HeldSignals, Stopped
from bnce.training.network import Network
from bnce.training.observer import Observer


class Together:
    """One of the processes that train a network. All of them call each of these methods at the same time."""

    def __init__(self, network: Network, device: torch.device, world: World) -> None:
        self.network, self.device, self.world = network, device, world

    def breakable(self, signals: HeldSignals) -> Callable[[], AbstractContextManager[None]]:
        """Say what may be broken off by a signal: nothing that other processes take part in."""
        return signals.let_through if self.world.is_alone else nullcontext

    def telling(self, observer: Observer, signals: HeldSignals) -> Callable[[int, int], None]:
        """Tell of an evaluation on validation; where many processes evaluate, they stop together."""

        def tell(num_done: int, num_tokens: int) -> None:
            observer.evaluating("valid", num_done, num_tokens)
            if not self.world.is_alone and self.world.any({"stops": signals()})["stops"]:
                raise Stopped(signals.number or signal.SIGTERM)

        return tell

    def agree(self, saves: bool, stops: bool, *, now: bool) -> tuple[bool, bool]:
        """Save or stop where one of the processes wants to: what a clock or a signal says differs between them.

        It takes an exchange, so that many processes do it `now` and then.
        """
        if self.world.is_alone:
            return saves, stops
        agreed = self.world.any({"saves": saves, "stops": stops}) if now else {}
        return agreed.get("saves", False), agreed.get("stops", False)

    def max_distinct_targets(self, streams: Streams) -> int | None:
        """Count the different targets of any group's chunk that has most of them."""
        most = streams.max_distinct_targets(self.network.num_groups)
        return None if most is None else int(self.world.gather(torch.tensor([most]), "control").max())

    def max_places(self, streams: Streams) -> list[int] | None:
        """Count the places that any group's chunk takes in each part of a step, where the output layer has such."""
        structure = self.network.model.output.structure
        if structure is None or structure.places_CV is None:
            return None
        most_C = torch.tensor([streams.max_places(structure.places_CV, self.network.num_groups)])
        most: list[int] = self.world.gather(most_C, "control").flatten(0, 1).amax(0).tolist()
        return most

    def settle(self) -> None:
        """Let the device come to the end of what it was given, as far as other processes let it."""
        with self.world.patience():
            synchronize(self.device)

    def loss_total(self) -> float:
        """Add up the loss since the last evaluation."""
        return float(self.world.sum_(self.network.step.loss_total.clone(), "control"))

    def check_room(self) -> None:
        """Refuse to go on where words of a step were left out."""
        if (tables := self.network.tables) is None:
            return
        asked = torch.tensor([self.network.too_many_rows() or 0])
        most = int(self.world.gather(asked, "control").max())
        if most:
            raise UserError(
                f"A step has {most:,} different words, but there is room for only {tables.traffic.num_rows:,}, by the "
                "frequencies of the words in the whole text. Shuffle the documents of the training text, or train in "
                "one process with training.groups=1."
            )

    def is_finite(self) -> bool:
        """Say whether all parameters are finite."""
        return not self.world.any({"bad": not self.network.is_finite()})["bad"]
