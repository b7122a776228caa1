"""Perplexity: the same whatever runs side by side, every token once, in bounded memory.

Legend: L context and steps, B windows, D hidden, N tokens.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from small_corpus import END, UNK, VOCAB_SIZE, random_ids, small_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bnce import UserError
from bnce.evaluation.evaluate import CONTEXT, WINDOW, Evaluation, digest_ids, evaluate
from bnce.evaluation.windows import STEPS
from bnce.language_model import LanguageModel
from bnce.losses.scores import BLOCK_POSITIONS, BLOCK_WORDS

FIRST = CONTEXT + WINDOW  # tokens that the first window scores
LENGTHS = [1, 2, CONTEXT - 1, CONTEXT, CONTEXT + 1, FIRST - 1, FIRST, FIRST + 1, 3 * WINDOW + 5]

every_body = pytest.mark.parametrize("body", ["lstm", "ffnn"])


def one_stream(model: LanguageModel, ids_N: np.ndarray) -> tuple[Tensor, Tensor]:
    """Run the whole text in one go: ln p of every token with the softmax, and every ln Z(context)."""
    before = [END] * (model.num_context + 1)
    input_LB = torch.tensor([*before, *ids_N[:-1].tolist()]).unsqueeze(1)
    with torch.no_grad():
        hidden_TBD, _ = model(input_LB, model.initial_state(1))
        score_NV = model.output.all_scores(hidden_TBD[:, 0]).double()
    log_prob_NV = torch.log_softmax(score_NV, dim=1)
    return log_prob_NV[torch.arange(len(ids_N)), torch.from_numpy(ids_N)], torch.logsumexp(score_NV, dim=1)


def numbers(result: Evaluation) -> list[Any]:
    """List all figures but the histogram's and the digest of the text."""
    return [value for key, value in result.to_dict().items() if key not in ("log_z_histogram", "text_sha256")]


@every_body
@pytest.mark.parametrize("num_tokens", [length for length in LENGTHS if length <= FIRST])
def test_equals_one_stream_while_the_text_fits_the_first_window(body: str, num_tokens: int) -> None:
    model, ids = small_model(body).eval(), random_ids(num_tokens)
    log_prob_N, normaliser_N = one_stream(model, ids)
    result = evaluate(model, ids)
    assert result.ppl_f == pytest.approx(math.exp(-float(log_prob_N.mean())), rel=1e-5)
    constant_N = log_prob_N + normaliser_N - 9.0
    assert result.ppl_n == pytest.approx(math.exp(-float(constant_N.mean())), rel=1e-5)
    assert result.log_z == 9.0
    assert result.log_z_mean == pytest.approx(float(normaliser_N.mean()), rel=1e-5)
    assert result.log_z_std == pytest.approx(float(normaliser_N.std(correction=0)), abs=1e-5)


@every_body
@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_does_not_depend_on_what_runs_side_by_side(body: str, num_tokens: int) -> None:
    model, ids = small_model(body).eval(), random_ids(num_tokens)
    alone = numbers(evaluate(model, ids, num_parallel=1, num_bytes=99))
    for num_parallel in (2, 3, 16):
        found = numbers(evaluate(model, ids, num_parallel=num_parallel, num_bytes=99))
        assert found == pytest.approx(alone, rel=1e-6)


@every_body
@pytest.mark.parametrize("num_tokens", LENGTHS)
@pytest.mark.parametrize("num_parallel", [1, 3])
def test_every_token_is_scored_once(
    body: str, num_tokens: int, num_parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(body, vocab_size=3 * WINDOW + 6)
    seen: list[int] = []
    scores = model.output.scores

    def spy(hidden_ND: Tensor, words_NK: Tensor) -> Tensor:
        seen.extend(words_NK.reshape(-1).tolist())
        return scores(hidden_ND, words_NK)

    monkeypatch.setattr(model.output, "scores", spy)
    ids = 1 + np.arange(num_tokens)  # every word is another
    told: list[tuple[int, int]] = []
    result = evaluate(model, ids, num_parallel=num_parallel, progress=lambda done, total: told.append((done, total)))
    assert sorted(seen) == ids.tolist()
    assert result.num_tokens == num_tokens
    assert told[-1] == (num_tokens, num_tokens)
    assert told == sorted(told)


@pytest.mark.parametrize("body", ["lstm", "ffnn", "transformer"])
@pytest.mark.parametrize("ends", ["within", "at the end"])
def test_by_sentence_every_sentence_is_a_text_of_its_own(body: str, ends: str) -> None:
    """The first one, one of a single `</s>`, one longer than a pass, and a last one that may have no end."""
    model = small_model(body).eval()
    generator = np.random.default_rng(4)
    lengths = [5, 0, 3, STEPS + 9, 8]
    sentences = [np.append(generator.integers(2, VOCAB_SIZE, length), END) for length in lengths]
    if ends == "within":
        sentences[-1] = sentences[-1][:-1]
    ids = np.concatenate(sentences)
    log_prob_N, normaliser_N = (
        torch.cat(parts) for parts in zip(*(one_stream(model, s) for s in sentences), strict=True)
    )
    told: list[tuple[int, int]] = []
    for num_parallel in (1, 100):
        result = evaluate(
            model, ids, num_parallel=num_parallel, by_sentence=True, progress=lambda *done: told.append(done)
        )
        found = result.by_sentence
        assert found is not None
        assert found.ppl_f == pytest.approx(math.exp(-float(log_prob_N.mean())), rel=1e-5)
        assert found.ppl_n == pytest.approx(math.exp(-float((log_prob_N + normaliser_N - 9.0).mean())), rel=1e-5)
        assert found.log_z_mean == pytest.approx(float(normaliser_N.mean()), rel=1e-5)
        assert found.log_z_std == pytest.approx(float(normaliser_N.std(correction=0)), abs=1e-5)
        assert found.ppl_f != pytest.approx(result.ppl_f, rel=1e-4), "context does matter"
        assert told[-1] == (2 * len(ids), 2 * len(ids))
        alone = evaluate(model, ids, num_parallel=num_parallel)
        assert dataclasses.replace(result, by_sentence=None) == alone, "figures in context stay as they are"
        assert "by_sentence" not in alone.to_dict()


def test_by_sentence_there_must_be_sentences_and_a_constant() -> None:
    assert evaluate(small_model(), np.arange(2, 9), by_sentence=True).by_sentence is None
    found = evaluate(small_model(loss="softmax"), np.array([5, END, 6, END]), by_sentence=True).by_sentence
    assert found is not None
    assert found.ppl_n is None


def test_counts_and_perplexities_without_unknown_words() -> None:
    model = small_model("ffnn").eval()
    ids = np.array([5, UNK, END, 7, UNK, UNK, 4, END])
    log_prob_N, normaliser_N = one_stream(model, ids)
    known_N = torch.from_numpy(ids != UNK)
    result = evaluate(model, ids)
    assert (result.num_tokens, result.num_oov, result.num_sentences) == (8, 3, 2)
    assert result.ppl_f_no_unk == pytest.approx(math.exp(-float(log_prob_N[known_N].mean())), rel=1e-5)
    constant_N = (log_prob_N + normaliser_N - 9.0)[known_N]
    assert result.ppl_n_no_unk == pytest.approx(math.exp(-float(constant_N.mean())), rel=1e-5)
    assert result.ppl_f_no_unk != pytest.approx(result.ppl_f, rel=1e-3)


def test_a_text_of_unknown_words_has_no_perplexity_without_them() -> None:
    result = evaluate(small_model(), np.array([UNK, UNK]))
    assert math.isfinite(result.ppl_f)
    assert result.ppl_f_no_unk is None


def test_the_totals_are_the_perplexities() -> None:
    result = evaluate(small_model(), random_ids(700))
    assert result.ppl_n is not None
    assert result.log10_prob_n is not None
    assert 10 ** (-result.log10_prob_f / 700) == pytest.approx(result.ppl_f, rel=1e-12)
    assert 10 ** (-result.log10_prob_n / 700) == pytest.approx(result.ppl_n, rel=1e-12)
    # ln p_n and ln p_f differ by ln Z(context) − ln Z at every token.
    difference = math.log(10) * (result.log10_prob_n - result.log10_prob_f) / 700
    assert difference == pytest.approx(result.log_z_mean - result.log_z, rel=1e-9)


def test_bits_per_byte_are_of_the_whole_text() -> None:
    model, ids = small_model("lstm").eval(), random_ids(100)
    log_prob_N, _ = one_stream(model, ids)
    result = evaluate(model, ids, num_bytes=250)
    assert (result.num_tokens, result.num_bytes) == (100, 250)
    assert result.bits_per_byte == pytest.approx(-float(log_prob_N.sum()) / math.log(2) / 250, rel=1e-5)
    plain = evaluate(model, ids)
    assert plain.num_bytes is plain.bits_per_byte is None


def test_the_histogram_counts_every_token() -> None:
    result = evaluate(small_model(), random_ids(700))
    histogram = result.log_z_histogram
    assert sum(histogram["counts"]) == 700
    assert len(histogram["edges"]) == len(histogram["counts"]) + 1
    assert histogram["edges"] == sorted(histogram["edges"])
    assert histogram["edges"][0] < result.log_z_mean < histogram["edges"][-1]


def test_a_softmax_model_has_no_perplexity_with_the_constant() -> None:
    result = evaluate(small_model(loss="softmax"), random_ids(70))
    assert result.ppl_n is result.ppl_n_no_unk is result.log10_prob_n is None
    assert math.isfinite(result.ppl_f)


def test_dropout_is_off_and_the_mode_is_given_back() -> None:
    model, ids = small_model("lstm", dropout=0.5).train(), random_ids(100)
    random_state = torch.get_rng_state()
    first = evaluate(model, ids)
    assert model.training
    assert first == evaluate(model.eval(), ids)
    assert not model.training
    # A run must not change because it was measured.
    assert torch.equal(torch.get_rng_state(), random_state)


def test_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="The text has no tokens to evaluate: give a text with words"):
        evaluate(small_model(), np.array([], dtype=np.uint16))


def test_a_model_that_blew_up_is_measured_all_the_same() -> None:
    model = small_model()
    with torch.no_grad():
        model.output.bias[3] = torch.nan
    result = evaluate(model, random_ids(20))
    assert not math.isfinite(result.ppl_f)


class LargestTensor(TorchDispatchMode):
    """Notes the most numbers that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.num_numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.num_numbers = max(self.num_numbers, tensor.numel())
        return result


@pytest.mark.parametrize(
    ("vocab_size", "num_tokens", "num_positions"),
    [
        pytest.param(800_000, 24, 24, id="many words"),
        # Sixteen windows of 64 steps each are twice as many positions as one block has.
        pytest.param(BLOCK_WORDS["cpu"] + 10, CONTEXT + 16 * WINDOW, BLOCK_POSITIONS, id="many positions"),
    ],
)
def test_memory_does_not_grow_with_the_vocabulary_or_the_text(
    vocab_size: int, num_tokens: int, num_positions: int
) -> None:
    model = small_model("ffnn", vocab_size=vocab_size, embedding_size=2, hidden_size=4, bottleneck_size=2)
    ids = random_ids(num_tokens, vocab_size)
    with LargestTensor() as largest:
        evaluate(model, ids)
    assert largest.num_numbers == num_positions * BLOCK_WORDS["cpu"]


def test_scores_are_those_of_the_whole_vocabulary_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks of 7 words and 11 positions, neither of which divides anything here.
    model, ids = small_model("lstm").eval(), random_ids(200)
    whole = numbers(evaluate(model, ids, num_bytes=99))
    monkeypatch.setitem(BLOCK_WORDS, "cpu", 7)
    monkeypatch.setattr("bnce.losses.scores.BLOCK_POSITIONS", 11)
    assert VOCAB_SIZE % 7 != 0
    assert numbers(evaluate(model, ids, num_bytes=99)) == pytest.approx(whole, rel=1e-6)


def test_a_text_is_known_by_its_ids() -> None:
    ids = random_ids(1000)
    whole = hashlib.sha256(ids.astype("<u4").tobytes()).hexdigest()
    assert digest_ids(ids) == digest_ids(ids.astype(np.uint16)) == whole
    assert digest_ids(ids[:-1]) != whole
    assert evaluate(small_model(), ids).text_sha256 == whole
