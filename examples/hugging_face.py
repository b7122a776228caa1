"""A Hugging Face model that ends in bnce.OutputLayer, trained by transformers.Trainer.

python examples/hugging_face.py --steps 100

Needs transformers and accelerate (pip install transformers accelerate). The body is GPT2Model without its own output
layer. Its embedding and the output layer have sparse gradients, which bnce.RowwiseAdam takes; AdamW trains the rest.
The Trainer takes one optimiser, so a small class joins the two. Texts have different lengths: labels of -100 do not
count.

Legend: B texts, T words of a text, V words.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model, Trainer, TrainingArguments

import bnce


class LanguageModel(nn.Module):
    """GPT-2's body with our output layer: `forward` takes labels as Hugging Face's models do, and gives the loss."""

    def __init__(self, config: GPT2Config, counts_V: Tensor) -> None:
        super().__init__()
        self.body = GPT2Model(config)
        self.body.wte.sparse = True
        self.head = bnce.OutputLayer(config.n_embd, config.vocab_size, counts_V, sparse=True, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Compute the loss of each next word: B-NCE in training, the exact softmax's in evaluation."""
        hidden_BTD = self.body(input_ids, attention_mask=attention_mask).last_hidden_state[:, :-1]
        target_BT = labels[:, 1:]
        if self.training:
            return {"loss": self.head(hidden_BTD, target_BT)}
        counts_BT = target_BT != self.head.ignore_index
        return {"loss": -self.head.log_probs(hidden_BTD[counts_BT], target_BT[counts_BT]).mean()}


class Joined(torch.optim.Optimizer):
    """Several optimisers as one. They share their groups, so that a schedule reaches them all."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Step every part."""
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Give the state of every part, for checkpoints."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def make_optimiser(model: LanguageModel) -> Joined:
    """Train the two tables by row, the body by AdamW."""
    tables = [model.body.wte.weight, model.head.weight, model.head.bias]
    body = [p for p in model.parameters() if all(p is not table for table in tables)]
    return Joined(bnce.RowwiseAdam(tables, lr=1e-2), torch.optim.AdamW(body, lr=3e-3))


def make_texts(num_texts: int, vocab_size: int) -> list[dict[str, Tensor]]:
    """Make texts of 8 to 16 words, padded at the end; each word has four possible next words."""
    texts = []
    for length in torch.randint(8, 17, (num_texts,)).tolist():
        words = [int(torch.randint(vocab_size, ()))]
        while len(words) < length:
            words.append((7 * words[-1] + int(torch.randint(4, ()))) % vocab_size)
        real = torch.arange(16) < length
        ids = torch.tensor(words + [0] * (16 - length))
        texts.append({"input_ids": ids, "attention_mask": real.long(), "labels": torch.where(real, ids, -100)})
    return texts


def clip_sparse_gradients(trainer: Trainer) -> None:
    """Let the Trainer clip by bnce's function: PyTorch's, which it calls, does not take sparse gradients."""

    def clip(parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
        trainer.accelerator.unscale_gradients()  # with fp16, gradients are scaled until here
        return bnce.clip_grad_norm_(parameters, max_norm, norm_type)

    trainer.accelerator.clip_grad_norm_ = clip


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train a model, and print its perplexity on texts it has not seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="Train for N steps (100).")
    parser.add_argument("--vocab-size", type=int, default=1000, metavar="V", help="Number of words (1000).")
    given = parser.parse_args(argv)
    torch.manual_seed(1)
    texts = make_texts(2048, given.vocab_size)
    counts_V = torch.ones(given.vocab_size)  # every word once more than it is a target
    for text in texts[128:]:
        counts_V += torch.bincount(text["labels"][1:].clamp(min=0), text["labels"][1:] >= 0, given.vocab_size)
    sizes = {"vocab_size": given.vocab_size, "n_positions": 16, "n_embd": 64, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, use_cache=False, bos_token_id=None, eos_token_id=None)
    model = LanguageModel(config, counts_V)
    optimiser = make_optimiser(model)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.1, given.steps)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory,
            max_steps=given.steps,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=64,
            max_grad_norm=5.0,
            logging_steps=25,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
        )
        trainer = Trainer(
            model, arguments, train_dataset=texts[128:], eval_dataset=texts[:128], optimizers=(optimiser, schedule)
        )
        clip_sparse_gradients(trainer)
        trainer.train()
        figures: dict[str, float] = trainer.evaluate()
    print(f"validation perplexity {math.exp(figures['eval_loss']):.2f} (4 is the best that can be)")
    return figures


if __name__ == "__main__":
    main()
