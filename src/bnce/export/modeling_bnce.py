"""A word language model that `bnce` trained, for the transformers library.

This file is written beside an exported model and needs torch and transformers alone:

    AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)

Logits are raw scores less ln Z. A model trained by noise contrastive estimation is self-normalised: its logits are log
probabilities as they stand, up to the little by which the sum of all words differs from one.

Legend: B texts side by side, T words of each, C context words of an n-gram, L = C + T, K chosen words, E embedding,
D last hidden layer, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

END = 0  # the sentence end, which also stands before the first sentence


class BnceConfig(PretrainedConfig):
    """The sizes of a model; `body` is ffnn, rnn, relu-rnn, lstm, relu-lstm or transformer."""

    model_type = "bnce"

    def __init__(
        self,
        vocab_size: int = 3,
        body: str = "relu-lstm",
        embedding_size: int = 200,
        hidden_size: int = 600,
        bottleneck_size: int = 400,
        order: int = 5,
        num_layers: int = 1,
        num_heads: int = 8,
        context: int = 128,
        dropout: float = 0.0,
        log_z: float = 9.0,
        **others: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.body = body
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.bottleneck_size = bottleneck_size
        self.order = order
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.context = context
        self.dropout = dropout
        self.log_z = log_z
        special = {f"{name}_token_id": END for name in ("bos", "eos", "pad")}
        super().__init__(**{"tie_word_embeddings": False, **special, **others})


class WordState:
    """What the words so far have left behind, in the place where attention has its keys and values.

    Parts have the texts in their second dimension: recurrent layers' (N, B, H), an n-gram's last words (C, B), or the
    keys and values of a Transformer's layers (N, B, W, D) and how many of the W words there are (1, B).
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


def _run_steps(
    steps: Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, tuple[Tensor, ...]]],
    embedded_TBE: Tensor,
    state: tuple[Tensor, ...],
    real_TB: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run T steps at once, or one by one where `real_TB` says that some texts stand still."""
    if real_TB is None:
        return steps(embedded_TBE, state)
    rows = []
    for embedded_BE, real_B in zip(embedded_TBE, real_TB, strict=True):
        row_1BD, after = steps(embedded_BE.unsqueeze(0), state)
        rows.append(row_1BD)
        pairs = zip(after, state, strict=True)
        state = tuple(torch.where(real_B.reshape(1, -1, *[1] * (new.ndim - 2)), new, old) for new, old in pairs)
    return torch.cat(rows), state


class Recurrent(nn.Module):
    """Recurrent layers, whose input is added from the second on, and for relu-… a narrower ReLu layer."""

    def __init__(self, config: BnceConfig) -> None:
        super().__init__()
        cell = nn.LSTM if config.body.endswith("lstm") else nn.RNN
        self.cell: nn.LSTM | nn.RNN = cell(config.embedding_size, config.hidden_size)
        size = config.hidden_size
        self.upper = nn.ModuleList(cell(size, size) for _ in range(config.num_layers - 1))
        self.bottleneck: nn.Linear | None = None
        if config.body.startswith("relu-"):
            self.bottleneck = nn.Linear(config.hidden_size, config.bottleneck_size)
        self.dropout = nn.Dropout(config.dropout)
        self.output_size = config.hidden_size if self.bottleneck is None else config.bottleneck_size

    def initial_state(self, words_TB: Tensor, like: Tensor) -> tuple[Tensor, ...]:
        """Make the state that a text starts from."""
        num_parts = 2 if isinstance(self.cell, nn.LSTM) else 1
        return tuple(
            like.new_zeros(1 + len(self.upper), words_TB.shape[1], self.cell.hidden_size) for _ in range(num_parts)
        )

    def forward(
        self, words_TB: Tensor, embedding_VE: Tensor, state: tuple[Tensor, ...], real_TB: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run T steps; where `real_TB` is false, a text stands still."""
        hidden_TBD, state = _run_steps(self._steps, self.dropout(embedding_VE[words_TB]), state, real_TB)
        if self.bottleneck is not None:
            hidden_TBD = torch.relu(self.bottleneck(self.dropout(hidden_TBD)))
        return self.dropout(hidden_TBD), state

    def _steps(self, embedded_TBE: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        hidden_TBD, after = _run_cell(self.cell, embedded_TBE, tuple(part[:1] for part in state))
        lasts = [after]
        for number, cell in enumerate(self.upper, start=1):
            before = tuple(part[number : number + 1] for part in state)
            found_TBD, after = _run_cell(cell, self.dropout(hidden_TBD), before)
            hidden_TBD = hidden_TBD + found_TBD
            lasts.append(after)
        return hidden_TBD, tuple(torch.cat(parts) for parts in zip(*lasts, strict=True))


def _run_cell(cell: nn.Module, input_TBE: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    if isinstance(cell, nn.LSTM):
        hidden_TBD, after = cell(input_TBE, (state[0], state[1]))
        return hidden_TBD, after
    hidden_TBD, last = cell(input_TBE, state[0])
    return hidden_TBD, (last,)


class FeedForward(nn.Module):
    """An n-gram network: the last order − 1 words through two ReLu layers."""

    def __init__(self, config: BnceConfig) -> None:
        super().__init__()
        self.num_words = config.order - 1
        self.hidden = nn.Linear(self.num_words * config.embedding_size, config.hidden_size)
        self.bottleneck = nn.Linear(config.hidden_size, config.bottleneck_size)
        self.dropout = nn.Dropout(config.dropout)
        self.output_size = config.bottleneck_size

    def initial_state(self, words_TB: Tensor, like: Tensor) -> tuple[Tensor, ...]:
        """Make the words that stand before a text."""
        return (words_TB.new_full((self.num_words - 1, words_TB.shape[1]), END),)

    def forward(
        self, words_TB: Tensor, embedding_VE: Tensor, state: tuple[Tensor, ...], real_TB: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Map T words, and those before them, to T rows; where `real_TB` is false stands what is before a text."""
        if real_TB is not None:
            words_TB = words_TB.masked_fill(~real_TB, END)
        words_LB = torch.cat([state[0], words_TB])
        embedded_LBE = embedding_VE[words_LB]
        windows = [embedded_LBE[offset : offset + len(words_TB)] for offset in range(self.num_words)]
        hidden = torch.relu(self.hidden(self.dropout(torch.cat(windows, dim=2))))
        hidden_TBD = torch.relu(self.bottleneck(self.dropout(hidden)))
        return self.dropout(hidden_TBD), (words_LB[len(words_TB) :],)


class Transformer(nn.Module):
    """Layers that attend to the last `context` words, each with a wide squared ReLu."""

    def __init__(self, config: BnceConfig) -> None:
        super().__init__()
        size, self.context = config.hidden_size, config.context
        self.enter = None if config.embedding_size == size else nn.Linear(config.embedding_size, size, bias=False)
        self.blocks = nn.ModuleList(Block(size, config.num_heads, config.dropout) for _ in range(config.num_layers))
        self.dropout = nn.Dropout(config.dropout)
        self.output_size, self.head_size = size, size // config.num_heads

    def initial_state(self, words_TB: Tensor, like: Tensor) -> tuple[Tensor, ...]:
        """Make room for the words before a text, of which there are none."""
        B = words_TB.shape[1]
        keys = like.new_zeros(len(self.blocks), B, self.context, self.output_size)
        return keys, keys.clone(), like.new_zeros(1, B)

    def forward(
        self, words_TB: Tensor, embedding_VE: Tensor, state: tuple[Tensor, ...], real_TB: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run T steps; where `real_TB` is false, a text stands still."""
        return _run_steps(self._steps, embedding_VE[words_TB], state, real_TB)

    def _steps(self, embedded_TBE: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        keys, values, known_1B = state
        stream_BTD = embedded_TBE.transpose(0, 1)
        if self.enter is not None:
            stream_BTD = self.enter(stream_BTD)
        stream_BTD = self.dropout(_normed(stream_BTD))
        W, T, device = self.context, stream_BTD.shape[1], stream_BTD.device
        place_S = torch.arange(W + T, device=device)
        # A position sees the words up to itself, W of them at most, and none from before its text.
        place_T1 = place_S[W:].unsqueeze(1)
        is_seen_TS = (place_S <= place_T1) & (place_S > place_T1 - W)
        is_seen_BTS = is_seen_TS & (place_S >= W - known_1B[0].unsqueeze(1)).unsqueeze(1)
        speed = 10_000.0 ** -(torch.arange(0, self.head_size - 1, 2, device=device).float() / self.head_size)
        angle = torch.outer(place_S.float(), speed).unsqueeze(1)
        turn = angle.cos().to(stream_BTD.dtype), angle.sin().to(stream_BTD.dtype)
        kept = []
        for block, key_BWD, value_BWD in zip(self.blocks, keys, values, strict=True):
            stream_BTD, *last = block(stream_BTD, key_BWD, value_BWD, is_seen_BTS.unsqueeze(1), turn)
            kept.append(last)
        after = tuple(torch.stack(parts) for parts in zip(*kept, strict=True))
        return _normed(stream_BTD).transpose(0, 1), (*after, (known_1B + T).clamp(max=W))


class Block(nn.Module):
    """One layer of a Transformer; keys are kept as they are before they are turned by their places."""

    def __init__(self, size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(size, 3 * size, bias=False)
        self.found = nn.Linear(size, size, bias=False)
        self.up = nn.Linear(size, 4 * size, bias=False)
        self.down = nn.Linear(4 * size, size, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        stream_BTD: Tensor,
        key_BWD: Tensor,
        value_BWD: Tensor,
        is_seen_B1TS: Tensor,
        turn: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add what attention finds and what a wide layer makes of it; also give the last keys and values."""
        W = key_BWD.shape[1]
        query, key, value = (
            part.unflatten(2, (self.num_heads, -1)) for part in self.query_key_value(_normed(stream_BTD)).chunk(3, 2)
        )
        key_BSD = torch.cat([key_BWD, _normed(key).flatten(2)], 1)
        value_BSD = torch.cat([value_BWD, value.flatten(2)], 1)
        found = nn.functional.scaled_dot_product_attention(
            _rotate(_normed(query), turn[0][W:], turn[1][W:]).transpose(1, 2),
            _rotate(key_BSD.unflatten(2, (self.num_heads, -1)), *turn).transpose(1, 2),
            value_BSD.unflatten(2, (self.num_heads, -1)).transpose(1, 2),
            attn_mask=is_seen_B1TS,
        )
        stream_BTD = stream_BTD + self.dropout(self.found(found.transpose(1, 2).flatten(2)))
        wide = torch.relu(self.up(_normed(stream_BTD))).square()
        return stream_BTD + self.dropout(self.down(wide)), key_BSD[:, -W:], value_BSD[:, -W:]


def _normed(part: Tensor) -> Tensor:
    return nn.functional.rms_norm(part, (part.shape[-1],))


def _rotate(part_BTHK: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = cosine.shape[-1]
    first, second, rest = part_BTHK[..., :half], part_BTHK[..., half : 2 * half], part_BTHK[..., 2 * half :]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], -1)


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
        self.body: FeedForward | Recurrent | Transformer
        if config.body == "ffnn":
            self.body = FeedForward(config)
        else:
            self.body = Transformer(config) if config.body == "transformer" else Recurrent(config)
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
        real_TB = None
        if mask is not None:
            real_TB = mask[:, -len(words_TB) :].t().bool()
            # Words that are all there need not go one by one.
            real_TB = None if bool(real_TB.all()) else real_TB
        parts = self.body.initial_state(words_TB, self.embedding) if past is None else past.parts
        hidden_TBD, parts = self.body(words_TB, self.embedding, parts, real_TB)
        return hidden_TBD.transpose(0, 1), WordState(parts, len(words_TB) + (0 if past is None else past.num_words))

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
