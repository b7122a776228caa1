"""What modules go through: copies, the meta device, checkpoints, tying, accumulation, and what a layer refuses."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bnce
from bnce import rows
from tests.stacks.small import FUSED, D, K, V, build, dense, drawn_alike, hidden_and_targets


def gradients(layer: nn.Module) -> dict[str, Tensor]:
    return {name: dense(parameter.grad) for name, parameter in layer.named_parameters()}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", bnce.LOSSES)
def test_gradients_accumulate(loss: str, sparse: bool) -> None:
    """Two backward passes leave the sum of their gradients, and one step takes both."""
    alone = []
    for seed in (2, 3):
        layer = build(loss, sparse=sparse)
        drawn_alike(layer, *hidden_and_targets(seed)).backward()
        alone.append(gradients(layer))
    layer = build(loss, sparse=sparse)
    for seed in (2, 3):
        drawn_alike(layer, *hidden_and_targets(seed)).backward()
    for name, found in gradients(layer).items():
        torch.testing.assert_close(found, alone[0][name] + alone[1][name])
    dense_layer = build(loss)
    for seed in (2, 3):
        drawn_alike(dense_layer, *hidden_and_targets(seed)).backward()
    for kind in (bnce.RowwiseAdagrad, bnce.RowwiseAdam):
        for each in (layer, dense_layer):
            kind(each.parameters(), lr=0.1).step()
        torch.testing.assert_close(layer.weight, dense_layer.weight)


def test_gradients_accumulate_onto_clipped_ones() -> None:
    """Clipping merges equal rows; a further backward pass adds rows that are not merged yet."""
    stepped = []
    for sparse in (False, True):
        layer = build(sparse=sparse)
        layer(*hidden_and_targets(2)).backward()
        bnce.clip_grad_norm_(layer.parameters(), max_norm=0.1)
        layer(*hidden_and_targets(3)).backward()
        bnce.clip_grad_norm_(layer.parameters(), max_norm=0.1)
        bnce.RowwiseAdagrad(layer.parameters(), lr=0.1).step()
        stepped.append(layer.weight.detach())
    torch.testing.assert_close(stepped[1], stepped[0])


@pytest.mark.parametrize("to_none", [False, True])
def test_equal_rows_are_merged_after_gradients_were_set_to_zero(to_none: bool) -> None:
    """PyTorch then writes the next gradient into the old one, which was marked as merged."""
    stepped, norms = [], []
    for sparse in (False, True):
        layer = build(sparse=sparse)
        optimiser = bnce.RowwiseAdam(layer.parameters(), lr=0.1)
        for seed in (2, 3, 4):
            optimiser.zero_grad(set_to_none=to_none)
            layer(*hidden_and_targets(seed)).backward()
            norms.append(bnce.clip_grad_norm_(layer.parameters(), max_norm=0.1))
            optimiser.step()
        stepped.append(layer.weight.detach())
    torch.testing.assert_close(norms[3:], norms[:3])
    torch.testing.assert_close(stepped[1], stepped[0])


def test_a_clipped_gradient_is_not_merged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = build(sparse=True)
    layer(*hidden_and_targets()).backward()
    bnce.clip_grad_norm_(layer.parameters(), max_norm=0.1)
    monkeypatch.setattr(rows, "merge", None)
    bnce.RowwiseAdam(layer.parameters()).step()


@pytest.mark.parametrize("kind", [bnce.RowwiseAdagrad, bnce.RowwiseAdam])
def test_all_parameters_of_a_layer_go_to_one_optimiser(kind: type[torch.optim.Optimizer]) -> None:
    layer = build(sparse=True, learn_log_z=True)
    optimiser = kind(layer.parameters(), lr=0.1)
    before = layer.log_z.item()
    layer(*hidden_and_targets()).backward()
    assert layer.log_z.grad is not None
    optimiser.step()
    assert (layer.log_z.item() - before) * layer.log_z.grad.item() < 0


@pytest.mark.parametrize("by_row", ["both", "embedding", "layer", "neither"])
@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
def test_a_weight_shared_with_the_embedding_gets_both_gradients(loss: str, by_row: str) -> None:
    layer = build(loss, sparse=by_row in ("both", "layer"))
    embedding = nn.Embedding(V, D, sparse=by_row in ("both", "embedding"))
    embedding.weight = layer.weight
    words, targets = hidden_and_targets(3)[1], hidden_and_targets(2)[1]
    start = layer(embedding(words), targets)
    assert start.item() == pytest.approx(layer(torch.zeros_like(embedding(words)), targets).item(), rel=0.01)
    start.backward()
    plain = build(loss)
    plain(plain.weight[words], targets).backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_sparse == (by_row == "both")
    torch.testing.assert_close(dense(layer.weight.grad), plain.weight.grad)
    for each in (layer, plain):
        bnce.clip_grad_norm_(each.parameters(), max_norm=0.01)
        bnce.RowwiseAdam(each.parameters(), lr=0.1).step()
    torch.testing.assert_close(embedding.weight, plain.weight)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("loss", bnce.LOSSES)
def test_checkpointing_draws_the_same_noise_again(loss: str, reentrant: bool) -> None:
    body = nn.Linear(D, D)

    def run(hidden: Tensor, targets: Tensor) -> Tensor:
        result: Tensor = layer(torch.tanh(body(hidden)), targets)
        return result

    found = []
    for checkpointed in (False, True):
        layer = build(loss, num_noise=K) if "num_noise" in bnce.LOSSES[loss].__struct_fields__ else build(loss)
        body.zero_grad()
        torch.manual_seed(7)
        hidden, targets = hidden_and_targets()
        loss_value = checkpoint(run, hidden, targets, use_reentrant=reentrant) if checkpointed else run(hidden, targets)
        loss_value.backward()
        found.append([loss_value.detach(), dense(body.weight.grad), dense(hidden.grad), *gradients(layer).values()])
    for plain, checkpointed_value in zip(*found, strict=True):
        assert torch.equal(plain, checkpointed_value)


@pytest.mark.parametrize("loss", bnce.LOSSES)
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_is_equal_and_apart(loss: str, how: str) -> None:
    layer = build(loss, sparse=True)
    hidden, targets = hidden_and_targets()
    drawn_alike(layer, hidden, targets).backward()
    if how == "deepcopy":
        twin = copy.deepcopy(layer)
    else:
        buffer = io.BytesIO()
        torch.save(layer, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    expected = drawn_alike(layer, hidden, targets)
    assert torch.equal(drawn_alike(twin, hidden, targets), expected)
    with torch.no_grad():
        twin.weight.zero_()
        twin.noise.log_probs_V.zero_()
    assert torch.equal(drawn_alike(layer, hidden, targets), expected)


def test_a_deep_copy_keeps_what_is_tied() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(V, D), "output": build()})
    model["embedding"].weight = model["output"].weight
    twin = copy.deepcopy(model)
    assert twin["embedding"].weight is twin["output"].weight


@pytest.mark.parametrize("made", ["on meta", "moved to meta", "on the cpu"])
@pytest.mark.parametrize("loss", bnce.LOSSES)
def test_an_emptied_layer_starts_anew(loss: str, made: str) -> None:
    constant = {"log_z": 2.5} if "log_z" in bnce.LOSSES[loss].__struct_fields__ else {}
    if made == "on meta":
        with torch.device("meta"):
            layer = build(loss, **constant)
    else:
        layer = build(loss, **constant)
    if made == "moved to meta":
        layer = layer.to("meta")
    layer.to_empty(device="cpu")
    with torch.no_grad():
        layer.log_z.fill_(1e3)  # what memory holds that nobody has written to
    torch.manual_seed(1)
    layer.reset_parameters()
    fresh = build(loss, **constant)
    for (name, found), expected in zip(layer.named_buffers(), fresh.buffers(), strict=True):
        assert torch.equal(found, expected), name
    hidden, targets = hidden_and_targets()
    assert torch.equal(drawn_alike(layer, hidden, targets), drawn_alike(fresh, hidden, targets))


@pytest.mark.parametrize("made", ["on meta", "moved to meta"])
def test_an_emptied_layer_keeps_its_noise_where_a_state_is_loaded_instead(made: str) -> None:
    """The noise is not in a state_dict, so nobody would bring it back."""
    trained = build("snce")
    with torch.device("meta" if made == "on meta" else "cpu"):
        layer = build("snce").to("meta" if made == "moved to meta" else None)
    torch.use_deterministic_algorithms(True)  # fills empty memory, which by chance might hold the same noise
    try:
        layer.to_empty(device="cpu").load_state_dict(trained.state_dict())
    finally:
        torch.use_deterministic_algorithms(False)
    hidden, targets = hidden_and_targets()
    assert torch.equal(drawn_alike(layer, hidden, targets), drawn_alike(trained, hidden, targets))


def test_a_layer_that_starts_anew_keeps_its_parameters() -> None:
    """They may be tied to an embedding, and an optimiser has them."""
    layer = build(learn_log_z=True)
    before = dict(layer.named_parameters())
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert all(parameter is before[name] for name, parameter in layer.named_parameters())


def test_counts_without_values_are_refused() -> None:
    with pytest.raises(bnce.UserError, match="on the meta device, which has no values: give counts that have some"):
        bnce.OutputLayer(D, V, noise=torch.empty(V, device="meta"))


@pytest.mark.parametrize("loss", FUSED)
def test_second_derivatives_are_refused(loss: str) -> None:
    hidden, targets = hidden_and_targets()
    with pytest.raises(bnce.UserError, match="no second derivatives, so create_graph=True cannot be used"):
        torch.autograd.grad(build(loss)(hidden, targets), hidden, create_graph=True)


def test_second_derivatives_are_refused_where_words_are_not_merged() -> None:
    """As on a GPU in small chunks, and with ids of streams."""
    hidden, targets = hidden_and_targets()
    streams = torch.arange(targets.numel()) % targets.shape[1]
    loss = build("chunk-bnce")(hidden.flatten(0, 1), targets.flatten(), streams=streams)
    with pytest.raises(bnce.UserError, match="no second derivatives, so create_graph=True cannot be used"):
        torch.autograd.grad(loss, hidden, create_graph=True)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", ["nce", "snce"])
def test_losses_of_plain_operations_have_second_derivatives(loss: str, sparse: bool) -> None:
    layer = build(loss, sparse=sparse).double()
    hidden, targets = hidden_and_targets()
    assert torch.autograd.gradgradcheck(
        lambda value: drawn_alike(layer, value, targets), (hidden.detach().double().requires_grad_(),)
    )


@pytest.mark.parametrize("loss", bnce.LOSSES)
@pytest.mark.parametrize("path", ["all", "sum", "mask", "hole", "none"])
def test_a_target_that_is_no_word_is_refused(loss: str, path: str) -> None:
    """Also among positions that do not count; -100 is one to PyTorch's own cross entropy, which would leave it out."""
    hidden, targets = hidden_and_targets()
    mask = torch.ones_like(targets, dtype=torch.bool) if path == "mask" else None
    if path == "hole":
        targets[0, 0] = -7
    layer = build(loss, ignore_index=-7, reduction="none" if path == "none" else "mean")
    for target in (V, V + 100, -1, -100):
        targets[1, 2] = target
        told = f"targets hold {target}, but the layer has {V} words: give ids from 0 to {V - 1}, or -7 for a position"
        with pytest.raises(bnce.UserError, match=f"^{told} that does not count.$"):
            layer.loss_sum(hidden, targets) if path == "sum" else layer(hidden, targets, mask)
