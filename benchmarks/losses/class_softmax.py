"""Class-factored softmax (Goodman, 2001; Mikolov et al., 2011): first the class of a word, then the word in its class.

    p(w) = softmax(h·U + d)(class of w) · softmax(h·W + c)(w), the second over the words of that class

A class has the words of neighbouring frequency ranks. Classes are of one size S, about √V, so that C + S scores, the
least there can be, are enough for a position, and matrices of one shape go through a GPU together. Mikolov et al. make
classes of equal frequency: the last ones then have thousands of words, and all would be padded to that size.

Positions are sorted by the class of their target and laid into tiles of Q positions of one class. However many
positions a class has, there are never more tiles than (N + C·(Q − 1)) / Q, so no shape depends on the data.

Legend: N positions, D hidden, V vocabulary, C classes, S words of a class, K = C·S ≥ V, G tiles, Q positions of a tile.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import bnce
from benchmarks.losses.exact_layer import ExactLayer, by_frequency
from benchmarks.losses.segments import sum_segments
from benchmarks.softmaxes.forms import cross_entropies
from bnce import rows
from bnce.losses.scores import log_normaliser, score_all, score_words
from bnce.machine.precision import product_dtype, product_in_float32, sum_dtype

NUM_CLASSES = 0  # about how many there are; 0: √V
MAX_NUMBERS = {"cpu": 2**25, "cuda": 2**30}  # of the rows of classes that are in work at a time
TILE_SIZES = (8, 64)  # the least and the most positions of a tile


def class_softmax(batch: bnce.OutputBatch, record: ClassLoss) -> Tensor:
    """Compute −ln p(target) of every position (T, B)."""
    words, hidden_ND, structure = batch.words(), batch.hidden_TBD.flatten(0, 1), batch.loss_state
    valid_N = None if words.valid_TB is None else words.valid_TB.flatten()
    class_N, word_N = structure.find(words.target_TB.flatten())
    of_classes_N = cross_entropies(hidden_ND.to(batch.weight_VD.dtype), batch.weight_VD, batch.bias_V, class_N)
    of_words_N: Tensor = _WordsOfClasses.apply(
        hidden_ND,
        structure.words_weight,
        structure.words_bias,
        *structure.lay(class_N, word_N, valid_N),
        structure.class_size,
        structure.vocab_size,
        batch.sparse,
        product_dtype(structure.words_weight),
        torch.is_grad_enabled(),
    )
    return words.where_counted(of_classes_N + of_words_N)


class Tiles(NamedTuple):
    """Positions by the class of their target."""

    class_G: Tensor
    position_GQ: Tensor
    word_GQ: Tensor  # the target's place in its class
    is_there_GQ: Tensor  # whether a place holds a position


class ClassSoftmax(ExactLayer):
    """The classes, and the rows of their words; those of the classes are the layer's own."""

    place_V: Tensor  # by frequency

    def __init__(self, hidden_size: int, noise: bnce.Noise) -> None:
        super().__init__(noise)
        V = self.vocab_size
        size = -(-V // (NUM_CLASSES or max(1, round(math.sqrt(V)))))
        # Matrix products on a GPU like multiples of 8.
        self.class_size = -(-size // 8) * 8 if size >= 64 else size
        self.num_rows = -(-V // self.class_size)
        self.hidden_size = hidden_size
        self.words_weight = nn.Parameter(torch.empty(self.num_rows * self.class_size, hidden_size))
        self.words_bias = nn.Parameter(torch.empty(self.num_rows * self.class_size))
        self.keep("place_V", None if self.probs_V is None else by_frequency(self.probs_V))
        self.place(None, 0)

    def start_(self, bias_R: Tensor) -> None:
        """Start at the unigram model."""
        assert self.probs_V is not None
        K = len(self.words_bias)
        share_CS = torch.from_numpy(np.pad(-np.sort(-self.probs_V), (0, K - self.vocab_size)))
        share_CS = share_CS.reshape(-1, self.class_size)
        share_C = share_CS.sum(1)
        bias_R.copy_(share_C.log())
        self.words_weight.uniform_(-0.05, 0.05)
        # The last rows, of no words, are never read.
        self.words_bias.copy_((share_CS / share_C.unsqueeze(1)).clamp(min=1e-30).log().flatten())

    def tables(self) -> dict[str, nn.Parameter]:
        """Name the rows of words."""
        return {"words_weight": self.words_weight, "words_bias": self.words_bias}

    def find(self, word: Tensor) -> tuple[Tensor, Tensor]:
        """Give each word's class and its place there."""
        place = self.place_V[word]
        return place // self.class_size, place % self.class_size

    def lay(self, class_N: Tensor, word_N: Tensor, valid_N: Tensor | None) -> Tiles:
        """Lay the positions that count into tiles."""
        N, C = len(class_N), self.num_rows
        least, most = TILE_SIZES
        Q = min(most, max(least, 2 ** math.ceil(math.log2(max(1, 2 * N / C)))))
        G = (N + min(C, N) * (Q - 1)) // Q
        device = class_N.device
        class_N = class_N if valid_N is None else torch.where(valid_N, class_N, C)
        sorted_N, order_N = torch.sort(class_N, stable=True)
        begin_E = torch.searchsorted(sorted_N, torch.arange(C + 1, device=device))
        begin_C, end_C = begin_E[:-1], begin_E[1:]
        num_tiles_C = (end_C - begin_C + Q - 1) // Q
        last_C = num_tiles_C.cumsum(0)
        tile_G = torch.arange(G, device=device)
        class_G = torch.searchsorted(last_C, tile_G, right=True).clamp(max=C - 1)
        first_G = begin_C[class_G] + (tile_G - last_C[class_G] + num_tiles_C[class_G]) * Q
        place_GQ = first_G.unsqueeze(1) + torch.arange(Q, device=device)
        # Tiles after the last one are the last class's, beyond its end.
        is_there_GQ = place_GQ < end_C[class_G].unsqueeze(1)
        position_GQ = order_N[place_GQ.clamp(max=max(0, N - 1))]
        return Tiles(class_G, position_GQ, torch.where(is_there_GQ, word_N[position_GQ], 0), is_there_GQ)

    def log_probs_in_class(self, hidden_ND: Tensor, class_M: Tensor, word_M: Tensor, num_each: int = 1) -> Tensor:
        """Compute ln p of words among those of their classes (M,), `num_each` per position, by plain operations."""
        tiles = self.lay(class_M, word_M, None)
        weight_CSD = self.words_weight.unflatten(0, (-1, self.class_size))
        bias_CS = self.words_bias.unflatten(0, (-1, self.class_size))
        log_prob_M = torch.zeros(len(class_M), dtype=sum_dtype(hidden_ND.dtype), device=hidden_ND.device)
        for part in _blocks(tiles, self.class_size * self.hidden_size):
            hidden_GQD = hidden_ND[part.position_GQ // num_each]
            score_GQS = _scores(hidden_GQD, weight_CSD[part.class_G], bias_CS[part.class_G], part, self.vocab_size)
            own_GQ = score_GQS.log_softmax(2).gather(2, part.word_GQ.unsqueeze(2)).squeeze(2)
            own_GQ = torch.where(part.is_there_GQ, own_GQ, 0.0)
            log_prob_M = log_prob_M.index_add(0, part.position_GQ.flatten(), own_GQ.flatten())
        return log_prob_M

    def log_probs(self, hidden_ND: Tensor, weight_RD: Tensor, bias_R: Tensor, words_NK: Tensor) -> Tensor:
        """Compute ln p of K words for each position, from the rows of their classes and no others."""
        class_NK, word_NK = self.find(words_NK)
        log_prob_NK = score_words(hidden_ND, weight_RD, bias_R, class_NK)
        log_prob_NK = log_prob_NK - log_normaliser(hidden_ND, weight_RD, bias_R).unsqueeze(1)
        own_M = self.log_probs_in_class(hidden_ND, class_NK.flatten(), word_NK.flatten(), max(1, words_NK.shape[1]))
        return log_prob_NK + own_M.reshape(words_NK.shape)

    def all_log_probs(self, hidden_ND: Tensor, weight_RD: Tensor, bias_R: Tensor) -> Tensor:
        """Compute ln p of every word for a few positions (N, V)."""
        class_NC = score_all(hidden_ND, weight_RD, bias_R).log_softmax(1)
        score_NK = score_all(hidden_ND, self.words_weight, self.words_bias)
        score_NK[:, self.vocab_size :] = -torch.inf
        own_NCS = score_NK.reshape(len(hidden_ND), self.num_rows, self.class_size).log_softmax(2)
        return (class_NC.unsqueeze(2) + own_NCS).flatten(1).index_select(1, self.place_V)

    @property
    def products_per_word(self) -> float:
        """A class among all, and a word among those of its class."""
        return float(self.hidden_size * (self.num_rows + self.class_size))


def _blocks(tiles: Tiles, numbers_per_tile: int) -> list[Tiles]:
    """Cut tiles into parts whose classes' rows fit into memory, and into caches."""
    size = max(1, MAX_NUMBERS.get(tiles.class_G.device.type, 2**25) // numbers_per_tile)
    return [Tiles(*parts) for parts in zip(*(tensor.split(size) for tensor in tiles), strict=True)]


def _scores(hidden_GQD: Tensor, weight_GSD: Tensor, bias_GS: Tensor, tiles: Tiles, vocab_size: int) -> Tensor:
    """Score the words of each tile's class (G, Q, S), in float32; −∞ beyond the last word."""
    S = bias_GS.shape[1]
    score_GQS = torch.bmm(hidden_GQD, weight_GSD.transpose(1, 2)).to(sum_dtype(hidden_GQD.dtype)) + bias_GS.unsqueeze(1)
    return score_GQS.masked_fill(_beyond(tiles.class_G, S, vocab_size), -torch.inf)


def _beyond(class_G: Tensor, class_size: int, vocab_size: int) -> Tensor:
    """Say which words of the classes there are not (G, 1, S)."""
    word_S = torch.arange(class_size, device=class_G.device)
    return (class_G.unsqueeze(1) * class_size + word_S >= vocab_size).unsqueeze(1)


class _WordsOfClasses(torch.autograd.Function):
    """Gives −ln p of each target among the words of its class (N,), with the gradients of their sum in one visit."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_KD: Tensor,
        bias_K: Tensor,
        class_G: Tensor,
        position_GQ: Tensor,
        word_GQ: Tensor,
        is_there_GQ: Tensor,
        class_size: int,
        vocab_size: int,
        sparse: bool,
        dtype: torch.dtype,
        wants_grad: bool,
    ) -> Tensor:
        tiles = Tiles(class_G, position_GQ, word_GQ, is_there_GQ)
        ctx.given = class_size, vocab_size, sparse, dtype
        needs_grad = wants_grad and any(ctx.needs_input_grad)
        loss_N, *ctx.of_sum = _words_of_classes(hidden_ND, weight_KD, bias_K, tiles, *ctx.given, None, needs_grad)
        ctx.save_for_backward(hidden_ND, weight_KD, bias_K, *tiles)
        return loss_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_KD, bias_K, *parts = ctx.saved_tensors
        tiles, (class_size, _, sparse, _), (grad_N,) = Tiles(*parts), ctx.given, grads
        if grad_N.stride() == (0,):  # of a sum
            found = [part * grad_N[0] for part in ctx.of_sum]
        else:
            _, *found = _words_of_classes(hidden_ND, weight_KD, bias_K, tiles, *ctx.given, grad_N, True)
        hidden_grad, weight_grad, bias_grad = found
        weight_grad, bias_grad = weight_grad.to(bias_K.dtype).flatten(0, 1), bias_grad.to(bias_K.dtype).flatten()
        if _by_row(tiles, bias_K, class_size, sparse):
            row_GS = tiles.class_G.unsqueeze(1) * class_size + torch.arange(class_size, device=bias_K.device)
            weight_grad = rows.table_gradient(weight_KD.shape, row_GS.flatten(), weight_grad)
            bias_grad = rows.table_gradient(bias_K.shape, row_GS.flatten(), bias_grad)
        return hidden_grad.to(hidden_ND.dtype), weight_grad, bias_grad, *[None] * 9


def _by_row(tiles: Tiles, bias_K: Tensor, class_size: int, sparse: bool) -> bool:
    """Tell whether so few classes can be among the targets that their rows alone get a gradient."""
    return sparse and 2 * len(tiles.class_G) <= len(bias_K) // class_size


def _words_of_classes(
    hidden_ND: Tensor,
    weight_KD: Tensor,
    bias_K: Tensor,
    tiles: Tiles,
    class_size: int,
    vocab_size: int,
    sparse: bool,
    dtype: torch.dtype,
    share_N: Tensor | None,
    needs_grad: bool,
) -> tuple[Tensor, ...]:
    """Compute the losses (N,) and the gradients of their sum, or of the sum weighted by shares."""
    D, C, wide = hidden_ND.shape[1], len(bias_K) // class_size, sum_dtype(dtype)
    by_row = _by_row(tiles, bias_K, class_size, sparse)
    with torch.autocast(hidden_ND.device.type, enabled=False):
        weight_CSD, bias_CS = weight_KD.view(C, class_size, D), bias_K.view(C, class_size)
        narrow_CSD = weight_CSD if by_row else weight_CSD.to(dtype)
        narrow_ND = hidden_ND.to(dtype)
        loss_N = torch.zeros(len(hidden_ND), dtype=wide, device=hidden_ND.device)
        hidden_grad_ND = torch.zeros(hidden_ND.shape, dtype=wide, device=hidden_ND.device)
        weight_grads: list[Tensor] = []
        bias_grads: list[Tensor] = []
        weight_grad: Tensor | None = None
        bias_grad: Tensor | None = None
        for part in _blocks(tiles, class_size * D):
            tile_GQD = narrow_ND[part.position_GQ]
            weight_GSD = narrow_CSD.index_select(0, part.class_G).to(dtype)
            score_GQS = product_in_float32(tile_GQD, weight_GSD.transpose(1, 2))
            score_GQS += bias_CS.index_select(0, part.class_G).unsqueeze(1)
            score_GQS.masked_fill_(_beyond(part.class_G, class_size, vocab_size), -torch.inf)
            log_prob_GQS = score_GQS.log_softmax(2)
            word_GQ1 = part.word_GQ.unsqueeze(2)
            own_GQ = log_prob_GQS.gather(2, word_GQ1).squeeze(2)
            loss_N.index_add_(0, part.position_GQ.flatten(), torch.where(part.is_there_GQ, -own_GQ, 0.0).flatten())
            if not needs_grad:
                continue
            error_GQS = log_prob_GQS.exp_().scatter_add_(2, word_GQ1, -torch.ones_like(own_GQ).unsqueeze(2))
            error_GQS *= part.is_there_GQ.unsqueeze(2)
            if share_N is not None:
                error_GQS *= share_N[part.position_GQ].unsqueeze(2)
            bias_grad_GS, error_GQS = error_GQS.sum(1), error_GQS.to(dtype)
            grad_GQD = product_in_float32(error_GQS, weight_GSD)
            hidden_grad_ND.index_add_(0, part.position_GQ.flatten(), grad_GQD.flatten(0, 1))
            weight_grad_GSD = product_in_float32(error_GQS.transpose(1, 2), tile_GQD)
            if by_row:
                weight_grads.append(weight_grad_GSD)
                bias_grads.append(bias_grad_GS)
            else:
                # The tiles of a class stand together.
                edge_E = torch.searchsorted(part.class_G, torch.arange(C + 1, device=bias_K.device))
                weight_grad = sum_segments(weight_grad_GSD, part.class_G, edge_E, weight_grad)
                bias_grad = sum_segments(bias_grad_GS, part.class_G, edge_E, bias_grad)
    if not needs_grad:
        return (loss_N,)
    if by_row:
        weight_grad, bias_grad = torch.cat(weight_grads), torch.cat(bias_grads)
    assert weight_grad is not None
    assert bias_grad is not None
    return loss_N, hidden_grad_ND, weight_grad, bias_grad


class ClassLoss(bnce.Loss, tag="class-softmax", frozen=True):
    """class softmax: exact; predicts the class of a word (about √V classes by frequency), then the word in its class"""

    code = f"{__name__}:class_softmax"
    structure = f"{__name__}:ClassSoftmax"


LOSS = ClassLoss
