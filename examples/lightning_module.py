"""A Lightning module that ends in bnce.OutputLayer, with two optimisers: one by row for the tables, Adam for the body.

python examples/lightning_module.py --steps 200

Needs Lightning (pip install lightning). Lightning steps several optimisers only where the module does it itself
(automatic_optimization = False), and it cannot clip sparse gradients: bnce.clip_grad_norm_ does. The sequences are made
up: each class has four possible next classes, so no model can reach a perplexity below 4.

Legend: B sequences, T time steps, D hidden, V classes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import bnce


class SequenceModel(lightning.LightningModule):
    """An LSTM over sequences of classes."""

    def __init__(self, counts_V: Tensor, size: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.embedding = nn.Embedding(len(counts_V), size, sparse=True)
        self.body = nn.LSTM(size, size, batch_first=True)
        self.head = bnce.OutputLayer(size, len(counts_V), counts_V, sparse=True, batch_first=True)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Train the tables by row, the body by Adam."""
        tables = [self.embedding.weight, self.head.weight, self.head.bias]
        return [bnce.RowwiseAdam(tables, lr=1e-2), torch.optim.Adam(self.body.parameters(), lr=1e-2)]

    def training_step(self, batch_BT: Tensor, batch_idx: int) -> None:
        """Train on one batch."""
        hidden_BTD, _ = self.body(self.embedding(batch_BT[:, :-1]))
        loss = self.head(hidden_BTD, batch_BT[:, 1:])
        self.manual_backward(loss)
        bnce.clip_grad_norm_(self.parameters(), max_norm=5.0)
        for optimiser in self.optimizers():
            optimiser.step()
            optimiser.zero_grad()
        if batch_idx % 25 == 24:
            print(f"epoch {self.current_epoch + 1}, batch {batch_idx + 1}: loss {loss.item():.3f}", flush=True)

    def validation_step(self, batch_BT: Tensor, batch_idx: int) -> None:
        """Measure the perplexity with the full softmax."""
        hidden_BTD, _ = self.body(self.embedding(batch_BT[:, :-1]))
        log_probs_BT = self.head.log_probs(hidden_BTD, batch_BT[:, 1:])
        self.log("perplexity", (-log_probs_BT.mean()).exp(), batch_size=len(batch_BT))


def make_sequences(num_sequences: int, length: int, num_classes: int) -> Tensor:
    """Make sequences in which the next class depends on the class before it."""
    steps = [torch.randint(num_classes, (num_sequences,))]
    while len(steps) < length:
        steps.append((7 * steps[-1] + torch.randint(4, (num_sequences,))) % num_classes)
    return torch.stack(steps, dim=1)


def main(argv: Sequence[str] | None = None) -> float:
    """Train a model, and print its perplexity on sequences it has not seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="Train for N steps (200).")
    parser.add_argument("--classes", type=int, default=1000, metavar="V", help="Number of classes (1000).")
    given = parser.parse_args(argv)
    torch.manual_seed(1)
    data = make_sequences(64 * 51, 17, given.classes)
    valid, train = data[:64], data[64:]
    counts_V = torch.bincount(train[:, 1:].flatten(), minlength=given.classes) + 1
    # Lightning counts a step per optimiser.
    trainer = lightning.Trainer(
        max_steps=2 * given.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = SequenceModel(counts_V, 64)
    trainer.fit(model, DataLoader(train, batch_size=64, shuffle=True))
    (figures,) = trainer.validate(model, DataLoader(valid, batch_size=64), verbose=False)
    print(f"validation perplexity {figures['perplexity']:.2f}")
    return figures["perplexity"]


if __name__ == "__main__":
    main()
