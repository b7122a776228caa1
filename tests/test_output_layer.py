"""The output layer as a module: shapes, masks, gradients, log-probabilities, precision, and what it refuses.

Legend: T time steps, B streams, N positions, K drawn words, D hidden, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import draws_all, layer_of
from safetensors.torch import load_file, save_file
from torch import Tensor

import bnce
from bnce import LOSSES, Noise, OutputLayer, UserError
from bnce.losses import scores
from bnce.output_layer import IGNORE_INDEX

T, B, D, V, K = 3, 5, 6, 23, 4
EPS = torch.finfo(torch.float32).eps
WORDS = Noise(bnce.noise.log_uniform(V).log_probs_V.exp())  # as it were counted


def build(loss: str = "bnce", *, num_noise: int | None = None, spread: float = 0.5, **options: Any) -> OutputLayer:
    """Make a layer away from its start, so that its answers depend on the hidden row."""
    if num_noise is None:
        num_noise = K if draws_all(loss) else 0
    if "log_z" in LOSSES[loss].__struct_fields__:
        options.setdefault("log_z", 2.5)
    layer = layer_of(D, V, WORDS, loss, num_noise=num_noise, **options)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        layer.weight.copy_(spread * torch.randn(layer.weight.shape, generator=generator))
        layer.bias += spread * torch.randn(layer.bias.shape, generator=generator)
    return layer


def hidden_and_targets(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(*shape, D, generator=generator), torch.randint(6, shape, generator=generator)


def seeded(layer: OutputLayer, *arguments: Any) -> Tensor:
    """Call a layer with the same drawn words every time."""
    torch.manual_seed(7)
    return layer(*arguments)


def refusal(make: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        make(*arguments, **options)
    return str(caught.value)


# The loss.


@pytest.mark.parametrize("loss", LOSSES)
def test_n_rows_are_one_time_step(loss: str) -> None:
    layer = build(loss)
    hidden_ND, target_N = hidden_and_targets(7)
    as_step = seeded(layer, hidden_ND.unsqueeze(0), target_N.unsqueeze(0))
    assert seeded(layer, hidden_ND, target_N).item() == as_step.item()


def test_time_steps_have_noise_of_their_own() -> None:
    layer = build()
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    steps = [layer(hidden_BD, target_B).item() for hidden_BD, target_B in zip(hidden_TBD, target_TB, strict=True)]
    assert layer(hidden_TBD, target_TB).item() == pytest.approx(sum(steps) / T, rel=1e-5)
    flat = layer(hidden_TBD.reshape(-1, D), target_TB.reshape(-1)).item()
    assert flat != pytest.approx(sum(steps) / T, rel=0.1), "fifteen rows at once see fourteen noise words each"


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("by", ["ignore_index", "mask", "both", "own index"])
def test_left_out_positions(loss: str, by: str) -> None:
    """One valid set, said in four ways; the mean is over the tokens that count."""
    own_index = by == "own index"
    layer = build(loss, ignore_index=V + 7) if own_index else build(loss)
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    valid_TB = torch.ones(T, B, dtype=torch.bool)
    valid_TB[0, 2] = valid_TB[2, 0] = valid_TB[2, 4] = False
    torch.manual_seed(7)
    expected = layer._compute(layer._batch(hidden_TBD, target_TB, valid_TB), layer.loss).sum().item() / 12
    ignored_TB = target_TB.masked_fill(~valid_TB, V + 7 if own_index else IGNORE_INDEX)
    if by == "mask":
        found = seeded(layer, hidden_TBD, target_TB, valid_TB.int())
    elif by == "both":
        half_TB = valid_TB.clone()
        half_TB[0, 2] = True
        found = seeded(layer, hidden_TBD, torch.where(half_TB, ignored_TB, target_TB), half_TB)
    else:
        found = seeded(layer, hidden_TBD, ignored_TB)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_a_token_alone_in_its_time_step_is_not_in_the_mean() -> None:
    layer = build("bnce")
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    expected = layer(hidden_TBD[:2], target_TB[:2])
    target_TB[2, 1:] = IGNORE_INDEX
    assert layer(hidden_TBD, target_TB).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_token_alone_in_its_time_step_counts_where_there_is_drawn_noise() -> None:
    layer = build("bnce", num_noise=K)
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    target_TB[2, 1:] = IGNORE_INDEX
    valid_TB = target_TB != IGNORE_INDEX
    torch.manual_seed(7)
    batch = layer._batch(hidden_TBD, target_TB, valid_TB)
    expected = layer._compute(batch, layer.loss).sum() / (2 * B + 1)
    assert seeded(layer, hidden_TBD, target_TB).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_stream_alone_in_its_chunk_has_no_loss() -> None:
    layer = build("chunk-bnce")
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    target_TB[:, 1:] = IGNORE_INDEX
    assert layer(hidden_TBD, target_TB).item() == 0.0
    target_TB[0, 1] = 2
    assert layer(hidden_TBD, target_TB).item() > 0


@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_valid_is_no_loss(loss: str) -> None:
    layer = build(loss)
    hidden_ND, _ = hidden_and_targets(4)
    value = layer(hidden_ND.requires_grad_(), torch.full((4,), IGNORE_INDEX))
    value.backward()
    assert value.item() == 0.0
    assert not hidden_ND.grad.any()
    assert not layer.weight.grad.any()


@pytest.mark.parametrize("loss", LOSSES)
def test_sparse_gradients_equal_dense_ones(loss: str) -> None:
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    dense, sparse = build(loss), build(loss, sparse=True)
    for layer in (dense, sparse):
        seeded(layer, hidden_TBD, target_TB).backward()
    for name in ("weight", "bias"):
        expected, found = getattr(dense, name).grad, getattr(sparse, name).grad
        assert not expected.is_sparse
        touches_all = not hasattr(layer.loss, "num_noise") and layer.loss.batch_noise == "none"
        assert found.is_sparse == (not touches_all), "a softmax touches every row"
        found = found.to_dense() if found.is_sparse else found
        torch.testing.assert_close(found, expected, rtol=8 * EPS, atol=EPS)


@pytest.mark.parametrize("loss", LOSSES)
def test_autocast_is_finite_and_near(loss: str) -> None:
    layer = build(loss, sparse=True)
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    exact = seeded(layer, hidden_TBD, target_TB)
    exact.backward()
    expected = layer.weight.grad.to_dense()
    layer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = seeded(layer, hidden_TBD, target_TB)
    rounded.backward()
    assert rounded.dtype == torch.float32
    # bf16 has 8 bits: products of size 1 are off by 2^-8 at most, and the loss of a token sums few of them.
    assert rounded.item() == pytest.approx(exact.item(), rel=2**-8)
    assert rounded.item() != exact.item(), "bf16 was not used"
    found = layer.weight.grad.to_dense()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=2**-7 * float(expected.abs().max()))


def test_log_probs_under_autocast() -> None:
    layer = build()
    hidden_ND, words_N = hidden_and_targets(9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = layer.log_probs(hidden_ND, words_N)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, layer.log_probs(hidden_ND, words_N), rtol=0, atol=0.05)


# The start.


def test_it_starts_at_the_unigram_model() -> None:
    layer = layer_of(D, V, np.arange(V), log_z=9.0)
    num_targets = V * (V - 1) / 2
    assert layer.noise.log_probs_V[0].exp() == pytest.approx(1 / num_targets), "one word is seen once: Good and Turing"
    assert torch.equal(layer.bias, layer.noise.log_probs_V + 9.0)
    hidden_ND, _ = hidden_and_targets(50)
    assert torch.allclose(layer.log_normaliser(hidden_ND), torch.tensor(9.0), atol=0.2)
    layer.weight.data.zero_()
    assert torch.allclose(layer.log_normaliser(hidden_ND), torch.tensor(9.0), atol=1e-5)


@pytest.mark.parametrize("counts", [np.ones(V), torch.ones(V), [1] * V, WORDS], ids=lambda kind: type(kind).__name__)
def test_noise_may_be_counts_or_a_distribution(counts: Noise | np.ndarray | Tensor | Sequence[float]) -> None:
    assert len(layer_of(D, V, counts).noise) == V


def test_every_argument_is_explained() -> None:
    explained = f"{OutputLayer.__init__.__doc__}"
    assert [name for name in inspect.signature(OutputLayer).parameters if f"`{name}`" not in explained] == []


@pytest.mark.parametrize("loss", LOSSES)
def test_device_and_dtype_are_those_of_pytorch_s_layers(loss: str) -> None:
    num_noise = K if draws_all(loss) else 0
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    layer = layer_of(D, V, np.arange(V), loss, num_noise=num_noise, device="cpu", dtype=torch.float64)
    assert {tensor.dtype for tensor in layer.state_dict().values()} == {torch.float64}
    moved = layer_of(D, V, np.arange(V), loss, num_noise=num_noise).double()
    moved.load_state_dict(layer.state_dict())
    found = seeded(layer, hidden_TBD, target_TB)
    assert found.dtype == torch.float64
    assert torch.equal(found, seeded(moved, hidden_TBD, target_TB))
    empty = layer_of(D, V, np.arange(V), loss, num_noise=num_noise, device="meta", dtype=torch.bfloat16)
    assert {(parameter.device.type, parameter.dtype) for parameter in empty.parameters()} == {("meta", torch.bfloat16)}
    empty.to_empty(device="cpu").reset_parameters()
    assert seeded(empty, hidden_TBD, target_TB).isfinite()


# Log-probabilities.


@pytest.mark.parametrize("block_words", [1, 5, V - 1, V, 8192])
@pytest.mark.parametrize("block_positions", [1, 4, 512])
def test_normalised_log_probs(monkeypatch: pytest.MonkeyPatch, block_words: int, block_positions: int) -> None:
    monkeypatch.setitem(scores.BLOCK_WORDS, "cpu", block_words)
    monkeypatch.setattr(scores, "BLOCK_POSITIONS", block_positions)
    layer = build(spread=1.0)
    hidden_ND, _ = hidden_and_targets(6)
    found_NV = layer.log_probs(hidden_ND, torch.arange(V).expand(6, V)).detach()
    logits_NV = hidden_ND.double() @ layer.weight.detach().double().t() + layer.bias.detach().double()
    torch.testing.assert_close(found_NV.double(), torch.log_softmax(logits_NV, dim=1), rtol=0, atol=64 * EPS)
    torch.testing.assert_close(found_NV.exp().sum(1), torch.ones(6), rtol=0, atol=64 * EPS)


def test_unnormalised_log_probs_are_score_less_log_z() -> None:
    layer = build(learn_log_z=True)
    hidden_ND, words_N = hidden_and_targets(6)
    expected = [
        float(layer.weight.detach()[word] @ hidden_D + layer.bias.detach()[word]) - 2.5
        for hidden_D, word in zip(hidden_ND, words_N, strict=True)
    ]
    found = layer.log_probs(hidden_ND, words_N, normalised=False)
    torch.testing.assert_close(found.detach(), torch.tensor(expected), rtol=0, atol=32 * EPS)


def test_unnormalised_reads_no_other_rows() -> None:
    layer = build()
    hidden_ND, words_N = hidden_and_targets(6)
    expected = layer.log_probs(hidden_ND, words_N, normalised=False)
    layer.weight.data[7:] = torch.nan
    assert torch.equal(layer.log_probs(hidden_ND, words_N, normalised=False), expected)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (0,)])
def test_one_or_several_words(shape: tuple[int, ...], normalised: bool) -> None:
    layer = build()
    hidden = torch.randn((*shape, D), generator=torch.Generator().manual_seed(2))
    words = torch.randint(V, (*shape, 4), generator=torch.Generator().manual_seed(3))
    several = layer.log_probs(hidden, words, normalised)
    assert several.shape == words.shape
    for k in range(4):
        one = layer.log_probs(hidden, words[..., k], normalised)
        assert one.shape == shape
        torch.testing.assert_close(one, several[..., k], rtol=0, atol=32 * EPS)
    assert layer.log_probs(hidden, words[..., :0], normalised).shape == (*shape, 0)


def test_all_scores_are_the_scores_of_all_words() -> None:
    layer = build()
    hidden_ND, _ = hidden_and_targets(6)
    each = layer.scores(hidden_ND, torch.arange(V).expand(6, V))
    torch.testing.assert_close(layer.all_scores(hidden_ND), each, rtol=0, atol=32 * EPS)


def test_log_probs_can_be_trained_through() -> None:
    """Minus the mean normalised log-probability of the targets is the softmax loss, gradients too."""
    plain, trained = build("softmax"), build("bnce")
    hidden_ND, target_N = hidden_and_targets(6)
    plain(hidden_ND, target_N).backward()
    (-trained.log_probs(hidden_ND, target_N).mean()).backward()
    torch.testing.assert_close(trained.weight.grad, plain.weight.grad, rtol=0, atol=32 * EPS)


@pytest.mark.parametrize("word", [V, -1, -V])
@pytest.mark.parametrize("normalised", [True, False])
def test_log_probs_of_what_is_no_word_are_refused(word: int, normalised: bool) -> None:
    """Minus one would be the last word of the table, and nobody would notice."""
    hidden_ND, word_N = hidden_and_targets(6)
    word_N[2] = word
    told = f"words hold {word}, but the layer has {V} words: give ids from 0 to {V - 1}."
    assert refusal(build().log_probs, hidden_ND, word_N, normalised) == told
    assert refusal(build().log_probs, hidden_ND, word_N.unsqueeze(1).expand(6, 3), normalised) == told


def test_some_losses_do_not_learn_to_be_normalised_by_z() -> None:
    assert [loss for loss in LOSSES if not build(loss).normalises] == ["softmax", "sampled-softmax"]


# Files and copies.


@pytest.mark.parametrize("learn_log_z", [False, True])
def test_state_round_trip_through_safetensors(tmp_path: Path, learn_log_z: bool) -> None:
    layer = build(learn_log_z=learn_log_z)
    with torch.no_grad():
        layer.log_z.fill_(3.25)
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other = layer_of(D, V, WORDS, learn_log_z=learn_log_z)
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert set(layer.state_dict()) == {"weight", "bias", "log_z"}
    assert other.log_z.item() == 3.25
    assert isinstance(other.log_z, torch.nn.Parameter) == learn_log_z
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    assert other(hidden_TBD, target_TB).item() == layer(hidden_TBD, target_TB).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_type_leaves_the_constant_as_it_is(dtype: torch.dtype) -> None:
    """Every probability with the constant Z is divided by it, so its rounding does not average out."""
    layer = layer_of(D, V, np.arange(V), log_z=9.03)
    hidden_ND, words_N = hidden_and_targets(50)
    before = layer.log_probs(hidden_ND, words_N, normalised=False).mean().item()
    assert layer.to(dtype).weight.dtype == dtype
    assert layer.log_z.item() == pytest.approx(9.03, abs=1e-6)
    assert layer.log_probs(hidden_ND, words_N, normalised=False).mean().item() == pytest.approx(before, abs=0.01)
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    layer(hidden_TBD, target_TB).backward()
    assert layer.double().log_z.dtype == torch.float64
    learned = layer_of(D, V, np.arange(V), learn_log_z=True).to(dtype)
    assert learned.log_z.dtype == dtype, "a parameter is as all others: FSDP takes parameters of one type"


# What it refuses.


@pytest.mark.parametrize("loss", ["bnce", "snce", "softmax"])
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's own doing
def test_a_model_with_it_can_be_compiled_whole(loss: str) -> None:
    layer = build(loss)
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    torch.manual_seed(7)
    found = torch.compile(layer.loss_sum, backend="eager", fullgraph=True)(hidden_TBD, target_TB)
    torch.manual_seed(7)
    assert found.item() == pytest.approx(layer.loss_sum(hidden_TBD, target_TB).item(), rel=1e-5)


def test_the_form_is_given_at_the_start_or_later() -> None:
    layer = build("softmax", most=5)
    layer.configure()
    assert layer.max_distinct_targets == 5, "what is not given stays"
    layer.configure(max_distinct_targets=6)
    assert layer.max_distinct_targets == 6
    assert set(layer.state_dict()) == {"weight", "bias", "log_z"}
    with pytest.raises(UserError, match="max_distinct_targets is 0: give 1 or more"):
        build("chunk-bnce", most=0)


@pytest.mark.parametrize(
    ("counts", "loss", "sentence"),
    [
        (np.ones(V - 1), "bnce", f"The noise covers {V - 1} words but vocab_size is {V}: give one count per word."),
        (
            np.ones(V),
            "softmx",
            f"Unknown loss 'softmx': choose one of {', '.join(LOSSES)}. Did you mean 'softmax'?",
        ),
    ],
)
def test_layers_that_cannot_be(counts: np.ndarray, loss: str, sentence: str) -> None:
    assert refusal(OutputLayer, D, V, counts, loss) == sentence


@pytest.mark.parametrize(
    ("hidden_shape", "target_shape"),
    [((T, B, D), (B, T)), ((T, B, D + 1), (T, B)), ((D,), ()), ((2, T, B, D), (2, T, B)), ((B, D), (B, 1))],
)
def test_shapes_that_do_not_fit(hidden_shape: tuple[int, ...], target_shape: tuple[int, ...]) -> None:
    assert refusal(build(), torch.zeros(hidden_shape), torch.zeros(target_shape, dtype=torch.long)) == (
        f"hidden {hidden_shape} and targets {target_shape} do not fit: "
        f"give (T, B, {D}) with (T, B), or (N, {D}) with (N,)."
    )


@pytest.mark.parametrize("mask_shape", [(B,), (T, 1), (B, T)])
def test_masks_that_do_not_fit(mask_shape: tuple[int, ...]) -> None:
    """One that could be broadcast would silently leave out whole streams."""
    assert refusal(build(), *hidden_and_targets(T, B), torch.ones(mask_shape)) == (
        f"mask {mask_shape} must have the shape of targets, ({T}, {B})."
    )


@pytest.mark.parametrize(
    ("hidden_shape", "words_shape"),
    [((3, D), (4,)), ((1, D), (4,)), ((3, D), (4, 2)), ((3, D), ())],
)
def test_words_that_do_not_fit(hidden_shape: tuple[int, ...], words_shape: tuple[int, ...]) -> None:
    assert refusal(build().log_probs, torch.zeros(hidden_shape), torch.zeros(words_shape, dtype=torch.long)) == (
        f"hidden {hidden_shape} and words {words_shape} do not fit: give (…, {D}) with (…) or (…, k)."
    )


def test_one_row_has_no_batch_to_be_noise() -> None:
    """The last batch of a data set may have one row, which must not end the training."""
    with pytest.warns(UserWarning, match="nothing is learned from it") as told:
        assert build()(*hidden_and_targets(1)).item() == 0.0
    assert str(told[0].message) == (
        "The loss bnce takes the other targets of the batch as noise, but this batch has a time step of 1 target: its "
        "loss is 0, and nothing is learned from it. Use batches of 2 or more, or set num_noise above 0, or leave out "
        "such a batch."
    )
    assert told[0].filename == __file__
    assert build(num_noise=3)(*hidden_and_targets(1)).item() > 0
    assert build().loss_sum(*hidden_and_targets(3, 1)).item() == 0.0


@pytest.mark.filterwarnings("ignore:.*takes the other targets of the batch as noise:UserWarning")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(0,), (0, B), (T, 0), (1,), (T, 1)])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_of_nothing_or_of_one_has_gradients(
    loss: str, shape: tuple[int, ...], reduction: str, sparse: bool
) -> None:
    layer = build(loss, reduction=reduction, sparse=sparse)
    hidden, targets = hidden_and_targets(*shape)
    losses = layer(hidden.requires_grad_(), targets)
    assert losses.shape == (shape if reduction == "none" else ())
    losses.sum().backward()
    gradients = [hidden.grad, *(parameter.grad for parameter in layer.parameters())]
    has_loss = 0 not in shape and LOSSES[loss].batch_noise == "none"
    assert (losses.sum().item() > 0) == has_loss
    for gradient in gradients:
        assert gradient is not None
        assert gradient.to_dense().isfinite().all()
    assert bool(gradients[0].any()) == has_loss


# The noise that a batch cannot be.


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
@pytest.mark.parametrize(
    ("noise", "name"),
    [
        (bnce.noise.uniform(V), "uniform noise"),
        (bnce.noise.log_uniform(V), "log-uniform noise"),
        (bnce.noise.unigram([3] * V, power=0.75), "unigram noise to the power 0.75"),
    ],
    ids=["uniform", "log-uniform", "flattened"],
)
def test_noise_that_cannot_be_the_batch_is_refused(loss: str, noise: Noise, name: str) -> None:
    assert refusal(OutputLayer, D, V, noise, loss) == (
        f"The loss {loss} takes the other targets of the batch as noise, so {name} would train a wrong model. Give how "
        "often each class is a target (bnce.noise.from_targets counts them), or use the losses nce or snce, which draw "
        "their noise."
    )
    assert layer_of(D, V, copy.deepcopy(noise), "snce", num_noise=K).noise.bent == name
    layer_of(D, V, Noise(noise.log_probs_V.exp()), loss)  # one's own probabilities are one's own business
    if loss == "bnce":
        assert ", give this noise as drawn, or use" in refusal(layer_of, D, V, noise, loss, num_noise=K)
        layer_of(D, V, bnce.noise.unigram([3] * V), loss, num_noise=K, drawn=noise)


def test_drawn_is_refused_where_nothing_is_drawn_beside_the_batch() -> None:
    counts, drawn = [1] * V, bnce.noise.uniform(V)
    for options in ({}, {"loss": "snce", "num_noise": K}, {"loss": "chunk-bnce"}):
        assert "drawn is for bnce with num_noise above 0" in refusal(layer_of, D, V, counts, drawn=drawn, **options)
    message = refusal(layer_of, D, V, counts, num_noise=K, drawn=bnce.noise.uniform(V + 1))
    assert message == f"drawn covers {V + 1} words but vocab_size is {V}."


# One loss per position.


@pytest.mark.parametrize("loss", [*LOSSES, "adaptive"])
@pytest.mark.parametrize("layout", ["(T, B)", "masked", "batch first", "(N,)", "bf16"])
def test_losses_per_position_are_those_of_the_sum(loss: str, layout: str) -> None:
    options: dict[str, Any] = {"num_noise": K, "drawn": bnce.noise.uniform(V)} if loss == "adaptive" else {}
    name = "bnce" if loss == "adaptive" else loss
    shape = (7,) if layout == "(N,)" else (T, B)
    hidden, targets = hidden_and_targets(*shape)
    mask = None
    if layout == "masked":
        targets[1, 2] = IGNORE_INDEX
        mask = torch.rand(T, B, generator=torch.Generator().manual_seed(3)) < 0.7
        mask[2] = False
        mask[2, 1] = True  # alone in its step
    found = []
    for reduction in ("sum", "none"):
        torch.manual_seed(1)  # for the rows of words that an exact layer has beside weight and bias
        layer = build(name, reduction=reduction, batch_first=layout == "batch first", sparse=True, **options)
        hidden_ = hidden.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=layout == "bf16"):
            torch.manual_seed(7)
            losses = layer(hidden_, targets, mask)
        assert losses.dtype == torch.float32
        if reduction == "none":
            assert losses.shape == targets.shape
            if mask is not None:
                assert (losses[~mask] == 0).all()
                assert losses[1, 2] == 0
        losses.sum().backward()
        grads = [hidden_.grad, layer.weight.grad, layer.bias.grad]
        found.append([losses.sum().detach(), *(grad.to_dense() for grad in grads if grad is not None)])
    tolerance = {"rtol": 0.02, "atol": 0.05} if layout == "bf16" else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, **tolerance)


def test_a_loss_per_position_is_of_its_position() -> None:
    hidden_ND, target_N = hidden_and_targets(5)
    losses_N = build("softmax", reduction="none")(hidden_ND, target_N)
    alone = build("softmax")(hidden_ND[3:4], target_N[3:4])
    assert losses_N[3].item() == pytest.approx(alone.item(), rel=1e-5)
    turned = build("softmax", reduction="none", batch_first=True)(hidden_ND.unsqueeze(1), target_N.unsqueeze(1))
    torch.testing.assert_close(turned.squeeze(1), losses_N)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", LOSSES)
def test_where_all_count_the_layer_computes_what_the_trainer_does(loss: str, reduction: str) -> None:
    layer = layer_of(D, V, WORDS, loss=loss, num_noise=3 if draws_all(loss) else 0, reduction=reduction)
    hidden_TBD, target_TB = torch.randn(5, 40, D), torch.randint(0, V, (5, 40))
    found = seeded(layer, hidden_TBD, target_TB)
    torch.manual_seed(7)
    expected = layer.loss_sum(hidden_TBD, target_TB)
    assert torch.equal(found, expected if reduction == "sum" else expected / target_TB.numel()), "to the bit"
    masked = seeded(layer, hidden_TBD, target_TB, torch.ones_like(target_TB))
    torch.testing.assert_close(masked, found)


# Noise that is counted on the way.


@pytest.mark.parametrize("loss", [name for name, kind in LOSSES.items() if not kind.structure])
def test_a_running_estimate_sees_the_targets_that_count(loss: str) -> None:
    num_noise = K if draws_all(loss) else 0
    layer = layer_of(D, V, bnce.noise.Running(V, decay=1.0), loss, num_noise=num_noise)
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    target_TB[0, 0] = IGNORE_INDEX
    mask_TB = torch.ones(T, B, dtype=torch.bool)
    mask_TB[1, 1] = False
    layer(hidden_TBD, target_TB, mask_TB).backward()
    counted = target_TB[mask_TB & (target_TB != IGNORE_INDEX)]
    assert isinstance(layer.noise, bnce.noise.Running)
    assert torch.equal(layer.noise.counts_V, torch.bincount(counted, minlength=V).double())
    layer.eval()(hidden_TBD, target_TB, mask_TB)
    assert layer.noise.counts_V.sum() == len(counted), "an evaluation is no training data"
    state = layer.state_dict()
    other = layer_of(D, V, bnce.noise.Running(V, decay=1.0), layer.loss_name, num_noise=layer.num_noise)
    other.load_state_dict(state)
    assert torch.equal(other.noise.log_probs_V, layer.noise.log_probs_V)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what PyTorch's compiler does to itself
@pytest.mark.parametrize("loss", ["bnce", "snce"])
def test_a_compiled_step_finds_the_table_of_a_running_estimate(loss: str) -> None:
    """It counts nothing itself: the user shows it the targets."""
    layer = layer_of(D, V, bnce.noise.Running(V), loss, num_noise=K)
    assert isinstance(layer.noise, bnce.noise.Running)
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for _ in range(2):
        layer.noise.observe(target_TB)
        # Compiled code does not look whether all positions count, so it sums in another order.
        torch.testing.assert_close(
            seeded(compiled, hidden_TBD, target_TB), seeded(layer.eval(), hidden_TBD, target_TB), rtol=1e-6, atol=0.0
        )
        layer.train()
    assert layer.noise.counts_V.sum().item() == pytest.approx(2 * T * B, rel=1e-3)
