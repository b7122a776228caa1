"""One training step: forward, loss, backward, clip, update. The same code on a CPU and a GPU.

On a GPU the step is captured once as a CUDA graph and replayed: its hundreds of small kernels, and what NCCL sends to
other processes between them, then start without the host. The first steps run as they are, for Triton to compile and
libraries to choose; so does the shorter chunk at the end of an epoch. So do all steps where gloo sends from the host,
as it does between processes that share a GPU. Otherwise nothing here makes the host wait for the device.

Where there are several groups of streams, those of this process are computed one after the other, each with its own
noise, and their gradients are added up. What is left to chance depends on the seed, the step and the group alone: not
on the number of processes, nor on where a run was interrupted.

Legend: T time steps, B streams of a group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bnce.corpus.streams import Chunk, Streams
from bnce.language_model import LanguageModel
from bnce.machine.capturing import SideStream
from bnce.machine.precision import float32_products
from bnce.machine.processes import World
from bnce.models.body import State
from bnce.optimisers.optimiser import build_optimiser
from bnce.settings import RunConfig

NUM_EAGER_STEPS = 3
FILLED_UP = 128  # chunk losses fill up their columns to a multiple of it, with words that may be in no chunk


class _Share(torch.autograd.Function):
    """Where the backward pass starts, from a number that is at hand: to divide the loss would be two launches more.

    With that number as the argument of `backward` it would be none, but then PyTorch imports SymPy: half a second.
    """

    @staticmethod
    def forward(ctx: Any, loss_sum: Tensor, share: Tensor) -> Tensor:
        ctx.save_for_backward(share)
        return loss_sum.view_as(loss_sum)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


class TrainingStep:
    """Trains a model with one chunk per call, and keeps the state between calls."""

    def __init__(self, model: LanguageModel, config: RunConfig, world: World, device: torch.device) -> None:
        """The model is moved to the device, and belongs to the step from then on."""
        training = config.training
        self.model, self.world, self.device = model.to(device), world, device
        self.seed, self.gradient, self.total_groups = training.seed, config.optimiser.gradient, training.groups
        self.num_groups = training.groups // world.size
        self.first_group = world.rank * self.num_groups
        num_streams = self.num_groups * training.batch_size
        # The streams of this process among those of all groups.
        self.columns = slice(world.rank * num_streams, (world.rank + 1) * num_streams)
        self.optimiser = build_optimiser(self.model, config.optimiser, world, deterministic=training.deterministic)
        automatic = "bf16" if device.type == "cuda" else "float32"
        self.precision = automatic if training.precision == "auto" else training.precision
        # Graphs read and write fixed places, so the state is copied in and out of these.
        self.state = self.model.initial_state(num_streams)
        self.loss_total = torch.zeros((), dtype=torch.float64, device=device)
        self.norm = torch.zeros((), dtype=torch.float32, device=device)
        # The shape of chunks that are worth capturing: all but an epoch's last.
        self._shape = (training.num_steps, num_streams)
        self._num_eager = 0
        self._side = SideStream(device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._chunk: Chunk | None = None
        self._shares: dict[int, Tensor] = {}

    def fit_to_text(self, streams: Streams) -> None:
        """Count what the chunks of a text need at most, so that no step has to wait to know its shapes.

        All processes call it together.
        """
        output, structure = self.model.output, self.model.output.structure
        merges_targets = output.loss.batch_noise == "streams"
        if merges_targets or not self.world.is_alone:
            counted_R = self.world.gather(torch.tensor([streams.max_distinct_targets(self.num_groups) or 0]))
            most = int(counted_R.max()) if int(counted_R.min()) else None  # not all have the text on their device
            if merges_targets:
                output.configure(max_distinct_targets=most)
            if most is not None and structure is None:
                T, B = self._shape[0], self._shape[1] // self.num_groups
                self.optimiser.words_of_text = T * B, most + max(B, FILLED_UP)
        if structure is not None and structure.places_CV is not None and self.device.type == "cuda":
            most_C = torch.tensor([streams.max_places(structure.places_CV, self.num_groups)])
            output.configure(capacities=self.world.gather(most_C).flatten(0, 1).amax(0).tolist())

    @property
    def starts_up(self) -> bool:
        """Whether the next call is one of the first on a GPU; those take seconds once and must not be timed."""
        waits_for_graph = self._graph is None if self.world.can_be_captured else self._num_eager < NUM_EAGER_STEPS
        return self.device.type == "cuda" and waits_for_graph

    def reset_state(self) -> None:
        """Begin a text."""
        for part in self.state:
            part.zero_()

    def __call__(self, chunk: Chunk, factor: float, number: int) -> None:
        """Train on a chunk at `factor` times the configured rates; `number` counts the steps of a run."""
        self.optimiser.set_factor(factor)
        if self.device.type != "cuda":
            self._run(chunk, number)
            return
        with torch.cuda.device(self.device):  # a captured step reads this generator
            torch.cuda.manual_seed(mix(self.seed, number, self.first_group, self.num_groups))
        if self._graph is not None and self._chunk is not None and chunk.target_TB.shape == self._shape:
            self._chunk.input_LB.copy_(chunk.input_LB, non_blocking=True)
            self._chunk.target_TB.copy_(chunk.target_TB, non_blocking=True)
            if self._chunk.reset_LB is not None and chunk.reset_LB is not None:
                self._chunk.reset_LB.copy_(chunk.reset_LB, non_blocking=True)
            self._graph.replay()
        else:
            self._run_or_capture(chunk, number)

    def _run_or_capture(self, chunk: Chunk, number: int) -> None:
        on_device = Chunk(
            chunk.input_LB.to(self.device, torch.int64, copy=True),
            chunk.target_TB.to(self.device, torch.int64, copy=True),
            None if chunk.reset_LB is None else chunk.reset_LB.to(self.device, copy=True),
        )
        self._side.run(lambda: self._run(on_device, number))
        self._num_eager += 1
        is_worth_it = self._num_eager >= NUM_EAGER_STEPS and chunk.target_TB.shape == self._shape
        if self.world.can_be_captured and self._graph is None and is_worth_it:
            self._chunk = on_device
            self._graph = self._side.capture(lambda: self._run(on_device, number))

    def _run(self, chunk: Chunk, number: int) -> None:
        parts, losses, states = [], [], []
        with float32_products(tf32=self.precision == "tf32"):
            for group, part in enumerate(chunk.divide(self.num_groups) if self.num_groups > 1 else [chunk]):
                if self.device.type == "cpu":
                    torch.default_generator.manual_seed(mix(self.seed, number, self.first_group + group, 1))
                before = tuple(one.contiguous() for one in self._state_of(group))
                # Inside a captured step a cache of casted weights would outlive its memory.
                with torch.autocast(self.device.type, torch.bfloat16, self.precision == "bf16", cache_enabled=False):
                    loss_sum, state = self.model.loss_sum(part.input_LB, part.target_TB, before, part.reset_LB)
                _Share.apply(loss_sum, self._share_of(part.target_TB)).backward()
                parts.append(self.optimiser.take())
                losses.append(loss_sum.detach())
                states.append(state)
            gradients = self.optimiser.reduce(parts)
            self.optimiser.apply(gradients)
        with torch.no_grad():
            self.norm.copy_(gradients.norm)
            for group, (loss_sum, state) in enumerate(zip(losses, states, strict=True)):
                self.loss_total += loss_sum
                for kept, after in zip(self._state_of(group), state, strict=True):
                    kept.copy_(after)

    def _state_of(self, group: int) -> State:
        return tuple(part.chunk(self.num_groups, 1)[group] for part in self.state)

    def _share_of(self, target_TB: Tensor) -> Tensor:
        """Give what the gradient is multiplied by, kept where a captured step finds it again."""
        # The paper's rates fit a gradient averaged over streams and summed over time.
        num_steps, num_streams = target_TB.shape[0], target_TB.shape[1] * self.total_groups
        number = num_streams if self.gradient == "streams" else num_streams * num_steps
        if number not in self._shares:
            self._shares[number] = torch.full((), 1.0 / number, dtype=self.model.embedding.dtype, device=self.device)
        return self._shares[number]

    def tensors(self) -> dict[str, Tensor]:
        """Name the tensors that a resumed run needs, of the streams of all processes, which call it together."""
        state = [torch.cat(list(self.world.gather(part)), 1) for part in self.state]
        loss_total = self.world.sum_(self.loss_total.clone())
        hidden = {f"hidden.{place}": part for place, part in enumerate(state)}
        return {"loss_total": loss_total, "norm": self.norm, **hidden}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned, in however many processes that was."""
        for place, part in enumerate(self.state):
            part.copy_(tensors[f"hidden.{place}"][:, self.columns])
        self.norm.copy_(tensors["norm"])
        self.loss_total.copy_(tensors["loss_total"])
        if not self.world.is_first:
            self.loss_total.zero_()


def mix(*numbers: int) -> int:
    """Make one seed of several numbers, by the steps of splitmix64."""
    mixed = 0
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed & 0x7FFFFFFFFFFFFFFF
