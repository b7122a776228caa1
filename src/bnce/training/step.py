"""One training step: forward, loss, backward, clip, update. The same code on a CPU and a GPU.

On a GPU the step is captured once as a CUDA graph and replayed: its hundreds of small kernels, and what NCCL sends to
other processes between them, then start without the host. The first steps run as they are, for Triton to compile and
libraries to choose; so does the shorter chunk at the end of an epoch. So do all steps where gloo sends from the host,
as it does between processes that share a GPU. Otherwise nothing here makes the host wait for the device.

Where there are several groups of streams, those of this process are computed one after the other, each with its own
noise, and their gradients are added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from bnce.corpus.streams import Chunk
from bnce.language_model import LanguageModel
from bnce.machine.capturing import SideStream
from bnce.machine.precision import float32_products
from bnce.models.body import State
from bnce.optimisers import Optimiser
from bnce.processes.working_tables import WorkingTables

NUM_EAGER_STEPS = 3

Breakable = Callable[[], AbstractContextManager[None]]


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

    def __init__(
        self,
        model: LanguageModel,
        optimiser: Optimiser,
        batch_size: int,
        num_steps: int,
        *,
        gradient: str,
        precision: str,
        tables: WorkingTables | None = None,
        total_groups: int = 1,
    ) -> None:
        """`tables` bring the rows that a step needs, where it has several groups or processes."""
        self.model, self.optimiser, self.gradient = model, optimiser, gradient
        self.tables, self.total_groups = tables, total_groups
        self.num_groups, self.batch_size = 1 if tables is None else tables.num_groups, batch_size
        self.device = model.embedding.device
        self.precision = precision if precision != "auto" else "bf16" if self.device.type == "cuda" else "float32"
        self.autocast_dtype = torch.bfloat16 if self.precision == "bf16" else None
        # Graphs read and write fixed places, so the state is copied in and out of these.
        self.state = model.initial_state(self.num_groups * batch_size)
        self.loss_total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.norm = torch.zeros((), dtype=torch.float32, device=self.device)
        # The shape of chunks that are worth capturing: all but an epoch's last.
        self._shape = (num_steps, self.num_groups * batch_size)
        self._num_eager = 0
        self._side = SideStream(self.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._chunk: Chunk | None = None
        self._captures = tables is None or tables.world.can_be_captured
        self._sent_by_graph: Counter[str] = Counter()
        self._shares: dict[int, Tensor] = {}

    @property
    def starts_up(self) -> bool:
        """Whether the next call is one of the first on a GPU; those take seconds once and must not be timed."""
        waits_for_graph = self._graph is None if self._captures else self._num_eager < NUM_EAGER_STEPS
        return self.device.type == "cuda" and waits_for_graph

    def reset_state(self) -> None:
        """Begin a text."""
        for part in self.state:
            part.zero_()

    def __call__(self, chunk: Chunk, factor: float, breakable: Breakable = nullcontext, number: int = 0) -> None:
        """Train on a chunk at `factor` times the configured rates; `number` counts the steps of a run.

        On a CPU a step can take many seconds. What it computes before it changes anything is done inside `breakable`,
        which may end it with an exception; the step then counts as not begun.
        """
        self.optimiser.set_factor(factor)
        if self.tables is not None:
            self.tables.seed_step(number)
        if self.device.type != "cuda":
            self._run(chunk, breakable, number)
        elif (
            self._graph is not None and self._chunk is not None and chunk.target_TB.shape == self._chunk.target_TB.shape
        ):
            self._chunk.input_LB.copy_(chunk.input_LB, non_blocking=True)
            self._chunk.target_TB.copy_(chunk.target_TB, non_blocking=True)
            if self._chunk.reset_LB is not None and chunk.reset_LB is not None:
                self._chunk.reset_LB.copy_(chunk.reset_LB, non_blocking=True)
            self._graph.replay()
            if self.tables is not None:
                self.tables.world.bytes_sent.update(self._sent_by_graph)
        else:
            on_device = Chunk(
                chunk.input_LB.to(self.device, torch.int64, copy=True),
                chunk.target_TB.to(self.device, torch.int64, copy=True),
                None if chunk.reset_LB is None else chunk.reset_LB.to(self.device, copy=True),
            )
            self._run_on_side_stream(on_device)
            self._num_eager += 1
            is_worth_it = self._num_eager >= NUM_EAGER_STEPS and chunk.target_TB.shape == self._shape
            if self._captures and self._graph is None and is_worth_it:
                self._capture(on_device)

    def _run(self, chunk: Chunk, breakable: Breakable = nullcontext, number: int = 0) -> None:
        random_state = torch.get_rng_state()
        with float32_products(tf32=self.precision == "tf32"):
            try:
                with breakable():
                    loss_sum, state = self._compute(chunk, number)
            except BaseException:
                torch.set_rng_state(random_state)
                self.model.zero_grad(set_to_none=True)
                if self.tables is not None:
                    self.tables.forget()
                raise
            self._apply(loss_sum, state)

    def _compute(self, chunk: Chunk, number: int) -> tuple[Tensor, State]:
        """Compute a chunk's loss, the state after it, and the gradients, which stay with the parameters."""
        if self.tables is None:
            return self._compute_group(chunk, self.state)
        groups = chunk.divide(self.num_groups)
        losses, states = [], []
        for group, part in enumerate(self.tables.begin(groups, number)):
            self.tables.seed_group(number, group)
            before = tuple(part.chunk(self.num_groups, 1)[group].contiguous() for part in self.state)
            loss_sum, state = self._compute_group(part, before)
            self.tables.end_group(self.optimiser.body)
            losses.append(loss_sum.detach())
            states.append(state)
        if len(groups) == 1:
            return losses[0], states[0]
        return torch.stack(losses).sum(), tuple(torch.cat(parts, 1) for parts in zip(*states, strict=True))

    def _compute_group(self, chunk: Chunk, before: State) -> tuple[Tensor, State]:
        # Inside a captured step a cache of casted weights would outlive its memory.
        casts = self.autocast_dtype is not None
        with torch.autocast(self.device.type, dtype=self.autocast_dtype, enabled=casts, cache_enabled=False):
            loss_sum, state = self.model.loss_sum(chunk.input_LB, chunk.target_TB, before, chunk.reset_LB)
        # The paper's rates fit a gradient averaged over streams and summed over time.
        num_steps, num_streams = chunk.target_TB.shape[0], chunk.target_TB.shape[1] * self.total_groups
        share = self._one_of(num_streams if self.gradient == "streams" else num_streams * num_steps)
        _Share.apply(loss_sum, share).backward()
        return loss_sum, state

    def _one_of(self, number: int) -> Tensor:
        """Give 1 / number, kept where a captured step finds it again."""
        if number not in self._shares:
            self._shares[number] = torch.full((), 1.0 / number, dtype=self.model.embedding.dtype, device=self.device)
        return self._shares[number]

    def _apply(self, loss_sum: Tensor, state: State) -> None:
        gradients = self.optimiser.collect()
        self.optimiser.apply(gradients)
        with torch.no_grad():
            self.loss_total += loss_sum
            self.norm.copy_(gradients.norm)
            for part, after in zip(self.state, state, strict=True):
                part.copy_(after)

    def _run_on_side_stream(self, chunk: Chunk) -> None:
        self._side.run(lambda: self._run(chunk))

    def _capture(self, chunk: Chunk) -> None:
        self._chunk = chunk
        sent = None if self.tables is None else self.tables.world.bytes_sent
        before = Counter(sent)
        self._graph = self._side.capture(lambda: self._run(chunk))
        if sent is not None:
            # Nothing was sent while it was captured; every replay will send this.
            self._sent_by_graph = sent - before
            sent.subtract(self._sent_by_graph)

    def tensors(self) -> dict[str, Tensor]:
        """Name the tensors that a resumed run needs, of the streams of all processes."""
        loss_total, state = self.loss_total, list(self.state)
        if self.tables is not None:
            world = self.tables.world
            loss_total = world.sum_(loss_total.clone(), "state")
            state = [torch.cat(list(world.gather(part, "state")), 1) for part in state]
        return {"loss_total": loss_total, **{f"hidden.{place}": part for place, part in enumerate(state)}}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned, in however many processes that was."""
        world = None if self.tables is None else self.tables.world
        for place, part in enumerate(self.state):
            whole = tensors[f"hidden.{place}"]
            begin = 0 if world is None else world.rank * part.shape[1]
            part.copy_(whole[:, begin : begin + part.shape[1]])
        self.loss_total.copy_(tensors["loss_total"])
        if world is not None and not world.is_first:
            self.loss_total.zero_()
