"""The model as transformers has it, against ours: logits, losses, states, padding and every way to generate.

Legend: B texts side by side, T words of each, K chosen words.
"""

from __future__ import annotations

import pytest
import torch
from small_corpus import END, UNK, VOCAB_SIZE, small_config, small_model
from torch import Tensor

from bnce import Sampling
from bnce.engine.sampling import generate
from bnce.engine.torch_network import TorchNetwork
from bnce.export.modeling_bnce import BnceConfig, BnceForCausalLM
from bnce.language_model import LanguageModel

from .exported_runs import MODELS

CLOSE = {"rtol": 0.0, "atol": 2e-5}
SIZES = {"vocab_size": VOCAB_SIZE, "embedding_size": 6, "hidden_size": 8, "bottleneck_size": 7}


CASES = [
    *((name, {}) for name in MODELS),
    ("ffnn", {"order": 2}),
    *((name, {"num_layers": 2}) for name in ("rnn", "relu-lstm")),
]


@pytest.fixture(params=CASES, ids=str)
def pair(request: pytest.FixtureRequest) -> tuple[LanguageModel, BnceForCausalLM]:
    """Give our model and theirs, with the same tensors under the same names."""
    name, sizes = request.param
    given = small_config(model={"name": name, "order": 4, **sizes}).model
    ours = small_model(name, **{"order": 4, **sizes}).eval()
    chosen = ("order", "num_layers", "num_heads", "context")
    settings = {key: getattr(given, key) for key in chosen if hasattr(given, key)}
    theirs = BnceForCausalLM(BnceConfig(body=name, **SIZES, **settings)).eval()
    theirs.load_state_dict(ours.state_dict())
    theirs.generation_config.suppress_tokens = [UNK]
    return ours, theirs


def words(num_texts: int, num_words: int) -> Tensor:
    """Give texts (B, T) that start with `</s>`."""
    generator = torch.Generator().manual_seed(2)
    drawn = torch.randint(2, VOCAB_SIZE, (num_texts, num_words), generator=generator)
    drawn[:, 0] = END
    return drawn


def our_hidden(model: LanguageModel, text_BT: Tensor) -> Tensor:
    before = torch.full((model.num_context, len(text_BT)), END)
    return model(torch.cat([before, text_BT.t()]), model.initial_state(len(text_BT)))[0].transpose(0, 1)


Pair = tuple[LanguageModel, BnceForCausalLM]


@torch.no_grad()
def test_logits_are_scores_less_the_constant(pair: Pair) -> None:
    ours, theirs = pair
    text = words(3, 9)
    hidden = our_hidden(ours, text)
    logits = theirs(text).logits
    torch.testing.assert_close(logits, ours.output.all_scores(hidden) - ours.output.log_z, **CLOSE)
    torch.testing.assert_close(theirs(text, logits_to_keep=2).logits, logits[:, -2:], **CLOSE)
    chosen = torch.randint(VOCAB_SIZE, (3, 9, 4))
    expected = ours.output.log_probs(hidden, chosen, normalised=False)
    torch.testing.assert_close(theirs.word_log_probs(text, chosen), expected, **CLOSE)
    assert theirs(text, return_dict=False)[0].equal(logits)


def test_labels_are_shifted_and_minus_100_is_left_out(pair: Pair) -> None:
    ours, theirs = pair
    text = words(3, 9)
    log_probs = ours.output.log_probs(our_hidden(ours, text)[:, :-1], text[:, 1:])
    loss = theirs(text, labels=text).loss
    torch.testing.assert_close(loss, -log_probs.mean(), **CLOSE)
    labels = text.clone()
    labels[0, 5:] = labels[2] = -100
    kept = torch.cat([log_probs[0, :4], log_probs[1]])
    torch.testing.assert_close(theirs(text, labels=labels).loss, -kept.mean(), **CLOSE)
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in theirs.parameters())


@torch.no_grad()
def test_a_text_in_parts_is_the_text(pair: Pair) -> None:
    _, theirs = pair
    text = words(2, 9)
    whole = theirs(text)
    state, parts = None, []
    for begin, end in ((0, 1), (1, 6), (6, 9)):
        part = theirs(text[:, begin:end], past_key_values=state)
        state = part.past_key_values
        parts.append(part.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole.logits, **CLOSE)
    assert state.get_seq_length() == whole.past_key_values.get_seq_length() == 9
    assert theirs(text, use_cache=False).past_key_values is None


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_filling_up_changes_nothing(pair: Pair, side: str) -> None:
    _, theirs = pair
    text, lengths = words(3, 7), (7, 3, 1)
    filled, mask = torch.full_like(text, UNK), torch.zeros_like(text)
    places = [slice(7 - length, 7) if side == "left" else slice(0, length) for length in lengths]
    for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
        filled[row, place], mask[row, place] = text[row, :length], 1
    output = theirs(filled, attention_mask=mask)
    for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
        alone = theirs(text[row : row + 1, :length])
        torch.testing.assert_close(output.logits[row, place], alone.logits[0], **CLOSE)
        if side == "left":
            for found, expected in zip(output.past_key_values.parts, alone.past_key_values.parts, strict=True):
                torch.testing.assert_close(found[:, row], expected[:, 0], **CLOSE)


def test_filling_up_changes_no_gradient(pair: Pair) -> None:
    """Also in training, whose dropout is zero here, words that are filled up keep no gradient from those before."""
    _, theirs = pair
    theirs.train()
    text, lengths = words(3, 7), (7, 3, 1)
    filled, mask = torch.full_like(text, UNK), torch.zeros_like(text)
    for row, length in enumerate(lengths):
        filled[row, 7 - length :], mask[row, 7 - length :] = text[row, :length], 1
    weight = torch.randn(3, 7, VOCAB_SIZE)
    (theirs(filled, attention_mask=mask).logits * weight * mask.unsqueeze(2)).sum().backward()
    found = [parameter.grad.clone() for parameter in theirs.parameters()]
    theirs.zero_grad()
    for row, length in enumerate(lengths):
        (theirs(text[row : row + 1, :length]).logits * weight[row, 7 - length :]).sum().backward()
    torch.testing.assert_close(found, [parameter.grad for parameter in theirs.parameters()], rtol=1e-4, atol=1e-4)


def test_greedy_text_is_ours_and_a_word_costs_one_step(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair
    prompts, lengths = words(3, 6), (6, 4, 2)
    filled, mask = torch.full_like(prompts, END), torch.zeros_like(prompts)
    for row, length in enumerate(lengths):
        filled[row, 6 - length :], mask[row, 6 - length :] = prompts[row, :length], 1
    read: list[int] = []
    forward = theirs.body.forward

    def watched(embedded_LBE: Tensor, *others: object) -> object:
        read.append(len(embedded_LBE) - ours.num_context)
        return forward(embedded_LBE, *others)

    monkeypatch.setattr(theirs.body, "forward", watched)
    made = theirs.generate(input_ids=filled, attention_mask=mask, max_new_tokens=10, do_sample=False)
    assert read == [2, 4, 6] + [1] * (len(read) - 3), "texts of one length together, then a word at a time"
    for row, length in enumerate(lengths):
        prompt = prompts[row, 1:length].tolist()
        (expected,) = generate(TorchNetwork(ours), prompt, 1, 10, Sampling(temperature=0), seed=1)
        assert made[row, 6 : 6 + len(expected)].tolist() == expected
        assert set(made[row, 6 + len(expected) :].tolist()) <= {END}


@pytest.mark.parametrize(
    "options", [{"num_beams": 4}, {"num_beams": 4, "num_return_sequences": 3}, {"do_sample": True}]
)
def test_the_state_makes_no_difference(pair: Pair, options: dict[str, int | bool]) -> None:
    _, theirs = pair
    texts = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        made = theirs.generate(input_ids=words(2, 4), max_new_tokens=8, use_cache=use_cache, **options)
        texts.append(made.tolist())
    assert texts[0] == texts[1]
    assert not any(UNK in text for text in texts[0])


def test_goes_on_from_a_state_that_is_given(pair: Pair) -> None:
    _, theirs = pair
    text = words(2, 6)
    with torch.no_grad():
        state = theirs(text[:, :4]).past_key_values
    expected = theirs.generate(input_ids=text, max_new_tokens=6, do_sample=False)
    assert theirs.generate(input_ids=text, past_key_values=state, max_new_tokens=6, do_sample=False).equal(expected)


def test_assisted_decoding_is_refused() -> None:
    model = BnceForCausalLM(BnceConfig(body="lstm", **SIZES))
    with pytest.raises(ValueError, match="not supported with stateful models"):
        model.generate(input_ids=words(1, 3), assistant_model=model, max_new_tokens=2)
