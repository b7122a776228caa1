"""The rows that a step needs, in small tables that stand in the place of the model's own.

A step touches a few thousand of the V rows. They are copied together, the words of the step are numbered anew, and the
model computes with the small tables as it would with the large ones: what it looks up is the same. The gradient of a
small table is dense, so equal rows are added up as it is made.

Every process has all tables. Of a step, it sends the gradients of the rows that it touched.

Legend: V words, U rows of a step, F columns of all tables, M words of a step with repetitions, T time steps, B streams.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from bnce import kernels, rows
from bnce.corpus.streams import Chunk
from bnce.language_model import LanguageModel
from bnce.machine.world import World
from bnce.noise import Noise
from bnce.optimisers.adam import FlatParameters
from bnce.optimisers.merging import mark_merged, merge_gradient, merged_rows
from bnce.processes.traffic import Traffic, num_columns, split_columns

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
    """Keeps a model's rows, and gives the model those of a step."""

    def __init__(
        self,
        model: LanguageModel,
        world: World,
        *,
        num_groups: int,
        chunk_shape: tuple[int, int],
        seed: int = 1,
        in_order: bool = False,
    ) -> None:
        """`num_groups` are those of this process; `in_order` adds up gradients in the order of the groups."""
        self.model, self.world, self.seed, self.in_order = model, world, seed, in_order
        self.num_groups, self.device = num_groups, model.embedding.device
        self.first_group = world.rank * num_groups
        self.noise = model.output.noise
        loss = model.output.loss
        draws = hasattr(loss, "num_noise")
        needs_whole_output = loss.batch_noise == "none" and not draws
        self.kept = model.tables()
        # A loss that scores more than the words of a step needs the whole output layer.
        self.travelling = [name for name in self.kept if name == "embedding" or not needs_whole_output]
        self._staying = [name for name in self.kept if name not in self.travelling]
        T, B = chunk_shape
        self.drawn_shape: tuple[int, ...] | None = None
        if draws and model.output.num_noise:
            K, tries = model.output.num_noise, model.output.tries
            num_draws = K if tries is None else tries.num_draws
            self.drawn_shape = {"nce": (T, B, K), "sampled-softmax": (num_draws,)}.get(loss.name, (T, K))
        num_words, num_drawn = B * (T + 1 + model.num_context), math.prod(self.drawn_shape or (0,))
        num_rows = bound_rows(self.noise, num_groups * num_words, num_groups * num_drawn)
        self.traffic = Traffic(world, len(self.noise), num_rows, self.device, in_order=in_order)
        for name in self.travelling:
            like = self.kept[name]
            _replace(model, name, nn.Parameter(like.new_zeros(num_rows, *like.shape[1:])))
        if not needs_whole_output:
            model.output.noise = WorkingNoise(self.noise, num_rows)
            model.output.vocab_size = num_rows
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

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back whole tables."""
        with torch.no_grad():
            for name, kept in self.kept.items():
                kept.copy_(tensors[name])

    @contextlib.contextmanager
    def as_whole(self) -> Iterator[LanguageModel]:
        """Give the model all its words, to be evaluated."""
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
        """Compute the norm over the rows of all processes, merged, and the body."""
        staying = list(dense.values())
        if self.in_order:
            squares = [_square_in_order(*rows) for rows in touched.values()]
            square = _sum_of_squares(staying, body) + torch.stack(squares).sum()
        else:
            staying += [touched[name][1] for name in self._staying if name in touched]
            square = _sum_of_squares([self._grad_KF], body) + _sum_of_squares(staying, body)
        total: Tensor = square + torch.linalg.vector_norm(body).square()
        return total.sqrt()


def bound_rows(noise: Noise, num_words: int, num_drawn: int = 0) -> int:
    """Bound the different words among so many of a text and so many drawn ones."""
    share_V, drawn_share_V = (
        log_probs_V.double().exp().clamp(max=1 - 1e-12) for log_probs_V in (noise.log_target_probs(), noise.log_probs_V)
    )
    missing_V = (num_words * torch.log1p(-share_V) + num_drawn * torch.log1p(-drawn_share_V)).exp()
    mean, variance = (1 - missing_V).sum(), (missing_V * (1 - missing_V)).sum()
    num_words += num_drawn
    return min(math.ceil(float(mean + DEVIATIONS * variance.sqrt())) + 1, num_words, len(noise))


def _square_in_order(row_N: Tensor, grad_ND: Tensor) -> Tensor:
    """Add up the squares of all rows in the order of their words."""
    square_N = grad_ND.square() if grad_ND.ndim == 1 else grad_ND.square().sum(1)
    in_order_N = square_N[torch.sort(row_N, stable=True).indices]
    # One after the other, so that zeros between them change nothing. A GPU adds in an order of its own.
    return in_order_N.sum() if in_order_N.is_cuda else in_order_N.cumsum(0)[-1]


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
