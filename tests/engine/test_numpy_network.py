"""A run scored without PyTorch: the same numbers from every kind of rows, and what NumPy leaves to PyTorch.

Legend: N positions, D hidden, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scoring.plain import BODIES
from small_corpus import change_weights, random_ids, small_run, trained_model

from bnce import UserError
from bnce.engine.network import Network, Query
from bnce.engine.packer import score
from bnce.engine.torch_network import TorchNetwork
from bnce.export.to_safetensors import export_rows
from bnce.runs.directory import Run
from bnce.runs.model_file import open_network

from .networks import network_of

ALL = Query(log_z=True, entropy=True)


def both(run: Path) -> tuple[Network, Network]:
    """Open a run with PyTorch and with NumPy."""
    return TorchNetwork(trained_model(run)), open_network(Run.open(run))


@pytest.mark.parametrize("rows", ["float32", "float16", "bf16", "int8"])
def test_rows_however_they_are_packed(tmp_path: Path, rows: str) -> None:
    export_rows(Run.open(small_run(tmp_path / "run", "relu-lstm")), tmp_path / "packed", rows)
    torch_network, numpy_network = both(tmp_path / "packed")
    texts = [random_ids(length) for length in (3, 12)]
    for one, other in zip(*(score(each, texts, ALL)[:3] for each in (torch_network, numpy_network)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("body", BODIES)
def test_what_is_known_before_any_text(body: str) -> None:
    one, other = network_of(body), network_of(body, "numpy")
    for name in ("vocab_size", "hidden_size", "num_context", "num_words_seen", "log_z", "normalises", "loss_name"):
        assert getattr(one, name) == getattr(other, name)
    shapes = [[tuple(part.shape) for part in each.initial_state(3)] for each in (one, other)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("block_numbers", [2**20, 7])
@pytest.mark.parametrize("k", [1, 5, 100])
def test_the_likeliest_words(monkeypatch: pytest.MonkeyPatch, block_numbers: int, k: int) -> None:
    monkeypatch.setattr("bnce.engine.network.BLOCK_NUMBERS", block_numbers)
    monkeypatch.setattr("bnce.engine.numpy_network.BLOCK_WORDS", min(2048, block_numbers))
    monkeypatch.setattr("bnce.engine.numpy_network.BLOCK_POSITIONS", min(512, block_numbers))
    torch_network, numpy_network = network_of("lstm"), network_of("lstm", "numpy")
    hidden_ND = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    expected = torch_network.top_words(torch.from_numpy(hidden_ND), k)
    found = numpy_network.top_words(hidden_ND, k)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(found[2], expected[2], atol=1e-5)
    np.testing.assert_allclose(numpy_network.log_normaliser(hidden_ND), expected[2], atol=1e-5)
    np.testing.assert_allclose(
        numpy_network.entropy(hidden_ND), torch_network.entropy(torch.from_numpy(hidden_ND)).numpy(), atol=1e-5
    )
    all_scores = torch_network.all_scores(torch.from_numpy(hidden_ND)).numpy()
    np.testing.assert_allclose(numpy_network.all_scores(hidden_ND), all_scores, atol=1e-5)


def test_a_softmax_model_has_no_constant(tmp_path: Path) -> None:
    for network in both(small_run(tmp_path / "run", "lstm", "softmax")):
        assert network.choose_mode() == network.choose_mode("normalised") == "normalised"
        with pytest.raises(UserError, match="trained with the loss softmax and has no constant Z"):
            network.choose_mode("unnormalised")
    assert network_of("lstm").choose_mode() == "unnormalised"


def test_an_exact_layer_is_left_to_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.open(small_run(tmp_path / "run", "lstm", "adaptive-softmax"))
    assert isinstance(open_network(run), TorchNetwork)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"a lstm with adaptive-softmax on 'cpu', needs the package 'torch'"):
        open_network(run)


def test_a_file_that_is_not_the_runs(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "lstm")
    change_weights(run, lambda tensors: tensors.pop("output.bias"))
    with pytest.raises(UserError, match=r"does not fit the run's config.toml and vocab.txt: 'output.bias'"):
        open_network(Run.open(run))
    path = run / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes(2) + whole[-7:])
    with pytest.raises(UserError, match="is damaged: its checksum does not match its contents"):
        open_network(Run.open(run))
    path.write_bytes(whole[:-7])
    with pytest.raises(UserError, match="is incomplete or not a safetensors file"):
        open_network(Run.open(run))
    path.unlink()
    with pytest.raises(UserError, match="has no model"):
        open_network(Run.open(run))
