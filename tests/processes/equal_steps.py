"""Some steps of training in several processes, and what each of them ends with."""

from __future__ import annotations

import itertools
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from making import draws_all, loss_of, model_of, optimiser_of
from small_corpus import END
from torch import Tensor

from bnce import noise
from bnce.corpus.streams import Chunk
from bnce.language_model import LanguageModel
from bnce.machine.processes import World
from bnce.settings import RunConfig, TrainingConfig
from bnce.training.step import TrainingStep

V, B, T, G = 60, 4, 5, 4
# All cases are compared after 50 steps; the few of every day, to save time, after as many as show what is carried over.
NUM_STEPS = 50 if os.environ.get("BNCE_EVERY_CASE") else 4


def counts() -> Tensor:
    """Count words as text has them."""
    return (200 / torch.arange(1, V + 1)).ceil()


def chunk_of(step: int) -> Chunk:
    """Make the streams of all groups."""
    generator = torch.Generator().manual_seed(1000 + step)
    words = torch.multinomial(counts().float(), (T + 1) * G * B, replacement=True, generator=generator)
    words = words.reshape(T + 1, G * B)
    return Chunk(words[:-1], words[1:])


def with_resets(chunk: Chunk) -> Chunk:
    """Begin a text anew at every other `</s>` or so."""
    num_rows, num_streams = chunk.input_LB.shape
    is_odd = (torch.arange(num_rows).unsqueeze(1) + torch.arange(num_streams)) % 2 == 1
    return Chunk(chunk.input_LB, chunk.target_TB, is_odd & (chunk.input_LB == END))


def train(
    world: World,
    *,
    loss: str,
    optimiser: str,
    in_order: bool = True,
    num_steps: int = NUM_STEPS,
    dropout: float = 0.2,
    clip_norm: float = 0.05,
    device: str = "cpu",
    body: str = "relu-lstm",
    num_layers: int = 1,
    replacement: bool = True,
    resets: bool = False,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Train as one of the processes, in float64 on a CPU and in float32 on a GPU; give what all of them keep."""
    torch.manual_seed(7)
    of_loss = {"num_noise": 6} if draws_all(loss) else {}
    if loss == "sampled-softmax":
        of_loss["replacement"] = replacement
    # Row-wise Adam takes steps of its rate whatever the gradient: at 0.3 words would jump, and rounding errors grow.
    rate = 0.01 if optimiser == "rowwise-adam" else 0.3
    config = RunConfig(
        model=model_of(body, 6, 7, 5, num_layers=num_layers, dropout=dropout),
        loss=loss_of(loss, **of_loss),
        optimiser=optimiser_of(
            optimiser, learning_rate=rate, body_learning_rate=0.01, clip_norm=clip_norm, gradient="tokens"
        ),
        training=TrainingConfig(
            batch_size=B, num_steps=T, groups=G, seed=3, precision="float32", deterministic=in_order
        ),
    )
    model = LanguageModel(config.model, config.loss, noise.unigram(counts()))
    model.to(dtype if device == "cpu" else torch.float32)
    step = TrainingStep(model, config, world, torch.device(device))
    for number in range(num_steps):
        whole, before = chunk_of(number), torch.zeros(model.num_context, G * B, dtype=torch.int64)
        whole = Chunk(torch.cat([before, whole.input_LB]), whole.target_TB)
        whole = with_resets(whole) if resets else whole
        step(whole.divide(world.size)[world.rank], 1.0, number)
        assert step.starts_up or (step._graph is not None) == (device != "cpu" and world.can_be_captured)
    tables = {name: table.detach().clone() for name, table in model.tables().items()}
    return {**tables, "body": step.optimiser.body.flat.clone(), "norm": step.norm.clone(), **step.tensors()}


def _run(rank: int, size: int, directory: str, cases: list[dict], backend: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{directory}/meeting", rank=rank, world_size=size)
    for number, case in enumerate(cases):
        world = World(rank, size, torch.device("cuda" if backend == "nccl" else "cpu"))
        torch.save(train(world, **case), f"{directory}/{number}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def in_processes(size: int, directory: str, cases: list[dict], backend: str = "gloo") -> list[dict[str, Tensor]]:
    """Train all cases in so many processes, whose copies must be equal to the last bit."""
    # A process that has used a GPU cannot be forked.
    method = "spawn" if torch.cuda.is_available() else "fork"
    mp.start_processes(_run, args=(size, directory, cases, backend), nprocs=size, start_method=method)
    found = []
    for number in range(len(cases)):
        first, *others = (torch.load(f"{directory}/{number}-{rank}.pt", map_location="cpu") for rank in range(size))
        for other, (name, tensor) in itertools.product(others, first.items()):
            assert torch.equal(other[name], tensor), f"{name} of two processes differs after {cases[number]}"
        found.append(first)
    return found
