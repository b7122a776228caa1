"""SASRec's body over sequences that lie end to end, and every loss of the comparison on top of it.

Legend: N places of a batch, W blocks of Q places (N = W·Q), H heads, D hidden, K drawn items, V items (0 is padding).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from item_data import BLOCK, Batch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import bnce
from bnce.rows import gather

LOSSES = {
    "softmax": "softmax over all items (full cross entropy)",
    "bce": "binary cross entropy, 1 negative",
    "gbce": "gBCE, 256 negatives, t = 0.75",
    "in-batch": "in-batch softmax with log-Q",
    "in-batch-others": "in-batch softmax with log-Q, own items left out",
    "sampled": "sampled softmax with log-Q, K = 1000",
    "bnce": "B-NCE",
    "adaptive": "adaptive B-NCE, K = 1000",
    "mixture": "adaptive B-NCE, K = 1000 drawn uniformly",
    "chunk-bnce": "chunk B-NCE, own items left out",
}
NUM_SAMPLED = 1000  # K of adaptive B-NCE and of sampled softmax
GBCE_NEGATIVES, GBCE_TRUST = 256, 0.75  # Petrov and Macdonald (RecSys 2023)


@dataclass(frozen=True)
class Shape:
    """The sizes of a body."""

    length: int = 50
    size: int = 128
    layers: int = 2
    heads: int = 2
    dropout: float = 0.4


class Layer(nn.Module):
    """Pre-norm causal self-attention within a sequence, then two dense layers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.norm_attention, self.norm_dense = nn.LayerNorm(shape.size), nn.LayerNorm(shape.size)
        self.projections, self.mixed = nn.Linear(shape.size, 3 * shape.size), nn.Linear(shape.size, shape.size)
        self.wide, self.narrow = nn.Linear(shape.size, 4 * shape.size), nn.Linear(4 * shape.size, shape.size)

    def forward(self, hidden_ND: Tensor, mask_W1QK: Tensor) -> Tensor:
        """Add what a place finds among the earlier items of its sequence."""
        attended_ND = self.mixed(self._attend(self.norm_attention(hidden_ND), mask_W1QK))
        hidden_ND = hidden_ND + self._drop(attended_ND)
        dense_ND = self.narrow(self._drop(F.gelu(self.wide(self.norm_dense(hidden_ND)))))
        return hidden_ND + self._drop(dense_ND)

    def _attend(self, hidden_ND: Tensor, mask_W1QK: Tensor) -> Tensor:
        """Let a place see its own block and the one before it: no sequence is longer than a block."""
        W, _, Q, _ = mask_W1QK.shape
        H = self.shape.heads
        all_WQ3HE = self.projections(hidden_ND).view(W, Q, 3, H, -1)
        pair = F.pad(all_WQ3HE[:, :, 1:], (0, 0, 0, 0, 0, 0, 0, 0, 1, 0))
        pair_WK2HE = torch.cat([pair[:-1], pair[1:]], 1)
        query_WHQE = all_WQ3HE[:, :, 0].transpose(1, 2)
        key_WHKE, value_WHKE = pair_WK2HE[:, :, 0].transpose(1, 2), pair_WK2HE[:, :, 1].transpose(1, 2)
        mask_WHQK = mask_W1QK.to(query_WHQE.dtype).expand(-1, H, -1, -1)
        dropout = self.shape.dropout if self.training else 0.0
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            found_WHQE = F.scaled_dot_product_attention(query_WHQE, key_WHKE, value_WHKE, mask_WHQK, dropout)
        return found_WHQE.transpose(1, 2).reshape(hidden_ND.shape)

    def _drop(self, values: Tensor) -> Tensor:
        return F.dropout(values, self.shape.dropout, self.training)


class Recommender(nn.Module):
    """Item rows, which embed the past and score the next item, and a body between them."""

    def __init__(self, noise: bnce.Noise | Tensor, loss: str, shape: Shape, *, sparse: bool = False) -> None:
        """`noise` is how often each item is a target; `sparse` gives item rows sparse gradients, but for a softmax."""
        super().__init__()
        if shape.length > BLOCK:
            raise ValueError(f"length is {shape.length}: a body sees at most {BLOCK} items back")
        num_items = len(noise)
        is_softmax = loss.startswith("softmax")
        kind = loss if is_softmax or loss == "chunk-bnce" else "bnce"  # the others do not ask the layer for its loss
        drawn = {"num_noise": NUM_SAMPLED} if loss in ("adaptive", "mixture") else {}
        # ln Z is that of a softmax over items whose scores start near zero.
        record = bnce.LOSSES[kind](log_z=math.log(num_items), **drawn)
        self.output = bnce.OutputLayer(
            shape.size,
            num_items,
            noise,
            loss=record,
            sparse=sparse and not is_softmax,
            drawn=bnce.noise.uniform(num_items) if loss == "mixture" else None,
        )
        self.loss, self.num_items, self.shape = loss, num_items, shape
        self.places = nn.Parameter(torch.empty(shape.length, shape.size))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.size)

    @property
    def tables(self) -> list[nn.Parameter]:
        """The parameters with a row per item."""
        return [self.output.weight, self.output.bias]

    @torch.no_grad()
    def reset(self) -> None:
        """Start anew: small item rows; those losses that know p_n begin at the popularity of items."""
        self.output.weight.normal_(std=0.02)
        self.output.bias.zero_()
        if self.loss in ("bnce", "adaptive", "mixture", "chunk-bnce"):
            self.output.bias.copy_(self.output.noise.log_probs_V).add_(self.output.log_z)
        self.places.normal_(std=0.02)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight)
                part.bias.zero_()
            elif isinstance(part, nn.LayerNorm):
                part.reset_parameters()

    def forward(self, batch: Batch) -> Tensor:
        """Compute the hidden layer after each item."""
        embedded_ND = self._rows(self.output.weight, batch.item_N) * math.sqrt(self.shape.size)
        hidden_ND = embedded_ND + self.places.index_select(0, batch.place_N)
        hidden_ND = F.dropout(hidden_ND, self.shape.dropout, self.training)
        mask_W1QK = attention_mask(batch.user_N)
        for layer in self.layers:
            hidden_ND = layer(hidden_ND, mask_W1QK)
        normed_ND: Tensor = self.norm(hidden_ND)
        return normed_ND

    def loss_of(self, batch: Batch) -> Tensor:
        """Compute the mean loss over the places that have a target."""
        hidden_ND, target_N = self(batch), batch.target_N
        if self.loss in ("softmax", "softmax-plain", "bnce", "adaptive", "mixture", "chunk-bnce"):
            users_N = batch.user_N if self.loss == "chunk-bnce" else None
            loss: Tensor = self.output(hidden_ND, target_N, streams=users_N)
            return loss
        valid_N, known_N = target_N >= 0, target_N.clamp(min=0)
        if self.loss in ("bce", "gbce"):
            loss_N = self._binary(hidden_ND, known_N)
        elif self.loss == "sampled":
            loss_N = self._sampled(hidden_ND, known_N)
        else:
            loss_N = self._in_batch(hidden_ND, known_N, valid_N, batch.user_N)
        return torch.where(valid_N, loss_N, 0.0).sum() / valid_N.sum().clamp(min=1)

    def _rows(self, table_VD: Tensor, words: Tensor) -> Tensor:
        return gather(table_VD, words, sparse=self.output.sparse)

    def _own(self, hidden_ND: Tensor, target_N: Tensor) -> Tensor:
        weight_ND, bias_N = self._rows(self.output.weight, target_N), self._rows(self.output.bias, target_N)
        return (hidden_ND.float() * weight_ND).sum(1) + bias_N

    def _binary(self, hidden_ND: Tensor, target_N: Tensor) -> Tensor:
        """Compute binary cross entropy with uniform negatives, as published: drawn for every place."""
        K = 1 if self.loss == "bce" else GBCE_NEGATIVES
        drawn_NK = torch.randint(1, self.num_items, (len(target_N), K), device=hidden_ND.device)
        weight_VD, bias_V = self.output.weight, self.output.bias
        if not self.output.sparse and 2 * self.num_items < K * self.shape.size:
            # With few items, a score of every one costs less than K rows of each place.
            score_NK = F.linear(hidden_ND, weight_VD).gather(1, drawn_NK)
        else:
            score_NK = torch.bmm(self._rows(weight_VD, drawn_NK), hidden_ND.unsqueeze(2)).squeeze(2)
        score_NK = score_NK.float() + self._rows(bias_V, drawn_NK)
        beta = 1.0
        if self.loss == "gbce":
            rate = K / (self.num_items - 2)
            beta = rate * (GBCE_TRUST * (1 - 1 / rate) + 1 / rate)
        return beta * F.softplus(-self._own(hidden_ND, target_N)) + F.softplus(score_NK).sum(1)

    def _in_batch(self, hidden_ND: Tensor, target_N: Tensor, valid_N: Tensor, user_N: Tensor) -> Tensor:
        """Compute a softmax over the targets of the batch, each score less ln p of its item."""
        bias_N = self._rows(self.output.bias, target_N) - self.output.noise.log_prob(target_N)
        score_NN = torch.mm(hidden_ND, self._rows(self.output.weight, target_N).t()).float() + bias_N
        left_out_NN = (target_N.unsqueeze(1) == target_N) | ~valid_N
        if self.loss == "in-batch-others":
            left_out_NN = left_out_NN | (user_N.unsqueeze(1) == user_N)
        left_out_NN.fill_diagonal_(False)
        own_N = torch.arange(len(target_N), device=target_N.device)
        return F.cross_entropy(score_NN.masked_fill(left_out_NN, -torch.inf), own_N, reduction="none")

    def _sampled(self, hidden_ND: Tensor, target_N: Tensor) -> Tensor:
        """Compute a softmax over the target and K items that are drawn by popularity, the same for every place."""
        noise, log_num = self.output.noise, math.log(NUM_SAMPLED)
        drawn_K = noise.sample((NUM_SAMPLED,))
        offset_K = self._rows(self.output.bias, drawn_K) - noise.log_prob(drawn_K) - log_num
        score_NK = torch.mm(hidden_ND, self._rows(self.output.weight, drawn_K).t()).float() + offset_K
        score_NK = score_NK.masked_fill(drawn_K == target_N.unsqueeze(1), -torch.inf)
        own_N = self._own(hidden_ND, target_N) - noise.log_prob(target_N) - log_num
        return torch.logaddexp(own_N, torch.logsumexp(score_NK, 1)) - own_N


def attention_mask(user_N: Tensor) -> Tensor:
    """Let a place see the earlier places of its own user, in its block and the one before it: 0, elsewhere −∞."""
    user_WQ = user_N.view(-1, BLOCK)
    before_WQ = F.pad(user_WQ, (0, 0, 1, 0), value=-2)[:-1]
    same_WQK = user_WQ.unsqueeze(2) == torch.cat([before_WQ, user_WQ], 1).unsqueeze(1)
    place_K = torch.arange(2 * BLOCK, device=user_N.device)
    sees_WQK = same_WQK & (place_K <= place_K[BLOCK:].unsqueeze(1))
    mask_WQK = torch.zeros(sees_WQK.shape, device=user_N.device).masked_fill(~sees_WQK, -torch.inf)
    return mask_WQK.unsqueeze(1)
