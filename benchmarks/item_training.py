"""Train a recommender by steps of fixed shape: on a GPU each is one CUDA graph, on a CPU the same code runs as it is.

A trainer has its own stream, its own random numbers and its own memory. So several of them can train side by side in
one process, and each gives what it would give alone.

Legend: U users, B users of a batch, S steps of an epoch, V items.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from item_data import Question, Sequences
from item_model import Recommender
from torch import Tensor

import bnce
from bnce.machine.precision import float32_products

RANK = 10
MAX_NORM = 5.0
NUM_EAGER_STEPS = 3  # before a capture, for Triton to compile and libraries to choose


class Answer:
    """Numbers that a device may still be computing."""

    def __init__(self, values: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[float]:
        """Wait for them."""
        if self._event is not None:
            self._event.synchronize()
        found: list[float] = self._values.tolist()
        return found


class Trainer:
    """Trains one model on one set of users; `start` makes it new, so that one capture serves many runs."""

    def __init__(self, model: Recommender, users: Sequences, num_users: int, precision: str) -> None:
        self.device = users.item_S.device
        self.is_cuda = self.device.type == "cuda"
        self.precision = precision
        self.users, self.num_places = users, users.capacity(num_users)
        self.num_steps = -(-users.num_users // num_users)
        self.model = model.to(self.device)
        # What is left over of the last batch goes to the user who has nothing.
        self.order_SB = torch.full((self.num_steps, num_users), users.num_users, device=self.device)
        self._set_order(torch.arange(users.num_users, device=self.device))
        self.next_step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.num_left_out = torch.zeros((), dtype=torch.int64, device=self.device)
        self.rate = torch.zeros((), device=self.device)
        tables = {id(table) for table in model.tables} if model.output.sparse else set()
        dense = [parameter for parameter in model.parameters() if id(parameter) not in tables]
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                dense,
                lr=self.rate,
                betas=(0.9, 0.98),
                weight_decay=0.0,
                fused=self.is_cuda or None,
                capturable=self.is_cuda,
            )
        ]
        # Everything here runs uncaptured a few times, on purpose.
        self.optimisers[0]._warned_capturable_if_run_uncaptured = True
        # Where all gradients are dense, PyTorch's own needs fewer kernels.
        self._clip = bnce.clip_grad_norm_ if tables else torch.nn.utils.clip_grad_norm_
        if tables:
            self.optimisers.append(bnce.RowwiseAdam(model.tables, lr=self.rate))
        self._graph: torch.cuda.CUDAGraph | None = None
        self._random_state = torch.get_rng_state()
        if self.is_cuda:
            self._stream = torch.cuda.Stream(self.device)
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            self._generator = torch.Generator(self.device)
            self._capture()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Use this trainer's stream and random numbers."""
        if not self.is_cuda:
            before = torch.get_rng_state()
            torch.set_rng_state(self._random_state)
            try:
                yield
            finally:
                self._random_state = torch.get_rng_state()
                torch.set_rng_state(before)
            return
        default = torch.cuda.default_generators[self.device.index or 0]
        others = default.graphsafe_get_state()
        # A graph keeps the state that it was captured with, and reads and advances that one when it is replayed.
        default.graphsafe_set_state(self._generator.graphsafe_get_state())
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            default.graphsafe_set_state(others)

    def _capture(self) -> None:
        with self._alone():
            self.model.train()
            self.model.reset()
            for _ in range(NUM_EAGER_STEPS):
                self.next_step.zero_()
                self._step()
            self.next_step.zero_()
            for optimiser in self.optimisers:
                optimiser.zero_grad(set_to_none=True)  # what lies outside of a graph's memory is of no use to it
            graph = torch.cuda.CUDAGraph()
            # On a stream of its own: libraries keep a workspace per stream, which no other graph may use meanwhile.
            with torch.cuda.graph(graph, stream=self._stream):
                self._step()
            self._graph = graph

    def start(self, rate: float, seed: int) -> None:
        """Begin a run."""
        with self._alone():
            if self.is_cuda:
                self._generator.manual_seed(seed)
            else:
                torch.default_generator.manual_seed(seed)
            self.model.train()
            self.model.reset()
            self.rate.fill_(rate)
            self.num_left_out.zero_()
            for optimiser in self.optimisers:
                for state in optimiser.state.values():
                    for value in state.values():
                        value.zero_()

    def epoch(self) -> None:
        """Train on every user once, in a new order."""
        with self._alone():
            self.model.train()
            self._set_order(torch.rand(self.users.num_users, device=self.device).argsort())
            self.next_step.zero_()
            self.steps(self.num_steps)

    def _set_order(self, order_U: Tensor) -> None:
        self.order_SB.view(-1)[: len(order_U)].copy_(order_U)

    def steps(self, num_steps: int) -> None:
        """Train so many steps from the next one on."""
        for _ in range(num_steps):
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()

    def _step(self) -> None:
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        users_B = self.order_SB.index_select(0, self.next_step).squeeze(0)
        batch = self.users.batch(users_B, self.num_places)
        self.num_left_out += (self.users.size_U.index_select(0, users_B).sum() - self.num_places).clamp(min=0)
        # Inside a captured step a cache of casted weights would outlive its memory.
        with float32_products(tf32=self.precision == "tf32"):
            is_narrow = self.precision == "bf16"
            with torch.autocast(self.device.type, torch.bfloat16, enabled=is_narrow, cache_enabled=False):
                loss = self.model.loss_of(batch)
            loss.backward()
            self._clip(self.model.parameters(), MAX_NORM)
            for optimiser in self.optimisers:
                optimiser.step()
        self.next_step += 1

    def held_bytes(self) -> int:
        """Add up parameters and the state of optimisers."""
        states = [state for optimiser in self.optimisers for state in optimiser.state.values()]
        held: list[Tensor] = [*self.model.parameters(), *(value for state in states for value in state.values())]
        return sum(tensor.nbytes for tensor in held)

    @torch.no_grad()
    def evaluate(self, questions: list[Question], *, unseen: bool = False) -> Answer:
        """Compute HR@10 and NDCG@10 of the true next items among all; `unseen`: also without what a user has had."""
        with self._alone(), float32_products(tf32=self.precision != "float32"):
            self.model.eval()
            total = torch.zeros(4 if unseen else 2, dtype=torch.float64, device=self.device)
            num_users = 0
            for question in questions:
                score_BV = self.model.output.all_scores(self.model(question.batch).index_select(0, question.last_B))
                own_B1 = score_BV.gather(1, question.true_B.unsqueeze(1))
                score_BV[:, 0] = -torch.inf  # padding
                total[:2] += gains(score_BV, own_B1)
                if unseen:
                    # Places without a user hold padding.
                    score_BV[question.batch.user_N.clamp(min=0), question.batch.item_N] = -torch.inf
                    total[2:] += gains(score_BV, own_B1)
                num_users += len(question.true_B)
            return Answer(total / num_users)


def gains(score_BV: Tensor, own_B1: Tensor) -> Tensor:
    """Sum hits at 10 and discounted gains at 10 of items with these scores; what is no number is no hit."""
    rank_B = (score_BV > own_B1).sum(1)
    inside_B = (rank_B < RANK) & own_B1.squeeze(1).isfinite()
    gain_B = torch.where(inside_B, 1 / torch.log2(rank_B + 2.0), 0.0)
    return torch.stack([inside_B.sum().double(), gain_B.sum().double()])
