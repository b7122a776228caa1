"""Next-item recommendation with bnce.OutputLayer: a small SASRec whose item table is also its output layer.

python examples/recommend.py --steps 100
python examples/recommend.py --data Beauty.txt.xz --steps 2000 --length 50

A data file has one user per line: the user's name, then item numbers (1 or more) in the order of time, divided by
spaces; it can be compressed with xz. A user's last item is the test. Without a file the sequences are made up: each
item has 20 possible next items. HR@10 is the share of users whose test item is among the ten best of all items; with
the made-up sequences no model can expect more than 0.5.

Legend: U users, L longest sequence, B users of a batch, N positions with a target, D hidden, V items (0 is padding).
"""

from __future__ import annotations

import argparse
import lzma
import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnce


class Recommender(nn.Module):
    """Causal self-attention over the items so far, and one table of items for input and output."""

    def __init__(self, counts_V: Tensor, length: int, size: int, loss: str) -> None:
        super().__init__()
        # With ln Z = ln V, scores near zero are normalised from the start.
        log_z = math.log(len(counts_V))
        self.items = bnce.OutputLayer(size, len(counts_V), counts_V, bnce.LOSSES[loss](log_z=log_z), sparse=True)
        self.places = nn.Parameter(torch.randn(length, size) * 0.02)
        layer = nn.TransformerEncoderLayer(size, 2, 4 * size, 0.2, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(size), enable_nested_tensor=False)

    def forward(self, item_BL: Tensor) -> Tensor:
        """Compute what is known after each item."""
        embedded_BLD = F.embedding(item_BL, self.items.weight, sparse=True) * math.sqrt(self.items.hidden_size)
        embedded_BLD = torch.where(item_BL.unsqueeze(2) > 0, embedded_BLD + self.places, 0.0)
        future_LL = nn.Transformer.generate_square_subsequent_mask(item_BL.shape[1], device=item_BL.device)
        hidden_BLD: Tensor = self.body(embedded_BLD, mask=future_LL, is_causal=True)
        return hidden_BLD

    def loss(self, item_BL: Tensor, target_BL: Tensor) -> Tensor:
        """Compute the mean loss of the positions that have a target: (N, D), with the padding left out."""
        counts_BL = (item_BL > 0) & (target_BL > 0)
        hidden_ND, target_N = self(item_BL)[counts_BL], target_BL[counts_BL]
        if self.items.loss_name != "chunk-bnce":
            return self.items(hidden_ND, target_N)
        # Which user each position belongs to: the items of other users are noise, the user's own are not.
        user_N = torch.nonzero(counts_BL)[:, 0]
        return self.items(hidden_ND, target_N, streams=user_N)


def read_sequences(path: Path) -> list[list[int]]:
    """Read every user's items."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
        return [[int(item) for item in line.split()[1:]] for line in file]


def make_sequences(num_users: int, num_items: int) -> list[list[int]]:
    """Make users who walk through the catalogue by steps of 1 to 20, each from a place of their own."""
    sequences = []
    for length in torch.randint(5, 12, (num_users,)).tolist():
        steps = torch.randint(1, 21, (length,)).cumsum(0)
        sequences.append((1 + (torch.randint(num_items, ()) + steps) % num_items).tolist())
    return sequences


def left_padded(sequences: list[list[int]], length: int) -> Tensor:
    """Lay the last items of each sequence side by side, zeros before them."""
    return torch.tensor([[0] * (length - len(items)) + items[-length:] for items in sequences])


@torch.inference_mode()
def hit_rate(model: Recommender, item_UL: Tensor, true_U: Tensor, rank: int = 10) -> float:
    """Compute the share of users whose true next item is among the best of all items."""
    model.eval()
    hits = 0
    for item_BL, true_B in zip(item_UL.split(1024), true_U.split(1024), strict=True):
        score_BV = model.items.all_scores(model(item_BL)[:, -1])
        score_BV[:, 0] = -torch.inf
        hits += int((score_BV.topk(rank).indices == true_B.unsqueeze(1)).sum())
    model.train()
    return hits / len(item_UL)


def main(argv: Sequence[str] | None = None) -> float:
    """Train a recommender, and print its hit rate."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, metavar="FILE", help="Sequences, one user per line (made up without it).")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="Train for N steps (100).")
    parser.add_argument("--loss", default="chunk-bnce", help="Loss: chunk-bnce, bnce or softmax (chunk-bnce).")
    parser.add_argument("--size", type=int, default=64, metavar="D", help="Size of the hidden layer (64).")
    parser.add_argument("--length", type=int, default=12, metavar="L", help="Read the last L items of a user (12).")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda.")
    given = parser.parse_args(argv)
    torch.manual_seed(1)
    sequences = make_sequences(2000, 1000) if given.data is None else read_sequences(given.data)
    num_rows = 1 + max(max(items) for items in sequences)
    trained_UL = left_padded([items[:-1] for items in sequences], given.length + 1).to(given.device)
    true_U = torch.tensor([items[-1] for items in sequences], device=given.device)
    counts_V = torch.bincount(trained_UL[:, 1:].flatten().cpu(), minlength=num_rows)
    counts_V[0] = 0  # padding is never a target

    model = Recommender(counts_V, given.length, given.size, given.loss).to(given.device)
    body = [model.places, *model.body.parameters()]
    by_row = bnce.RowwiseAdam([model.items.weight, model.items.bias], lr=2e-3)
    by_adam = torch.optim.AdamW(body, lr=2e-3)
    for step in range(1, given.steps + 1):
        user_BL = trained_UL[torch.randint(len(trained_UL), (128,), device=given.device)]
        loss = model.loss(user_BL[:, :-1], user_BL[:, 1:])
        loss.backward()
        bnce.clip_grad_norm_(model.parameters(), max_norm=5.0)
        for optimiser in (by_row, by_adam):
            optimiser.step()
            optimiser.zero_grad()
        if step % 50 == 0 or step == given.steps:
            print(f"step {step:,}: loss {loss.item():.3f}", flush=True)
    found = hit_rate(model, trained_UL[:, 1:], true_U)
    print(f"test HR@10 {found:.4f} of {num_rows - 1:,} items")
    return found


if __name__ == "__main__":
    main()
