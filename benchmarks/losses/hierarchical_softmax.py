"""Hierarchical softmax (Morin and Bengio, 2005; Mnih and Hinton, 2009): a word is a path in Huffman's tree.

Every inner node n has a row and a bias. With the choices b ∈ {0, 1} on the path to a word:

    p(w) = Π_{(n, b) on the path of w} σ((2b − 1) · (h·w_n + c_n))

Paths are short for frequent words, so a position needs about as many choices as words have bits of entropy: 10 or so.
The first H nodes are on nearly every path: they are scored for all positions by one matrix product. The choices below
them, a few per position, are laid end to end over the chunk, without padding, in as many places as a chunk of the text
needs at most. So shapes do not depend on the data. Rows of nodes that no path of the chunk has are not touched.

Legend: N positions, D hidden, V vocabulary, R = V − 1 inner nodes, H of them at the top, L choices of the longest path
at the top, P places for choices below, F choices below the top of all words.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import bnce
from benchmarks.losses import segments
from benchmarks.losses.exact_layer import ExactLayer
from benchmarks.losses.huffman import Tree, build_tree
from bnce import rows
from bnce.losses.scores import score_all
from bnce.machine.precision import at_least_float32

NUM_TOP = 256  # H: few enough for a CPU, and enough that a chunk has a lower node at most some dozens of times
BLOCK_NUMBERS = 2**24  # of gathered rows, where the log-probabilities of many words are asked for


def hierarchical_softmax(batch: bnce.OutputBatch, record: HierarchicalLoss) -> Tensor:
    """Compute −ln p(target) of every position (T, B)."""
    words, structure = batch.words(), batch.loss_state
    given = batch.hidden_TBD.flatten(0, 1), batch.weight_VD, batch.bias_V, words.target_TB.flatten()
    valid_N = None if words.valid_TB is None else words.valid_TB.flatten()
    return words.where_counted(structure.losses(*given, valid_N, sparse=batch.sparse))


class HierarchicalSoftmax(ExactLayer):
    """Huffman's tree over the counts of words, cut below its most frequent nodes."""

    parts = "list"
    exit_V: Tensor  # the last choice at the top
    top_EL: Tensor  # by that choice: all choices at the top, −1 beyond the last
    begin_V: Tensor  # where the choices of a word below the top begin
    length_V: Tensor  # and how many they are
    below_F: Tensor  # the choices below the top, word by word
    choice_V: Tensor  # the last choice of each word
    choice_R: Tensor  # and on the way to each inner node
    level_R: Tensor  # inner nodes by their distance from the root

    def __init__(self, hidden_size: int, noise: bnce.Noise) -> None:
        super().__init__(noise)
        V = self.vocab_size
        if V < 2:
            raise bnce.UserError(f"hierarchical-softmax chooses between words, but vocab_size is {V}: give 2 or more.")
        self.hidden_size, self.num_rows, self.num_top = hidden_size, V - 1, min(NUM_TOP, V - 1)
        self.level_sizes: list[int] = []
        if self.probs_V is None:
            for name in ("exit_V", "top_EL", "begin_V", "length_V", "below_F", "choice_V", "choice_R", "level_R"):
                self.keep(name, None)
            self.place(None, 1)
            return
        self.tree = build_tree(self.probs_V)
        length_V = self._keep_paths(self.tree)
        self._keep_levels(self.tree)
        self.place(length_V.astype(np.int64)[None], 1)

    def _keep_paths(self, tree: Tree) -> np.ndarray:
        """Keep the choices of all words, at the top and below; returns how many are below."""
        path_F, length_V = tree.paths()
        end_V = np.cumsum(length_V)
        # A node's number is above its parent's, so the choices at the top come first on every path.
        is_top_F = path_F < 2 * self.num_top
        num_top_V = np.add.reduceat(is_top_F, end_V - length_V, dtype=np.int64)
        exit_V = path_F[end_V - length_V + num_top_V - 1]
        top_EL = np.full((2 * self.num_top, int(num_top_V.max())), -1, dtype=np.int32)
        _, word_E = np.unique(exit_V, return_index=True)
        for word in word_E:
            begin = end_V[word] - length_V[word]
            top_EL[exit_V[word], : num_top_V[word]] = path_F[begin : begin + num_top_V[word]]
        below_V = length_V - num_top_V
        below_F = np.append(path_F[~is_top_F], np.int32(0))  # one more, for places that hold no choice
        self.keep("exit_V", exit_V)
        self.keep("top_EL", top_EL)
        self.keep("begin_V", np.cumsum(below_V) - below_V)
        self.keep("length_V", below_V.astype(np.int32))
        self.keep("below_F", below_F)
        return below_V

    def _keep_levels(self, tree: Tree) -> None:
        """Keep the tree as it is walked from the root down, a level at a time."""
        depth_R, parent_R = np.zeros(self.num_rows, dtype=np.int64), tree.choice_R >> 1
        level = np.flatnonzero(parent_R == 0)
        above = np.zeros(self.num_rows, dtype=bool)
        while len(level):
            depth_R[level] += 1 + depth_R[parent_R[level]]
            above[:] = False
            above[level] = True
            level = np.flatnonzero((parent_R >= 0) & above[np.maximum(parent_R, 0)])
        self.level_sizes = [int(size) for size in np.bincount(depth_R)]
        self.keep("choice_V", tree.choice_V.astype(np.int32))
        self.keep("choice_R", np.maximum(tree.choice_R, 0).astype(np.int32))
        self.keep("level_R", np.argsort(depth_R, kind="stable"))

    def start_(self, bias_R: Tensor) -> None:
        """Start at the unigram model: every node chooses by the shares of the words below it."""
        share_R1, share_R0 = self.tree.share_R1, self.tree.share_R - self.tree.share_R1
        bias_R.copy_(torch.from_numpy(np.log(share_R1) - np.log(share_R0)))

    def losses(
        self,
        hidden_ND: Tensor,
        weight_RD: Tensor,
        bias_R: Tensor,
        word_M: Tensor,
        valid_M: Tensor | None = None,
        position_M: Tensor | None = None,
        *,
        sparse: bool = False,
        is_exact: bool = False,
    ) -> Tensor:
        """Compute −ln p of words (M,) at these positions; 0 where they do not count.

        Without `position_M` each has a position of its own. `is_exact` counts the places for choices, for which a GPU's
        host has to wait.
        """
        hidden_ND = hidden_ND.to(weight_RD.dtype)
        # Below the top: the choices of all words end to end, in P places.
        length_M = self.length_V[word_M].long()
        length_M = length_M if valid_M is None else torch.where(valid_M, length_M, 0)
        end_M, needed = length_M.cumsum(0), length_M.sum()
        size = int(needed) if is_exact else self.choose_sizes(needed.reshape(1), len(word_M))[0]
        place_P = torch.arange(size, device=word_M.device)
        is_there_P = place_P < needed
        owner_P = torch.searchsorted(end_M, place_P, right=True).clamp(max=max(0, len(word_M) - 1))
        begin_M = self.begin_V[word_M] - end_M + length_M
        choice_P = self.below_F[torch.where(is_there_P, begin_M[owner_P] + place_P, len(self.below_F) - 1)].long()
        # All rows of the step are read at once, so that a table has one gradient.
        row_U = torch.cat([torch.arange(self.num_top, device=word_M.device), choice_P >> 1])
        (weight_HD, weight_PD), (bias_H, bias_P) = (
            rows.gather(table, row_U, sparse=sparse).split([self.num_top, size]) for table in (weight_RD, bias_R)
        )
        loss_M = self._at_top(score_all(hidden_ND, weight_HD, bias_H), word_M, position_M)
        loss_M = loss_M if valid_M is None else torch.where(valid_M, loss_M, 0.0)
        # Those of one word stand together, so that they can be added up in a fixed order.
        edge_E = F.pad(end_M, (1, 0)).clamp(max=size)
        if position_M is None:
            hidden_PD = segments.repeat(hidden_ND, owner_P, edge_E)
        else:
            hidden_PD = hidden_ND.index_select(0, position_M[owner_P])
        score_P = at_least_float32(hidden_PD * weight_PD).sum(1) + bias_P
        loss_P = torch.where(is_there_P, F.softplus(_against(score_P, choice_P)), 0.0)
        loss_M = loss_M + segments.add_up(loss_P, owner_P, edge_E)
        return loss_M if is_exact else loss_M + torch.where(needed > size, torch.nan, 0.0)

    def _at_top(self, score_NH: Tensor, word_M: Tensor, position_M: Tensor | None) -> Tensor:
        choice_ML = self.top_EL[self.exit_V[word_M].long()].long()
        node_ML = choice_ML.clamp(min=0) >> 1
        score_ML = score_NH.gather(1, node_ML) if position_M is None else score_NH[position_M.unsqueeze(1), node_ML]
        return torch.where(choice_ML >= 0, F.softplus(_against(score_ML, choice_ML)), 0.0).sum(1)

    def log_probs(self, hidden_ND: Tensor, weight_RD: Tensor, bias_R: Tensor, words_NK: Tensor) -> Tensor:
        """Compute ln p of K words for each position, from the rows of their nodes and no others."""
        assert self.places_CV is not None
        num_words = max(1, BLOCK_NUMBERS // (self.hidden_size * max(1, int(self.places_CV.max()))))
        num_rows = max(1, num_words // max(1, words_NK.shape[1]))
        parts = [
            torch.cat([self._log_probs(hidden, weight_RD, bias_R, part) for part in words.split(num_words, 1)], 1)
            for hidden, words in zip(hidden_ND.split(num_rows), words_NK.split(num_rows), strict=True)
        ]
        return torch.cat(parts)

    def _log_probs(self, hidden_ND: Tensor, weight_RD: Tensor, bias_R: Tensor, words_NK: Tensor) -> Tensor:
        position_NK = torch.arange(len(words_NK), device=words_NK.device).unsqueeze(1).expand_as(words_NK)
        flat = words_NK.reshape(-1), None, position_NK.reshape(-1)
        return -self.losses(hidden_ND, weight_RD, bias_R, *flat, is_exact=True).reshape(words_NK.shape)

    def all_log_probs(self, hidden_ND: Tensor, weight_RD: Tensor, bias_R: Tensor) -> Tensor:
        """Compute ln p of every word for a few positions (N, V), from the root down."""
        score_NR = score_all(hidden_ND.to(weight_RD.dtype), weight_RD, bias_R)
        log_prob_NR = torch.zeros_like(score_NR)
        levels = self.level_R.split(self.level_sizes)
        for row_r in itertools.islice(levels, 1, None):
            log_prob_NR = log_prob_NR.index_copy(1, row_r, self._chosen(log_prob_NR, score_NR, self.choice_R[row_r]))
        return self._chosen(log_prob_NR, score_NR, self.choice_V)

    @staticmethod
    def _chosen(log_prob_NR: Tensor, score_NR: Tensor, choice_M: Tensor) -> Tensor:
        """Give ln p of what these choices lead to."""
        node_M = choice_M.long() >> 1
        loss_NM = F.softplus(_against(score_NR.index_select(1, node_M), choice_M))
        return log_prob_NR.index_select(1, node_M) - loss_NM

    @property
    def products_per_word(self) -> float:
        """The top for every position, and the choices below that a word has on average."""
        assert self.probs_V is not None
        assert self.places_CV is not None
        return self.hidden_size * (self.num_top + float(self.probs_V @ self.places_CV[0]))


def _against(score: Tensor, choice: Tensor) -> Tensor:
    """Give the score of the other choice: with the sign turned where the bit is 1."""
    return torch.where(choice % 2 == 1, -score, score)


class HierarchicalLoss(bnce.Loss, tag="hierarchical-softmax", frozen=True):
    """hierarchical softmax: exact; a word is a path of binary choices in a Huffman tree"""

    code = f"{__name__}:hierarchical_softmax"
    structure = f"{__name__}:HierarchicalSoftmax"


LOSS = HierarchicalLoss
