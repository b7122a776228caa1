"""Next-item recommendation with every loss: one body, one loop, the same search; ranked among all items.

python benchmarks/items.py Beauty.txt.xz --losses softmax,chunk-bnce --rates 0.001 --seeds 1,2,3 --out items.jsonl

A file has one user per line: the user, then items in the order of time. A user's last item is the test, the one before
it validation, the rest is trained on. The body is a causal Transformer over item embeddings, which are tied to the
output rows. HR@10 and NDCG@10 rank the true item among all items. A run ends when validation has not improved for
--patience epochs, and its figures are those of its best epoch.

Legend: U users, L longest sequence, B users of a batch, N positions with a target, D hidden, V items (0 is padding).
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnce

LOSSES = ("softmax", "bce", "gbce", "in-batch", "sampled", "bnce", "adaptive", "chunk-bnce")
RANK = 10
NUM_SAMPLED = 1000  # K of adaptive B-NCE and of sampled softmax
GBCE_NEGATIVES, GBCE_TRUST = 256, 0.75  # Petrov and Macdonald (RecSys 2023)


class Body(nn.Module):
    """SASRec's: pre-norm causal self-attention over the items so far."""

    def __init__(self, length: int, size: int, num_layers: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(length, size) * 0.02)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            size, num_heads, 4 * size, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers, nn.LayerNorm(size), enable_nested_tensor=False)

    def forward(self, embedded_BLD: Tensor, is_item_BL: Tensor) -> Tensor:
        """Compute what is known after each item."""
        length = embedded_BLD.shape[1]
        future_LL = torch.ones(length, length, dtype=torch.bool, device=embedded_BLD.device).triu(1)
        # Padding stands before a sequence: letting it be seen keeps every row of attention finite, and it is all alike.
        hidden_BLD = self.dropout(embedded_BLD * math.sqrt(embedded_BLD.shape[-1]) + self.places[-length:])
        hidden_BLD = torch.where(is_item_BL.unsqueeze(2), hidden_BLD, 0.0)
        found: Tensor = self.layers(hidden_BLD, mask=future_LL, is_causal=True)
        return found


class Recommender(nn.Module):
    """Item rows, which embed the past and score the next item, and a body between them."""

    def __init__(self, counts_V: Tensor, loss: str, given: argparse.Namespace) -> None:
        super().__init__()
        num_items = len(counts_V)
        kind = loss if loss in ("softmax", "chunk-bnce") else "bnce"  # the others do not ask the layer for its loss
        num_noise = NUM_SAMPLED if loss == "adaptive" else 0
        # ln Z is that of a softmax over items whose scores start near zero.
        self.output = bnce.OutputLayer(
            given.size, num_items, counts_V.numpy(), loss=kind, num_noise=num_noise, log_z=math.log(num_items)
        )
        self.loss, self.num_items = loss, num_items
        with torch.no_grad():
            self.output.weight.normal_(std=0.02)
            if loss not in ("bnce", "adaptive", "chunk-bnce"):
                self.output.bias.zero_()
        self.body = Body(given.length, given.size, given.layers, given.heads, given.dropout)

    def forward(self, items_BL: Tensor) -> Tensor:
        """Compute the hidden layer after each item."""
        return self.body(F.embedding(items_BL, self.output.weight), items_BL > 0)

    def loss_of(self, items_BL: Tensor, target_BL: Tensor) -> Tensor:
        """Compute the mean loss over the positions that have a target."""
        valid_BL = target_BL > 0
        hidden_ND, target_N = self(items_BL)[valid_BL], target_BL[valid_BL]
        weight_VD, bias_V, N = self.output.weight, self.output.bias, len(target_N)
        if self.loss in ("softmax", "bnce", "adaptive"):
            return self.output(hidden_ND, target_N)
        if self.loss == "chunk-bnce":
            # A user's own items are no noise to the user. B-NCE above takes them as noise.
            return self.output(hidden_ND, target_N, streams=torch.nonzero(valid_BL)[:, 0])
        own_N = (hidden_ND * weight_VD[target_N]).sum(1) + bias_V[target_N]
        if self.loss in ("bce", "gbce"):
            num_negatives = 1 if self.loss == "bce" else GBCE_NEGATIVES
            drawn_NK = torch.randint(1, self.num_items, (N, num_negatives), device=hidden_ND.device)
            score_NK = torch.einsum("nd,nkd->nk", hidden_ND, weight_VD[drawn_NK]) + bias_V[drawn_NK]
            beta = 1.0
            if self.loss == "gbce":
                rate = num_negatives / (self.num_items - 2)
                beta = rate * (GBCE_TRUST * (1 - 1 / rate) + 1 / rate)
            return (beta * F.softplus(-own_N) + F.softplus(score_NK).sum(1)).mean()
        log_noise_V = self.output.noise.log_probs_V
        if self.loss == "in-batch":
            score_NN = hidden_ND @ weight_VD[target_N].t() + bias_V[target_N] - log_noise_V[target_N]
            same_NN = (target_N.unsqueeze(1) == target_N) & ~torch.eye(N, dtype=torch.bool, device=target_N.device)
            return F.cross_entropy(score_NN.masked_fill(same_NN, -torch.inf), torch.arange(N, device=target_N.device))
        drawn_K = self.output.noise.sample((NUM_SAMPLED,))
        offset_K = bias_V[drawn_K] - log_noise_V[drawn_K] - math.log(NUM_SAMPLED)
        score_NK = (hidden_ND @ weight_VD[drawn_K].t() + offset_K).masked_fill(
            drawn_K == target_N.unsqueeze(1), -torch.inf
        )
        own_N = own_N - log_noise_V[target_N] - math.log(NUM_SAMPLED)
        return (torch.logsumexp(torch.cat([own_N.unsqueeze(1), score_NK], 1), 1) - own_N).mean()


def read_sequences(path: Path) -> list[list[int]]:
    """Read every user's items."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="ascii") as file:
        return [[int(item) for item in line.split()[1:]] for line in file]


def left_padded(sequences: list[list[int]], length: int) -> Tensor:
    """Lay the last items of each sequence side by side, zeros before them."""
    table = np.zeros((len(sequences), length), dtype=np.int64)
    for row, items in zip(table, sequences, strict=True):
        kept = items[-length:]
        if kept:
            row[-len(kept) :] = kept
    return torch.from_numpy(table)


@torch.inference_mode()
def evaluate(model: Recommender, items_UL: Tensor, true_U: Tensor) -> tuple[float, float]:
    """Compute HR@10 and NDCG@10 of the true next items, ranked among all."""
    model.eval()
    hits = gain = 0.0
    for begin in range(0, len(items_UL), 1024):
        hidden_BD = model(items_UL[begin : begin + 1024])[:, -1]
        true_B1 = true_U[begin : begin + 1024].unsqueeze(1)
        score_BV = model.output.all_scores(hidden_BD)
        score_BV[:, 0] = -torch.inf
        rank_B = (score_BV > score_BV.gather(1, true_B1)).sum(1)
        inside_B = rank_B < RANK
        hits += float(inside_B.sum())
        gain += float(torch.where(inside_B, 1 / torch.log2(rank_B + 2.0), 0.0).sum())
    model.train()
    return hits / len(items_UL), gain / len(items_UL)


def train(path: Path, loss: str, rate: float, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train one recommender, and give its figures on test at the epoch that is best on validation."""
    torch.manual_seed(seed)
    device = torch.device(given.device)
    sequences = read_sequences(path)
    num_items = 1 + max(max(items) for items in sequences)
    parts = [items[:-2] for items in sequences]
    window_UL = left_padded(parts, given.length + 1).to(device)
    input_UL, target_UL = window_UL[:, :-1], window_UL[:, 1:].clone()
    target_UL[input_UL == 0] = 0  # the first item of a sequence has nothing before it
    counts_V = torch.bincount(target_UL.flatten().cpu(), minlength=num_items)
    counts_V[0] = 0
    valid = left_padded(parts, given.length).to(device), torch.tensor([items[-2] for items in sequences], device=device)
    test = (
        left_padded([items[:-1] for items in sequences], given.length).to(device),
        torch.tensor([items[-1] for items in sequences], device=device),
    )
    trained_U = torch.nonzero((target_UL > 0).any(1)).squeeze(1)
    model = Recommender(counts_V, loss, given).to(device)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=device.type == "cuda"
    )
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    best: dict[str, Any] = {"valid_ndcg": -1.0}
    train_seconds, num_steps, began = 0.0, 0, time.monotonic()
    for epoch in range(1, given.epochs + 1):
        begin = time.monotonic()
        order_U = trained_U[torch.randperm(len(trained_U)).to(device)]
        for users_B in order_U.split(given.batch):
            value = model.loss_of(input_UL[users_B], target_UL[users_B])
            optimiser.zero_grad(set_to_none=True)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimiser.step()
            num_steps += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        train_seconds += time.monotonic() - begin
        hits, ndcg = evaluate(model, *valid)
        if ndcg > best["valid_ndcg"]:
            found = dict(zip(("hr", "ndcg"), evaluate(model, *test), strict=True))
            best = {"epoch": epoch, "valid_hr": hits, "valid_ndcg": ndcg, **found}
        out_of_time = given.seconds and time.monotonic() - began > given.seconds
        if epoch - best["epoch"] >= given.patience or out_of_time or not math.isfinite(float(value.detach())):
            break
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {
        "set": path.name.partition(".")[0],
        "loss": loss,
        "rate": rate,
        "seed": seed,
        "epochs": epoch,
        **best,
        "seconds_per_epoch": train_seconds / epoch,
        "ms_per_step": 1000 * train_seconds / num_steps,
        "train_seconds_to_best": train_seconds * best["epoch"] / epoch,
        "peak_memory_bytes": memory,
        "num_items": num_items - 1,
        "ended": "time" if out_of_time else "patience" if epoch < given.epochs else "epochs",
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is asked for, and write a line per run as it ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--losses", default=",".join(LOSSES), help="losses, divided by commas (all)")
    parser.add_argument("--rates", default="0.001", help="learning rates, divided by commas (0.001)")
    parser.add_argument("--seeds", default="1", help="seeds, divided by commas (1)")
    parser.add_argument("--epochs", type=int, default=200, help="end a run after N epochs (200)")
    parser.add_argument("--patience", type=int, default=10, help="end a run after N epochs without improvement (10)")
    parser.add_argument("--seconds", type=float, default=0.0, help="end a run after N seconds; 0: never")
    parser.add_argument("--batch", type=int, default=256, help="users per step (256)")
    parser.add_argument("--length", type=int, default=50, help="read the last N items of a user (50)")
    parser.add_argument("--size", type=int, default=128, help="size of the hidden layer (128)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="add a JSON line per run to this file")
    given = parser.parse_args(argv)
    losses = given.losses.split(",")
    if unknown := [loss for loss in losses if loss not in LOSSES]:
        parser.error(f"--losses has {', '.join(unknown)}: choose from {', '.join(LOSSES)}")
    for path in given.files:
        for loss in losses:
            for rate in map(float, given.rates.split(",")):
                for seed in map(int, given.seeds.split(",")):
                    line = json.dumps(train(path, loss, rate, seed, given))
                    print(line, flush=True)
                    if given.out is not None:
                        with open(given.out, "a", encoding="utf-8") as file:
                            file.write(line + "\n")


if __name__ == "__main__":
    main()
