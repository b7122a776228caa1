"""The whole network: an embedding table, a body, and the output layer.

Legend: T time steps, B streams, C context words that a chunk needs, L = C + T, E embedding, D hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bnce import rows
from bnce.models import build_body
from bnce.models.body import State
from bnce.noise import Noise
from bnce.output_layer import OutputLayer
from bnce.registry import BatchNce, Loss, ModelConfig

OUTPUT_PARTS = {"output.weight": "output_weight", "output.bias": "output_bias", "output.log_z": "log_z"}
STRUCTURE = "output.structure."


class LanguageModel(nn.Module):
    """Predicts each word of parallel streams from the words before it."""

    def __init__(self, model: ModelConfig, loss: Loss, noise: Noise) -> None:
        super().__init__()
        vocab_size = len(noise)
        reach = model.embedding_range
        self.embedding = nn.Parameter(torch.empty(vocab_size, model.embedding_size).uniform_(-reach, reach))
        self.sparse = True  # whether the embedding's gradient is row-wise
        self.body = build_body(model)
        self.output = OutputLayer(self.body.output_size, vocab_size, noise, loss, sparse=True)

    @property
    def num_context(self) -> int:
        """How many words before the first position a chunk's input must hold."""
        return self.body.num_context

    @property
    def num_parameters(self) -> int:
        """The paper's NoP."""
        return sum(self.num_parameters_by_part.values())

    @property
    def num_parameters_by_part(self) -> dict[str, int]:
        """The parameters of the embedding, the body, the output's weight and bias, and ln Z where it is learned."""
        counts: dict[str, int] = {}
        for name, parameter in self.named_parameters():
            part = OUTPUT_PARTS.get(name) or name.partition(".")[0]
            if name.startswith(STRUCTURE):
                part = "output_structure"
            counts[part] = counts.get(part, 0) + parameter.numel()
        return counts

    def tables(self) -> dict[str, nn.Parameter]:
        """Name the parameters with one row per word, or per choice between words; all others belong to the body."""
        return {
            "embedding": self.embedding,
            **{f"output.{name}": table for name, table in self.output.tables().items()},
        }

    def body_parameters(self) -> dict[str, nn.Parameter]:
        """Name the parameters whose size does not depend on the vocabulary."""
        tables = self.tables()
        return {name: parameter for name, parameter in self.named_parameters() if name not in tables}

    def initial_state(self, num_streams: int) -> State:
        """Make the state that a text starts from."""
        return self.body.initial_state(num_streams)

    def forward(self, input_LB: Tensor, state: State, reset_LB: Tensor | None = None) -> tuple[Tensor, State]:
        """Compute the last hidden layer (T, B, D) and the state after it; at resets a stream's text begins anew."""
        resets = () if reset_LB is None else (reset_LB,)
        hidden_TBD, state = self.body(rows.gather(self.embedding, input_LB, sparse=self.sparse), state, *resets)
        return hidden_TBD, state

    def loss_sum(
        self, input_LB: Tensor, target_TB: Tensor, state: State, reset_LB: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Sum the training loss over a chunk."""
        hidden_TBD, state = self(input_LB, state, reset_LB)
        return self.output.loss_sum(hidden_TBD, target_TB), state


def count_parameters(model: ModelConfig, vocab_size: int, loss: Loss | None = None) -> dict[str, int]:
    """Count the parameters of each part without allocating any: 1.6 billion of them are 6.4 GB."""
    if loss is None or not loss.structure:  # noise without values cannot be drawn from, and has no parameters
        loss = BatchNce(learn_log_z=getattr(loss, "learn_log_z", False))
    with torch.device("meta"):
        noise = Noise([1.0])
        for name in dict(noise.named_buffers()):
            noise._buffers[name] = torch.empty(vocab_size)  # a length but no values
        network = LanguageModel(model, loss, noise)
    return network.num_parameters_by_part
