"""A loss, a body and an optimiser that nobody has heard of: one file and one record each."""

from __future__ import annotations

from pathlib import Path

LOSS = '''
import torch
import torch.nn.functional as F

import bnce


def batch_softmax(batch):
    """A softmax over the targets of the batch alone."""
    T, B = batch.target_TB.shape
    weight_TBD, bias_TB = batch.output_rows(batch.target_TB)
    score_TBB = torch.matmul(batch.hidden_TBD, weight_TBD.transpose(1, 2)).float() + bias_TB.unsqueeze(1)
    return F.cross_entropy(score_TBB.flatten(0, 1), torch.arange(B).repeat(T), reduction="sum")


RECORD = bnce.Loss(
    name="batch-softmax",
    shown="batch softmax",
    help="a softmax over the batch",
    built_by="pretend_loss:batch_softmax",
    self_normalises=False,
    columns=lambda shape: shape.batch_size,
    batch_is_noise=True,
)
'''
BODY = """
import torch
from torch import nn

from bnce.kinds.bodies import Body as Record
from bnce.models.body import Body


class Gru(Body):
    def __init__(self, config, depth):
        super().__init__()
        self.cell = nn.GRU(config.embedding_size, config.hidden_size, num_layers=depth)
        self.depth, self.output_size = depth, config.hidden_size

    def initial_state(self, num_streams):
        like = next(self.parameters())
        return (torch.zeros(self.depth, num_streams, self.output_size, dtype=like.dtype, device=like.device),)

    def forward(self, embedded_LBE, state):
        hidden_TBD, after = self.cell(embedded_LBE, state[0])
        return hidden_TBD, (after.detach(),)


RECORD = Record(
    name="gru",
    shown="GRU",
    help="two GRU layers",
    built_by="pretend_body:Gru",
    options={"depth": 2},
    family="gru",
    layers="{embedding_size}–2×{hidden_size}(R)–V",
    sizes=("embedding_size", "hidden_size"),
    carries_state=True,
)
"""
OPTIMISER = """
from bnce.kinds.optimisers import Optimiser as Record
from bnce.optimisers import Optimiser


num_steps = 0


class Sign(Optimiser):
    def _step(self, gradients, clip):
        global num_steps
        num_steps += 1
        for name, (words_N, grad_ND) in gradients.touched.items():
            self.tables[name].index_add_(0, words_N, -0.1 * self.rate * grad_ND.sign())
        for name, grad_VD in gradients.dense.items():
            self.tables[name].sub_(0.1 * self.rate * grad_VD.sign())
        self.body.flat.sub_(0.1 * self.body_rate * gradients.body.sign())


RECORD = Record(
    name="sign",
    shown="sign SGD",
    help="steps of one size",
    built_by="pretend_optimiser:Sign",
    rates=("learning_rate", "body_learning_rate"),
)
"""


def write(directory: Path) -> None:
    """Write the three files."""
    for name, source in (("loss", LOSS), ("body", BODY), ("optimiser", OPTIMISER)):
        (directory / f"pretend_{name}.py").write_text(source, encoding="utf-8")
