"""A small Transformer language model that ends in bnce.OutputLayer, in a plain PyTorch loop.

python examples/transformer.py --steps 300

The embedding and the output layer have sparse gradients and are trained by bnce.RowwiseAdam, so a step reads and writes
only the rows of its own words. The rest is trained by AdamW. The text is made up: every word has ten possible
next words, so no model can reach a perplexity below 10. PPLf is the perplexity with the full softmax, PPLn with the
constant Z in its place, both per word.

Legend: B pieces of text, T words of a piece, D hidden, V words.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import bnce

NUM_NEXT = 10


class Transformer(nn.Module):
    """Word ids to hidden states; what usually ends in nn.Linear(D, V)."""

    def __init__(self, vocab_size: int, size: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size, sparse=True)
        self.places = nn.Parameter(torch.randn(length, size))
        layer = nn.TransformerEncoderLayer(size, 4, 4 * size, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(size), enable_nested_tensor=False)

    def forward(self, word_BT: Tensor) -> Tensor:
        """Compute what is known after each word."""
        future_TT = nn.Transformer.generate_square_subsequent_mask(word_BT.shape[1], device=word_BT.device)
        hidden_BTD: Tensor = self.layers(self.embedding(word_BT) + self.places, mask=future_TT, is_causal=True)
        return hidden_BTD


def make_text(num_pieces: int, num_words: int, vocab_size: int) -> Tensor:
    """Make pieces of text in which the next word depends on the word before it; low ids are frequent."""
    follows_VK = (torch.rand(vocab_size, NUM_NEXT) ** 2 * vocab_size).long()
    words = [torch.randint(vocab_size, (num_pieces,))]
    while len(words) < num_words:
        words.append(follows_VK[words[-1], torch.randint(NUM_NEXT, (num_pieces,))])
    return torch.stack(words, dim=1)


@torch.inference_mode()
def perplexities(model: Transformer, layer: bnce.OutputLayer, text_BT: Tensor) -> tuple[float, float]:
    """Compute PPLf and PPLn."""
    hidden_BTD, target_BT = model(text_BT[:, :-1]), text_BT[:, 1:]
    exact, quick = (layer.log_probs(hidden_BTD, target_BT, normalised=normalised) for normalised in (True, False))
    return float((-exact.mean()).exp()), float((-quick.mean()).exp())


def main(argv: Sequence[str] | None = None) -> None:
    """Train a model, and print its perplexities on text it has not seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="Train for N steps (300).")
    parser.add_argument("--vocab-size", type=int, default=2000, metavar="V", help="Number of words (2000).")
    parser.add_argument("--loss", default="bnce", help="Loss of the output layer: bnce, chunk-bnce or softmax (bnce).")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda.")
    given = parser.parse_args(argv)
    torch.manual_seed(1)
    B, T, D, V = 64, 16, 64, given.vocab_size
    text_BT = make_text(64 * B, T + 1, V).to(given.device)
    valid_BT, train_BT = text_BT[:B], text_BT[B:]

    model = Transformer(V, D, T).to(given.device)
    counts_V = torch.bincount(train_BT[:, 1:].flatten().cpu(), minlength=V) + 1  # + 1: every word can be a target
    layer = bnce.OutputLayer(D, V, noise=counts_V, loss=given.loss, sparse=True, batch_first=True).to(given.device)
    by_row = bnce.RowwiseAdam([model.embedding.weight, layer.weight, layer.bias], lr=1e-2)
    body = [parameter for name, parameter in model.named_parameters() if not name.startswith("embedding.")]
    by_adam = torch.optim.AdamW(body, lr=3e-3)
    schedules = [torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.1, given.steps) for optimiser in (by_row, by_adam)]

    for step in range(1, given.steps + 1):
        word_BT = train_BT[torch.randint(len(train_BT), (B,), device=given.device)]
        loss = layer(model(word_BT[:, :-1]), word_BT[:, 1:])  # was: cross_entropy(linear(hidden).flatten(0, 1), …)
        loss.backward()
        bnce.clip_grad_norm_([*model.parameters(), *layer.parameters()], max_norm=5.0)
        for optimiser, schedule in zip((by_row, by_adam), schedules, strict=True):
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
        if step % 100 == 0 or step == given.steps:
            ppl_f, ppl_n = perplexities(model, layer, valid_BT)
            print(f"step {step:,}: loss {loss.item():.3f}, validation PPLf {ppl_f:.1f}, PPLn {ppl_n:.1f}", flush=True)


if __name__ == "__main__":
    main()
