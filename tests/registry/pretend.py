"""A loss, a body and an optimiser that nobody has heard of: one file and one record each."""

from __future__ import annotations

from pathlib import Path

LOSS = '''
import torch
import torch.nn.functional as F

import bnce


def batch_softmax(batch, record):
    """A softmax over the targets of the batch alone."""
    T, B = batch.target_TB.shape
    weight_TBD, bias_TB = batch.output_rows(batch.target_TB)
    score_TBB = torch.matmul(batch.hidden_TBD, weight_TBD.transpose(1, 2)).float() + bias_TB.unsqueeze(1)
    loss_N = F.cross_entropy(score_TBB.flatten(0, 1), torch.arange(B).repeat(T), reduction="none")
    return batch.words().where_counted(loss_N)


@bnce.register
class BatchSoftmax(bnce.Loss, tag="batch-softmax", frozen=True):
    """batch softmax: a softmax over the batch"""

    code = "pretend_loss:batch_softmax"
    normalises = False
    batch_noise = "step"
'''
BODY = '''
import torch
from torch import nn

import bnce
from bnce.models.body import Body
from bnce.registry import ModelConfig


class Gru(Body):
    def __init__(self, embedding_size, hidden_size, dropout):
        super().__init__()
        self.cell = nn.GRU(embedding_size, hidden_size, num_layers=2)
        self.output_size = hidden_size

    def initial_state(self, num_streams):
        like = next(self.parameters())
        return (torch.zeros(2, num_streams, self.output_size, dtype=like.dtype, device=like.device),)

    def forward(self, embedded_LBE, state):
        hidden_TBD, after = self.cell(embedded_LBE, state[0])
        return hidden_TBD, (after.detach(),)


@bnce.register
class GruConfig(ModelConfig, tag="gru", frozen=True):
    """GRU: two GRU layers"""

    code = "pretend_body:Gru"
    layers = "{embedding_size}–2×{hidden_size}(R)–V"
'''
OPTIMISER = '''
import bnce
from bnce.optimisers.optimiser import Optimiser
from bnce.registry import OptimiserConfig


num_steps = 0


class Sign(Optimiser):
    def _step(self, gradients, clip):
        global num_steps
        num_steps += 1
        for name, (words_N, grad_ND) in gradients.rows.items():
            self.tables[name].index_add_(0, words_N, -0.1 * self.rate * grad_ND.sign())
        for name, grad_VD in gradients.dense.items():
            self.tables[name].sub_(0.1 * self.rate * grad_VD.sign())
        self.body.flat.sub_(0.1 * self.rate * gradients.body.sign())


@bnce.register
class SignConfig(OptimiserConfig, tag="sign", frozen=True):
    """sign SGD: steps of one size"""

    code = "pretend_optimiser:Sign"
    body_learning_rate: float = 0.004
'''


def write(directory: Path) -> None:
    """Write the three files."""
    for name, source in (("loss", LOSS), ("body", BODY), ("optimiser", OPTIMISER)):
        (directory / f"pretend_{name}.py").write_text(source, encoding="utf-8")
