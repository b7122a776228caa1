"""Two processes that train one model: DistributedDataParallel, with dense gradients and with an exchange of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from making import layer_of
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import bnce
from tests.stacks.small import COUNTS, D, V

NUM_PROCESSES, NUM_STEPS = 2, 3
FORMS = ("dense", "sparse", "tied")
UNEVEN = ("bnce", "softmax", "adaptive-softmax")


class Model(nn.Module):
    """An embedding, a body and a layer."""

    def __init__(self, form: str, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        sparse = form != "dense"
        self.embedding = nn.Embedding(V, D, sparse=sparse)
        self.body = nn.Linear(D, D)
        self.layer = layer_of(D, V, noise=COUNTS, sparse=sparse, learn_log_z=True)
        if form == "tied":
            self.embedding.weight = self.layer.weight

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss."""
        loss: Tensor = self.layer(torch.tanh(self.body(self.embedding(words))), targets)
        return loss


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Make words and targets; the second process has fewer of them."""
    generator = torch.Generator().manual_seed(10 * rank + step)
    words = torch.randint(V, (3 - rank, 4), generator=generator)
    return words, torch.randint(V, words.shape, generator=generator)


def step_by(model: nn.Module) -> None:
    """Clip and step."""
    bnce.clip_grad_norm_(model.parameters(), max_norm=0.05)
    bnce.RowwiseAdagrad(model.parameters(), lr=0.1).step()
    model.zero_grad()


def train(rank: int, directory: str) -> None:
    """Train as one of the processes."""
    torch.set_num_threads(1)
    address = f"file://{directory}/meeting"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=NUM_PROCESSES)
    for form in FORMS:
        model = Model(form, seed=1 + rank)  # the first process's values count
        exchange = None if form == "dense" else bnce.RowExchange(model)
        parallel = DistributedDataParallel(model)
        for step in range(NUM_STEPS):
            # Two backward passes for one step, of which the first is not to be exchanged.
            with parallel.no_sync():
                parallel(*batch(rank, step)).backward()
            parallel(*batch(rank, step + 100)).backward()
            if exchange is not None:
                assert model.layer.weight.grad is not None
                assert model.layer.weight.grad.is_sparse
                exchange.average()
                assert model.layer.weight.grad.is_sparse
            step_by(model)
        torch.save(model.state_dict(), f"{directory}/{form}-{rank}.pt")
    for loss in UNEVEN:
        torch.save(uneven(loss, rank), f"{directory}/uneven-{loss}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # as processes of bnce do: threads of PyTorch's aborted the slow end of a spawned one


def uneven(loss: str, rank: int | None = None) -> Tensor:
    """Give the gradient of a layer that was used in the second process alone; None: without processes."""
    torch.manual_seed(1)
    layer = layer_of(D, V, noise=COUNTS, loss=loss, sparse=True)
    exchange = None if rank is None else bnce.RowExchange(layer)
    if rank != 0:
        layer(torch.ones(4, D), torch.arange(4)).backward()
    if exchange is not None:
        exchange.average()
    assert layer.weight.grad is not None
    return layer.weight.grad.to_dense()


def expected(form: str) -> dict[str, Tensor]:
    """Train on both processes' batches in one."""
    model = Model(form)
    for step in range(NUM_STEPS):
        for rank in range(NUM_PROCESSES):
            for number in (step, step + 100):
                (model(*batch(rank, number)) / NUM_PROCESSES).backward()
        step_by(model)
    return model.state_dict()


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    # Not forked: threads of PyTorch's that other tests have used are not there in a fork, which may wait for them.
    mp.spawn(train, args=(str(tmp_path),), nprocs=NUM_PROCESSES)  # type: ignore[no-untyped-call]
    for form in FORMS:
        wanted = expected(form)
        for rank in range(NUM_PROCESSES):
            found = torch.load(tmp_path / f"{form}-{rank}.pt")
            for name, value in wanted.items():
                assert torch.allclose(found[name], value, atol=1e-6), f"{form} {name}"
    for loss in UNEVEN:
        for rank in range(NUM_PROCESSES):
            found = torch.load(tmp_path / f"uneven-{loss}-{rank}.pt")
            torch.testing.assert_close(found, uneven(loss) / NUM_PROCESSES)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_model_without_rows_needs_no_exchange() -> None:
    with pytest.raises(bnce.UserError, match="No module of the model has sparse=True"):
        bnce.RowExchange(Model("dense"))


@pytest.mark.usefixtures("one_process")
def test_an_exchange_is_made_before_ddp() -> None:
    parallel = DistributedDataParallel(Model("dense"))
    with pytest.raises(bnce.UserError, match=r"a DistributedDataParallel, which.*: make the RowExchange of"):
        bnce.RowExchange(parallel)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("loss", ["bnce", "softmax"])
def test_parameters_without_a_gradient_and_with_a_dense_one(loss: str) -> None:
    """The softmax touches every row, so its gradient is dense whatever was asked for."""
    layer = layer_of(D, V, noise=COUNTS, loss=loss, sparse=True)
    exchange = bnce.RowExchange(layer)
    exchange.average()
    assert layer.weight.grad is None
    layer(torch.ones(4, D), torch.arange(4)).backward()
    assert layer.weight.grad is not None
    before = layer.weight.grad.to_dense()
    exchange.average()
    assert layer.weight.grad.is_sparse == (loss == "bnce")
    torch.testing.assert_close(layer.weight.grad.to_dense(), before)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("counts", ["given", "running"])
def test_ddp_copies_no_noise_that_every_process_has(counts: str) -> None:
    noise = bnce.noise.unigram(COUNTS) if counts == "given" else bnce.noise.Running(V)
    model = nn.Sequential(nn.Linear(D, D), layer_of(D, V, noise=noise, sparse=True))
    bnce.RowExchange(model)
    parallel = DistributedDataParallel(model)
    left = {name for name, _ in model.named_buffers()} - set(parallel.parameters_to_ignore)
    assert left == {"1.log_z"} | ({"1.noise.counts_V", "1.noise.log_probs_V"} if counts == "running" else set())


def test_an_exchange_needs_processes() -> None:
    with pytest.raises(bnce.UserError, match=r"call torch\.distributed\.init_process_group first"):
        bnce.RowExchange(Model("sparse"))


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("loss", ["bnce", "adaptive-softmax"])
def test_fsdp_takes_dense_gradients(loss: str) -> None:
    stepped = []
    for divided in (False, True):
        torch.manual_seed(1)
        layer = layer_of(D, V, noise=COUNTS, loss=loss)
        if divided:
            fully_shard(layer, mesh=dist.init_device_mesh("cpu", (1,)))
        optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer(torch.ones(4, D), torch.arange(4)).backward()
        optimiser.step()
        stepped.append(layer.weight.full_tensor() if divided else layer.weight)
    assert torch.equal(*stepped)
    for kind in (bnce.RowwiseAdagrad, bnce.RowwiseAdam):
        with pytest.raises(bnce.UserError, match=rf"{kind.__name__} was given parameters that FSDP"):
            kind(layer.parameters())
