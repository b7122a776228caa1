"""Text from a network: sampled word by word, many texts side by side.

Legend: B texts side by side, V vocabulary, K its likeliest words, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END, UNK
from bnce.scoring import engine as engines
from bnce.scoring.engine import Array, Engine, Ints, engine_of
from bnce.scoring.sampling import Sampling, check_texts, sample_highest, sample_words

# A word of more pieces is none: a text of so many for every word ends.
MAX_PIECES = 32


def generate(
    model: Any,
    prompt: Sequence[int],
    num_texts: int,
    max_words: int,
    sampling: Sampling,
    seed: int,
    starts_word: NDArray[np.bool_] | None = None,
) -> list[list[int]]:
    """Continue a prompt in `num_texts` ways, each up to `</s>` or `max_words` words; the prompt is not repeated.

    Where ids are pieces, `starts_word` says which of them begin a word.
    """
    check_texts(num_texts, max_words, seed)
    engine, generator = engine_of(model), np.random.default_rng(seed)
    context = np.array([END] * (engine.num_context + 1) + list(prompt), dtype=np.int64)
    input_LB = np.repeat(context[:, None], num_texts, axis=1)
    state = engine.initial_state(num_texts)
    texts: list[list[int]] = [[] for _ in range(num_texts)]
    open_texts = set(range(num_texts))
    num_words = [0] * num_texts
    for _ in range(max_words if starts_word is None else max_words * MAX_PIECES):
        hidden_TBD, state = engine.run(input_LB, state)
        word_B = _next_words(engine, hidden_TBD[-1], sampling, generator)
        for place, word in enumerate(word_B.tolist()):
            if place in open_texts:
                num_words[place] += starts_word is None or (word != END and bool(starts_word[word]))
                if num_words[place] <= max_words:
                    texts[place].append(word)
                if word == END or num_words[place] > max_words:
                    open_texts.remove(place)
        if not open_texts:
            break
        input_LB = np.concatenate([input_LB[len(input_LB) - engine.num_context :], word_B[None]])
    return texts


def _next_words(engine: Engine, hidden_BD: Array, sampling: Sampling, generator: np.random.Generator) -> Ints:
    """Choose one word per text (B,), in bounded memory."""
    num_highest = 1 if sampling.temperature == 0 else sampling.top_k
    if num_highest:
        # The whole vocabulary is never laid out where only its highest scores are asked for.
        without = None if sampling.allow_unknown else UNK
        score_BK, word_BK, _ = engine.top_words(hidden_BD, num_highest, without)
        return sample_highest(score_BK, word_BK, sampling, generator)
    rows = max(1, engines.BLOCK_NUMBERS // engine.vocab_size)
    parts = []
    for begin in range(0, len(hidden_BD), rows):
        score_BV = engine.numpy(engine.all_scores(hidden_BD[begin : begin + rows]))
        parts.append(sample_words(score_BV, sampling, generator))
    return np.concatenate(parts)
