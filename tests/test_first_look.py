"""What is told at the first batches, because it would train a wrong model without a word; and what is not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from bnce import OutputLayer, UserError, noise
from bnce.first_look import NUM_BATCHES

V, D, T, B = 200, 8, 6, 32
SHARES = 1 / torch.arange(1, V + 1)


def sentences(num_batches: int = NUM_BATCHES) -> Tensor:
    """Make batches (…, T, B) of texts that all begin at the first step, with one of five words."""
    generator = torch.Generator().manual_seed(1)
    words = torch.multinomial(SHARES, num_batches * T * B, replacement=True, generator=generator)
    words = words.view(num_batches, T, B)
    words[:, 0] = torch.multinomial(SHARES[:5], num_batches * B, replacement=True, generator=generator).view(-1, B)
    return words


def told(layer: OutputLayer, batches: Tensor) -> list[str]:
    """Train on batches, and give the warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for target_TB in batches:
            layer(torch.randn(*target_TB.shape, D), target_TB).backward()
    assert all(warning.filename == __file__ for warning in found), "the line that calls the layer"
    return [str(warning.message) for warning in found]


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
def test_sequences_that_all_begin_at_the_first_step_are_told_once(loss: str) -> None:
    batches = sentences(2 * NUM_BATCHES)
    (sentence,) = told(OutputLayer(D, V, noise.from_targets(batches, V), loss), batches)
    assert sentence.startswith(f"The targets of a time step are not the noise that {loss} takes them for")


def test_what_chance_explains_is_not_told() -> None:
    batches = sentences()
    mixed = batches.flatten()[torch.randperm(batches.numel())].view_as(batches)
    holes = mixed.clone()
    holes[:, :, ::2] = -100
    for given in (mixed, holes, mixed[:, :, :3], mixed[:, :1, :2]):  # a few positions say little
        assert not told(OutputLayer(D, V, noise.from_targets(batches, V)), given)
    layer = OutputLayer(D, V, noise.from_targets(batches, V), "snce")
    assert not told(layer, batches), "its noise is drawn"
    assert not told(OutputLayer(D, V, noise.Running(V)), batches), "it is counted on the way"


def test_a_table_of_another_scale_is_told_once() -> None:
    layer, embedding, batches = OutputLayer(D * 8, V, SHARES), nn.Embedding(V, D * 8), sentences(2)
    layer.weight = embedding.weight  # the wrong way round: its numbers have a standard deviation of 1
    with pytest.warns(UserWarning, match="The first targets have ln p = -.*: the scores are too large") as found:
        layer(embedding(batches[0].roll(1)), batches[0]).backward()
    assert found[0].filename == __file__
    layer(embedding(batches[1].roll(1)), batches[1]).backward()  # told once
    layer = OutputLayer(D * 8, V, SHARES)
    embedding.weight = layer.weight
    layer(embedding(batches[0].roll(1)), batches[0]).backward()


def test_an_ignored_class_is_no_noise() -> None:
    """However often it is counted; noise that is made already cannot be mended."""
    counts = torch.arange(1, V + 1).double()
    padded = counts.clone()
    padded[0] = 1e6
    layer = OutputLayer(D, V, padded, ignore_index=0)
    shares_V = layer.noise.log_probs_V.double().exp()
    torch.testing.assert_close(shares_V[1:], counts[1:] / counts[1:].sum(), rtol=1e-5, atol=0)
    assert shares_V[0] < 1e-9
    torch.testing.assert_close(layer.bias.detach(), layer.noise.log_probs_V + layer.log_z)
    assert not (layer.noise.sample((100_000,)) == 0).any()
    made = noise.unigram(padded)
    with pytest.raises(UserError, match="ignore_index is 0, but the noise counts this class among the targets"):
        OutputLayer(D, V, made, ignore_index=0)
    OutputLayer(D, V, made, "softmax", ignore_index=0)


def test_streams_that_are_all_one_are_told() -> None:
    layer, streams = OutputLayer(D, V, SHARES, "chunk-bnce"), torch.full((9,), 4)
    with pytest.warns(UserWarning, match="this batch has one stream: its loss is 0"):
        loss = layer(torch.randn(9, D), torch.arange(9), streams=streams)
    assert loss.item() == 0
    streams[0] = 5
    assert layer(torch.randn(9, D), torch.arange(9), streams=streams).item() > 0


@pytest.mark.parametrize("loss", ["bnce", "adaptive-softmax"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3)])
def test_the_best_words_are_found_block_by_block(
    loss: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OutputLayer.topk.__globals__["BLOCK_WORDS"], "cpu", 16)
    monkeypatch.setitem(OutputLayer.topk.__globals__, "BLOCK_POSITIONS", 4)
    layer, hidden = OutputLayer(D, V, SHARES, loss), torch.randn(*shape, D)
    nn.init.normal_(layer.bias)  # or the best words would all be in the first block
    for k in (1, 5, V, V + 1):
        best, words = layer.topk(hidden, k)
        expected = layer.all_scores(hidden).topk(min(k, V))
        torch.testing.assert_close(best, expected.values)
        torch.testing.assert_close(layer.scores(hidden, words), best)
