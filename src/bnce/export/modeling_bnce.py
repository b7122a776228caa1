"""A word language model that `bnce` trained, for the transformers library.

This file is written beside an exported model, with those of the network's body. They need torch and transformers alone:

    AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)

Logits are raw scores less ln Z. A model trained by noise contrastive estimation is self-normalised: its logits are log
probabilities as they stand, up to the little by which the sum of all words differs from one.

Legend: B texts side by side, T words of each, C context words of an n-gram, K chosen words, E embedding, D last hidden
layer, V vocabulary; G texts that have the same number of words, N.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

# Older versions of the library copy the files that this one imports, and none that those import.
from bnce.kernels import usable  # noqa: F401
from bnce.models.body import Body
from bnce.models.feedforward import FeedForward
from bnce.models.recurrent import Recurrent
from bnce.models.transformer import Transformer

END = 0  # the sentence end, which also stands before the first sentence


DEFAULTS = {
    "vocab_size": 3,
    "body": "relu-lstm",  # or ffnn, rnn, relu-rnn, lstm, transformer
    "embedding_size": 200,
    "hidden_size": 600,
    "bottleneck_size": 400,
    "order": 5,
    "num_layers": 1,
    "num_heads": 8,
    "context": 128,
    "dropout": 0.0,
    "log_z": 9.0,
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
    "tie_word_embeddings": False,
}


class BnceConfig(PretrainedConfig):
    """The sizes of a model, those of `DEFAULTS` unless given."""

    model_type = "bnce"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**DEFAULTS, **settings})


class WordState:
    """What the words so far have left behind, in the place where attention has its keys and values.

    Parts have the texts in their second dimension: first the last words (C, B), which an n-gram needs, then the parts
    of the body's own state.
    """

    is_compileable = False

    def __init__(self, parts: tuple[Tensor, ...], num_words: int) -> None:
        self.parts = parts
        self.num_words = num_words

    def get_seq_length(self, *_: Any) -> int:
        """Count the words so far."""
        return self.num_words

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on from the texts that a beam search keeps."""
        self.parts = tuple(part.index_select(1, beam_idx.to(part.device)) for part in self.parts)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Go on from every text several times."""
        self.parts = tuple(part.repeat_interleave(repeats, dim=1) for part in self.parts)


def build_body(config: BnceConfig) -> Body:
    """Build the body that a model's settings describe."""
    sizes = (config.embedding_size, config.hidden_size)
    if config.body == "ffnn":
        return FeedForward(*sizes, config.bottleneck_size, config.order, config.dropout)
    if config.body == "transformer":
        return Transformer(*sizes, config.num_layers, config.num_heads, config.context, config.dropout)
    cell = config.body.removeprefix("relu-")
    bottleneck = None if cell == config.body else config.bottleneck_size
    return Recurrent(nn.RNN if cell == "rnn" else nn.LSTM, *sizes, bottleneck, config.num_layers, config.dropout)


class OutputTable(nn.Module):
    """One row and one bias a word, and the constant that scores are normalised by."""

    log_z: Tensor

    def __init__(self, hidden_size: int, vocab_size: int, log_z: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocab_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.register_buffer("log_z", torch.tensor(float(log_z)))


class BnceForCausalLM(PreTrainedModel, GenerationMixin):
    """Predicts each word of a text from those before it; a text starts with `</s>`, as the tokenizer writes it."""

    config_class = BnceConfig
    main_input_name = "input_ids"
    _is_stateful = True  # a state cannot go back to an earlier word

    def __init__(self, config: BnceConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Parameter(torch.zeros(config.vocab_size, config.embedding_size))
        self.body = build_body(config)
        # In training a Transformer has no state of its own; here it has one, of the same sizes as otherwise.
        self._state_sizes = [part.shape for part in self.body.eval().initial_state(1)]
        self.body.train()
        self.output = OutputTable(self.body.output_size, config.vocab_size, config.log_z)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: WordState | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Compute logits (B, T, V), of the last `logits_to_keep` words or of all; labels are shifted here.

        Texts of several lengths are filled up on the left, or, where no state is carried on, on the right.
        """
        hidden_BTD, state = self._run_body(input_ids, attention_mask, past_key_values)
        if logits_to_keep:
            hidden_BTD = hidden_BTD[:, -logits_to_keep:]
        table = self.output
        logits_BTV = torch.matmul(hidden_BTD, table.weight.t()).float() + table.bias - table.log_z
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size, **others)
        output = CausalLMOutputWithPast(
            loss=loss, logits=logits_BTV, past_key_values=None if use_cache is False else state
        )
        return output.to_tuple() if return_dict is False else output

    def word_log_probs(self, input_ids: Tensor, words: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Compute ln p of the words (B, T, K) that may follow each input word, with the constant ln Z.

        Only the rows of these words are read, so the cost does not depend on the vocabulary.
        """
        hidden_BTD, _ = self._run_body(input_ids, attention_mask, None)
        table = self.output
        product_BTK = torch.matmul(table.weight[words], hidden_BTD.unsqueeze(3)).squeeze(3)
        return product_BTK.float() + table.bias[words] - table.log_z

    def _run_body(self, input_ids: Tensor, mask: Tensor | None, past: WordState | None) -> tuple[Tensor, WordState]:
        words_TB = input_ids.t()
        T, B = words_TB.shape
        if past is None:
            parts = (
                words_TB.new_full((self.body.num_context, B), END),
                *(self.embedding.new_zeros(size[0], B, *size[2:]) for size in self._state_sizes),
            )
        else:
            parts = past.parts
        real_TB = None if mask is None else mask[:, -T:].t().bool()
        if real_TB is None or bool(real_TB.all()):
            hidden_TBD, parts = self._read(words_TB, parts)
        else:
            hidden_TBD, parts = self._read_real(words_TB, parts, real_TB)
        return hidden_TBD.transpose(0, 1), WordState(parts, T + (0 if past is None else past.num_words))

    def _read(self, words_TB: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Read T words of each text."""
        words_LB = torch.cat([parts[0], words_TB])
        hidden_TBD, state = self.body(self.embedding[words_LB], parts[1:])
        return hidden_TBD, (words_LB[len(words_TB) :], *state)

    def _read_real(
        self, words_TB: Tensor, parts: tuple[Tensor, ...], real_TB: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Read the words that are real: the others change nothing, wherever they stand."""
        hidden_TBD = self.embedding.new_zeros(*words_TB.shape, self.body.output_size)
        kept = tuple(part.clone() for part in parts)
        num_real_B = real_TB.sum(0)
        for num_real in num_real_B[num_real_B > 0].unique().tolist():
            text_G = (num_real_B == num_real).nonzero().squeeze(1)
            place_NG = real_TB[:, text_G].t().nonzero()[:, 1].view(-1, num_real).t()
            found_NGD, after = self._read(words_TB[place_NG, text_G], tuple(part[:, text_G] for part in parts))
            hidden_TBD[place_NG, text_G] = found_NGD.to(hidden_TBD.dtype)
            for part, part_after in zip(kept, after, strict=True):
                part[:, text_G] = part_after.to(part.dtype)
        return hidden_TBD, kept

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: WordState | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | None = None,
        **others: Any,
    ) -> dict[str, Any]:
        """Give the words that the state has not seen yet."""
        if past_key_values is not None:
            input_ids = input_ids[:, past_key_values.num_words :]
        return {
            "input_ids": input_ids,
            "past_key_values": past_key_values,
            "attention_mask": attention_mask,
            "use_cache": use_cache,
            "logits_to_keep": logits_to_keep or 0,
        }

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Tell `generate` to make no cache of keys and values: the first forward pass makes a state."""
        return False
