"""The rows that a step needs, in small tables that stand in the place of the model's own.

A step touches a few thousand of the V rows. They are brought together from wherever they are kept, the words of the
step are numbered anew, and the model computes with the small tables as it would with the large ones: what it looks up
is the same. The gradient of a small table is dense, so equal rows are added up as it is made.

Legend: V words, U rows of a step, F columns of all tables, M words of a step with repetitions, T time steps, B streams.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from bnce import kernels, rows
from bnce.corpus.streams import Chunk
from bnce.kinds.losses import LOSSES
from bnce.language_model import LanguageModel
from bnce.machine.world import World
from bnce.models import State
from bnce.noise import Noise
from bnce.optimisers.adam import FlatParameters
from bnce.optimisers.merging import mark_merged, merge_gradient, merged_rows
from bnce.processes.placement import Placement
from bnce.processes.sharded_output import ShardedOutput
from bnce.processes.traffic import Replicated, Sharded, Traffic, num_columns, split_columns

DEVIATIONS = 6  # by which the rows of a step may exceed their mean


class WorkingNoise(Noise):
    """Noise by the step's numbers: ln p_n of its words, and the words that were drawn for it beforehand."""

    def __init__(self, whole: Noise, num_rows: int) -> None:
        nn.Module.__init__(self)
        self.bent = whole.bent
        like = whole.log_probs_V
        self.register_buffer("log_probs_V", like.new_zeros(num_rows), persistent=False)
        self.drawn: list[Tensor] = []

    def max_distinct(self, num_drawn: int) -> int:
        """Bound the number of different words by what there is room for."""
        return min(num_drawn, len(self))

    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        """Give what was drawn."""
        words = self.drawn.pop(0)
        assert words.shape == torch.Size(shape)
        return words


class WorkingTables:
    """Keeps a model's rows, all or its share of them, and gives the model those of a step."""

    def __init__(
        self,
        model: LanguageModel,
        world: World,
        *,
        sharded: bool,
        num_groups: int,
        chunk_shape: tuple[int, int],
        device: torch.device | None = None,
        seed: int = 1,
        capacity: int = 0,
        wire: torch.dtype | None = None,
        in_order: bool = False,
    ) -> None:
        """`num_groups` are those of this process; `in_order` adds up gradients in the order of the groups.

        The model moves to `device`, but for rows that other processes keep.
        """
        self.model, self.world, self.seed, self.in_order = model, world, seed, in_order
        self.num_groups, self.device = num_groups, device or model.embedding.device
        self.first_group = world.rank * num_groups
        self.noise = model.output.noise.to(self.device)
        loss = LOSSES.find(model.output.loss_name)
        tables = model.tables()
        # A loss that scores more than the words of a step needs the whole output layer.
        self.travelling = [name for name in tables if name == "embedding" or not loss.needs_whole_output]
        T, B = chunk_shape
        self.drawn_shape: tuple[int, ...] | None = None
        if model.output.num_noise and loss.draws != "never":
            K, tries = model.output.num_noise, model.output.tries
            num_draws = K if tries is None else tries.num_draws
            self.drawn_shape = {"position": (T, B, K), "step": (T, K), "chunk": (num_draws,)}[loss.draws_for]
        if sharded:
            self.placement = Placement.of(len(self.noise), world.size, self.device)
        else:
            self.placement = Placement.unshuffled(len(self.noise), self.device)
        num_words, num_drawn = B * (T + 1 + model.num_context), math.prod(self.drawn_shape or (0,))
        room = capacity or bound_rows(self.noise, num_groups * num_words, self.placement, num_groups * num_drawn)
        kind = Sharded if sharded else Replicated
        self.traffic: Traffic = kind(world, self.placement, room, wire, self.device, in_order=in_order)
        self.is_sharded = sharded
        # The rows of choices that lead to words are not words', and every process has them all.
        has_choices = loss.structure is not None
        self.divided = {name for name in tables if sharded and (name == "embedding" or not has_choices)}
        self.own_words = self.placement.words_of(world.rank if sharded else 0).cpu()
        self.kept = {
            name: nn.Parameter(self._share(name, table.detach()).to(self.device)) for name, table in tables.items()
        }
        self.output = ShardedOutput(world, self.placement, penalises=loss.penalises) if sharded else None
        if loss.needs_whole_output:
            for name in tables:
                if name not in self.travelling:
                    _replace(model, name, self.kept[name])
            if self.output is not None and not has_choices:
                model.output._loss = self.output.loss_sum
        for name in self.travelling:
            like = self.kept[name]
            _replace(model, name, nn.Parameter(like.new_zeros(self.traffic.num_rows, *like.shape[1:])))
        if not loss.needs_whole_output:
            model.output.noise = WorkingNoise(self.noise, self.traffic.num_rows)
            model.output.vocab_size = self.traffic.num_rows
        model.to(self.device)
        self._staying = [name for name in tables if name not in self.travelling and name not in self.divided]
        self.forget()

    def _travelling_of(self, tables: Mapping[str, nn.Parameter]) -> list[Tensor]:
        return [tables[name].detach() for name in self.travelling]

    def begin(self, chunks: Sequence[Chunk], step: int) -> list[Chunk]:
        """Bring the rows of a step's words, and give its chunks with these rows' numbers."""
        drawn = [self._draw(step, self.first_group + group) for group in range(len(chunks))]
        parts = [part for chunk in chunks for part in (chunk.input_LB, chunk.target_TB)]
        parts += [words for words in drawn if words is not None]
        if not self._output_travels:
            parts = [chunk.input_LB for chunk in chunks]
        place_M = self.traffic.number(torch.cat([part.reshape(-1) for part in parts]))
        with torch.no_grad():
            self.traffic.bring(self._travelling_of(self.kept), self._travelling_of(self.model.tables()))
        places = [
            place.reshape(part.shape)
            for place, part in zip(place_M.split([part.numel() for part in parts]), parts, strict=True)
        ]
        if not self._output_travels:
            return [Chunk(place, chunk.target_TB, chunk.reset_LB) for place, chunk in zip(places, chunks, strict=True)]
        noise = self.model.output.noise
        assert isinstance(noise, WorkingNoise)
        torch.index_select(self.noise.log_probs_V, 0, self.traffic.word_N, out=noise.log_probs_V)
        noise.drawn = places[2 * len(chunks) :]
        return [Chunk(places[2 * group], places[2 * group + 1], chunk.reset_LB) for group, chunk in enumerate(chunks)]

    @property
    def _output_travels(self) -> bool:
        return len(self.travelling) > 1

    def seed_step(self, step: int) -> None:
        """Make what is left to chance on a GPU depend on nothing but the step and this process's groups."""
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(_mix(self.seed, step, self.first_group, self.num_groups))

    def seed_group(self, step: int, group: int) -> None:
        """Make what is left to chance on a CPU depend on nothing but the step and the group."""
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(_mix(self.seed, step, self.first_group + group, 0))

    def _draw(self, step: int, group: int) -> Tensor | None:
        if self.drawn_shape is None:
            return None
        generator = None  # a captured step reads the GPU's own
        if self.device.type == "cpu":
            generator = torch.Generator().manual_seed(_mix(self.seed, step, group, 1))
        return self.noise.sample(self.drawn_shape, generator)

    def end_group(self, body: FlatParameters) -> None:
        """Take a group's gradients off the working tables; those that are to be added up in order stay apart."""
        if self.in_order or not self._grads:
            like = self.kept["embedding"]
            width = num_columns(self._travelling_of(self.kept))
            self._grads.append(like.new_zeros(self.traffic.num_rows, width))
        tables = self.model.tables()
        for name, part in zip(
            self.travelling, split_columns(self._grads[-1], self._travelling_of(tables)), strict=True
        ):
            grad, fast = _take(tables[name]), kernels.choose("rows", part, deterministic=self.in_order)
            if fast is not None:
                fast.add_rows_(part, *rows.row_gradients(grad))
            else:
                rows.add_rows_(part, *merged_rows(grad, deterministic=self.in_order))
        if self.in_order:
            self._bodies.append(body.take_gradients())
        # Sparse ones, too: PyTorch would merge those of several groups by sorting, which cannot be captured.
        staying = [self.kept[name] for name in self._staying]
        self._whole.append([_take(table) if self.in_order or _has_rows(table) else None for table in staying])

    def forget(self) -> None:
        """Drop the gradients of a step that was broken off."""
        self._grads: list[Tensor] = []
        self._bodies: list[Tensor] = []
        self._whole: list[list[Tensor | None]] = []

    def collect(self, body: FlatParameters) -> Tensor:
        """Put the gradients of all groups on the rows that are kept here, and give the body's."""
        grads = self._grads
        row_K, grad_KF = self.traffic.send_back(grads[0].unsqueeze(0) if len(grads) == 1 else torch.stack(grads))
        merged = rows.table_gradient((len(self.kept["embedding"]), grad_KF.shape[1]), row_K, grad_KF)
        if not len(grads) == self.world.size == 1:  # one process names a row once
            merged = merge_gradient(merged, deterministic=self.in_order)
        row_K, self._grad_KF = rows.row_gradients(merged)
        parts = split_columns(self._grad_KF, self._travelling_of(self.kept))
        for name, part in zip(self.travelling, parts, strict=True):
            self.kept[name].grad = mark_merged(rows.table_gradient(self.kept[name].shape, row_K, part))
        for place, name in enumerate(self._staying):
            apart = [grads[place] for grads in self._whole]
            of_groups = [grad for grad in apart if grad is not None] or [_take(self.kept[name])]
            put_together = self._put_together if of_groups[0].is_sparse else self._add_up
            self.kept[name].grad = put_together(of_groups, name)
        total = self._add_up(self._bodies if self.in_order else [body.take_gradients()], "body")
        self.forget()
        return total

    def _add_up(self, of_groups: list[Tensor], what: str) -> Tensor:
        """Add up a gradient over the groups of all processes."""
        if not self.in_order:
            return self.world.sum_(of_groups[0], what)
        of_all = self.world.gather(torch.stack(of_groups), what).flatten(0, 1)
        total = of_all[0].clone()
        for other in of_all[1:]:
            total += other
        return total

    def _put_together(self, of_groups: list[Tensor], what: str) -> Tensor:
        """Lay the row gradients of all groups of all processes end to end; equal rows are added up later."""
        parts = [rows.row_gradients(grad) for grad in of_groups]
        row_K, grad_KD = (torch.cat(part) for part in zip(*parts, strict=True))
        if not self.world.is_alone:
            # On a CPU the number of rows depends on the words of a step.
            if row_K.is_cuda:
                row_K, grad_KD = (self.world.gather(part, what).flatten(0, 1) for part in (row_K, grad_KD))
            else:
                row_K, grad_KD = (torch.cat(self.world.gather_uneven(part, what)) for part in (row_K, grad_KD))
        return rows.table_gradient(of_groups[0].shape, row_K, grad_KD)

    def own(self, whole_V: Tensor) -> Tensor:
        """Take the rows that this process keeps out of something with a row per word, in the order of words."""
        if not self.is_sharded:
            return whole_V
        own = whole_V.new_zeros(self.placement.rows_each, *whole_V.shape[1:])
        own[: len(self.own_words)] = whole_V.index_select(0, self.own_words.to(whole_V.device))
        return own

    def _share(self, name: str, whole_V: Tensor) -> Tensor:
        return self.own(whole_V) if name in self.divided else whole_V

    def whole(self, name: str) -> Tensor:
        """Give a whole table in the order of words, gathered from all processes; on the CPU, where there is room."""
        kept = self.kept[name].detach()
        if name not in self.divided:
            return kept.clone()
        shuffled = torch.cat(list(self.world.gather(kept, "tables"))).cpu()
        return shuffled.index_select(0, self.placement.position_V.cpu())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back whole tables."""
        with torch.no_grad():
            for name, kept in self.kept.items():
                kept.copy_(self._share(name, tensors[name]))

    @contextlib.contextmanager
    def as_whole(self) -> Iterator[LanguageModel]:
        """Give a model that knows all words, to be evaluated by all processes together."""
        if self.is_sharded:
            yield cast(LanguageModel, ShardedModel(self))
            return
        before = {name: self.model.tables()[name] for name in self.travelling}
        noise, vocab_size = self.model.output.noise, self.model.output.vocab_size
        try:
            for name in self.travelling:
                _replace(self.model, name, self.kept[name])
            self.model.output.noise, self.model.output.vocab_size = self.noise, len(self.noise)
            yield self.model
        finally:
            for name, table in before.items():
                _replace(self.model, name, table)
            self.model.output.noise, self.model.output.vocab_size = noise, vocab_size

    def norm(self, touched: dict[str, tuple[Tensor, Tensor]], dense: dict[str, Tensor], body: Tensor) -> Tensor:
        """Compute the norm over the rows of all processes, merged, and the body, which all have alike."""
        alike = [grad for name, grad in dense.items() if name not in self.divided]
        if not self.in_order:
            alike += [touched[name][1] for name in self._staying if name in touched]
        here = [grad for name, grad in dense.items() if name in self.divided]
        square = _sum_of_squares(here if self.in_order else [self._grad_KF, *here], body)
        if self.is_sharded:
            square = self.world.sum_(square.reshape(1), "control").squeeze(0)
        square = square + _sum_of_squares(alike, body)
        if self.in_order:
            squares = [self._square_in_order(*rows, name in self.divided) for name, rows in touched.items()]
            square = square + torch.stack(squares).sum()
        total: Tensor = square + torch.linalg.vector_norm(body).square()
        return total.sqrt()

    def _square_in_order(self, row_N: Tensor, grad_ND: Tensor, is_divided: bool) -> Tensor:
        """Add up the squares of all rows in the order of their words, whoever keeps them."""
        square_N = grad_ND.square() if grad_ND.ndim == 1 else grad_ND.square().sum(1)
        word_N = row_N
        if is_divided:
            word_N = self.placement.words_of(self.world.rank).index_select(0, row_N)
            word_N = self.world.gather(word_N, "control").flatten()
            square_N = self.world.gather(square_N, "control").flatten()
        in_order_N = square_N[torch.sort(word_N, stable=True).indices]
        # One after the other, so that zeros between them change nothing. A GPU adds in an order of its own.
        return in_order_N.sum() if in_order_N.is_cuda else in_order_N.cumsum(0)[-1]


class ShardedModel:
    """A model whose rows are with many processes, as far as an evaluation asks for it. All processes call together."""

    def __init__(self, tables: WorkingTables) -> None:
        self.tables, self.model = tables, tables.model
        self.embedding = tables.kept["embedding"]
        self.body, self.num_context, self.output = self.model.body, self.model.num_context, self
        self.log_z, self.normalises = self.model.output.log_z, self.model.output.normalises
        self.initial_state = self.model.initial_state

    @property
    def training(self) -> bool:
        """Whether the model is being trained."""
        return self.model.training

    def train(self, mode: bool = True) -> None:
        """Go on training."""
        self.model.train(mode)

    def eval(self) -> None:
        """Stop dropping."""
        self.model.eval()

    def __call__(self, input_LB: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the last hidden layer from words that any process may ask for."""
        tables, world = self.tables, self.tables.world
        asked = world.gather_uneven(input_LB.reshape(-1), "row numbers")
        owner_N, row_N = tables.placement.find(torch.cat(asked))
        rows_NE = self.embedding.index_select(0, torch.where(owner_N == world.rank, row_N, 0))
        rows_NE = torch.where((owner_N == world.rank).unsqueeze(1), rows_NE, 0.0)
        world.sum_(rows_NE, "rows")
        mine_NE = rows_NE.split([len(part) for part in asked])[world.rank]
        hidden_TBD, after = self.body(mine_NE.reshape(*input_LB.shape, -1), state)
        return hidden_TBD, after

    def normalise(self, hidden_ND: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the log normaliser and the raw score of a target for each position (N,)."""
        if self.model.output.structure is not None:
            return self.model.output.normalise(hidden_ND, target_N)
        assert self.tables.output is not None
        weight, bias = self.tables.kept["output.weight"], self.tables.kept["output.bias"]
        return self.tables.output.score(hidden_ND, weight, bias, target_N)


def bound_rows(noise: Noise, num_words: int, placement: Placement, num_drawn: int = 0) -> int:
    """Bound the different words among so many of a text and so many drawn ones, of those that one process keeps."""
    share_V, drawn_share_V = (
        log_probs_V.double().exp().clamp(max=1 - 1e-12) for log_probs_V in (noise.log_target_probs(), noise.log_probs_V)
    )
    log_missing_V = num_words * torch.log1p(-share_V) + num_drawn * torch.log1p(-drawn_share_V)
    missing_V, num_words = log_missing_V.exp()[placement.word_V], num_words + num_drawn
    bounds = []
    for begin, end in (placement.range_of(rank) for rank in range(placement.num_processes)):
        missing = missing_V[begin:end]
        mean, variance = (1 - missing).sum(), (missing * (1 - missing)).sum()
        bounds.append(min(math.ceil(float(mean + DEVIATIONS * variance.sqrt())) + 1, num_words, max(1, end - begin)))
    return max(bounds)


def _sum_of_squares(grads: Sequence[Tensor], like: Tensor) -> Tensor:
    norms = [torch.linalg.vector_norm(grad) for grad in grads]
    return torch.stack(norms).square().sum() if norms else like.new_zeros(())


def _take(parameter: nn.Parameter) -> Tensor:
    """Take the gradient off a parameter."""
    grad = parameter.grad
    assert grad is not None
    parameter.grad = None
    return grad


def _has_rows(parameter: nn.Parameter) -> bool:
    """Tell whether the gradient is one of some rows."""
    return parameter.grad is not None and parameter.grad.is_sparse


def _replace(model: LanguageModel, name: str, parameter: nn.Parameter) -> None:
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner), last, parameter)


def _mix(*numbers: int) -> int:
    """Make one seed of several numbers, by the steps of splitmix64."""
    mixed = 0
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed & 0x7FFFFFFFFFFFFFFF
