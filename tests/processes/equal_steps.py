"""Some steps of training in several processes: what they end with, and what was sent."""

from __future__ import annotations

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
from bnce.machine.world import World
from bnce.optimisers import build_optimiser
from bnce.processes.working_tables import WorkingTables
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
) -> dict[str, Tensor]:
    """Train as one of the processes, in float64 on a CPU and in float32 on a GPU; give what all of them keep."""
    torch.manual_seed(7)
    num_noise = 6 if draws_all(loss) else 0
    model = LanguageModel(
        model_of(name=body, embedding_size=6, hidden_size=7, bottleneck_size=5, num_layers=num_layers, dropout=dropout),
        loss_of(loss, num_noise=num_noise, **({} if replacement else {"replacement": False})),
        noise.unigram(counts()),
    ).to(device, torch.float64 if device == "cpu" else torch.float32)
    num_groups = G // world.size
    tables = WorkingTables(model, world, num_groups=num_groups, chunk_shape=(T, B), in_order=in_order, seed=3)
    # Row-wise Adam takes steps of its rate whatever the gradient: at 0.3 words would jump, and rounding errors grow.
    rate = 0.01 if optimiser == "rowwise-adam" else 0.3
    config = optimiser_of(name=optimiser, learning_rate=rate, body_learning_rate=0.01, clip_norm=clip_norm)
    stepper = build_optimiser(model, config, tables=tables)
    step = TrainingStep(model, stepper, B, T, gradient="tokens", precision="float32", tables=tables, total_groups=G)
    for number in range(num_steps):
        whole = with_resets(chunk_of(number)) if resets else chunk_of(number)
        step(whole.divide(world.size)[world.rank], 1.0, number=number)
        assert step.starts_up or (step._graph is not None) == (device != "cpu" and world.can_be_captured)
        assert int(tables.traffic.most_rows) <= tables.traffic.num_rows
    return result_of(tables, stepper.body.flat, step, world)


def result_of(tables: WorkingTables, body: Tensor, step: TrainingStep, world: World) -> dict[str, Tensor]:
    """Give the tables, and the rest, as every process has them after gathering."""
    found = {name: table.detach().clone() for name, table in tables.kept.items()}
    found["body"] = body.detach().clone()
    found["loss"] = world.sum_(step.loss_total.clone(), "test")
    found["norm"] = step.norm.clone()
    for place, part in enumerate(step.state):
        found[f"state {place}"] = torch.cat(list(world.gather(part.contiguous(), "test")), 1)
    return found


def _run(rank: int, size: int, directory: str, cases: list[dict], backend: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{directory}/meeting", rank=rank, world_size=size)
    for number, case in enumerate(cases):
        world = World(rank, size, torch.device("cuda" if backend == "nccl" else "cpu"), is_alone=False)
        found = train(world, **case)
        if rank == 0:
            torch.save(found, f"{directory}/{size}-{number}.pt")
    dist.barrier()
    dist.destroy_process_group()


def in_processes(size: int, directory: str, cases: list[dict], backend: str = "gloo") -> list[dict[str, Tensor]]:
    """Train all cases in so many processes."""
    # A process that has used a GPU cannot be forked.
    method = "spawn" if torch.cuda.is_available() else "fork"
    mp.start_processes(_run, args=(size, directory, cases, backend), nprocs=size, start_method=method)
    return [torch.load(f"{directory}/{size}-{number}.pt", map_location="cpu") for number in range(len(cases))]
