"""Tables sharded by bnce beside the same tables sharded by TorchRec: rows and accumulators after equal gradients.

python benchmarks/torchrec_oracle.py

Two gloo processes train two tables by row-wise Adagrad, once as bnce keeps them (`WorkingTables`, sharded) and once as
TorchRec does (`EmbeddingCollection`, sharded by row, FBGEMM's EXACT_ROWWISE_ADAGRAD). Both get the same words and the
same gradient for each occurrence of a word, nothing is clipped. Words follow Zipf's law, so many occur more than once
in a step, in one process and in both: their gradients must be added up before they are squared.

bnce does not need TorchRec. Install it in an environment of its own, with FBGEMM's CPU wheel for its PyTorch; for
PyTorch 2.13 these are torchrec 1.8.0 and fbgemm-gpu-cpu 1.8.0.

Legend: V words, T time steps, B streams, M words of a process in a step, D columns.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from bnce import rows
from bnce.config import LossConfig, ModelConfig, OptimiserConfig
from bnce.corpus.streams import Chunk
from bnce.language_model import LanguageModel
from bnce.machine.world import World
from bnce.noise import unigram
from bnce.optimisers import build_optimiser
from bnce.processes.working_tables import WorkingTables
from bnce.version import __version__

R, T, B, D = 2, 10, 16, 16
RATE, EPS = 0.1, 1e-8  # the eps of bnce's rule
TOLERANCE = 1e-5
TABLES = {"embedding": "embedding", "output.weight": "output"}  # TorchRec's names have no dots
TO_INSTALL = "TorchRec cannot be loaded: install torchrec==1.8.0 and fbgemm-gpu-cpu==1.8.0 beside PyTorch 2.13."

Found = dict[str, Tensor]


def main() -> None:
    """Train both ways, and print how far apart they end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab-size", type=int, default=2001, help="V; odd, so that the processes' shares differ")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    try:
        import fbgemm_gpu
        import torchrec
    except (ImportError, OSError) as error:  # an OSError where FBGEMM was built for another PyTorch
        sys.exit(f"{TO_INSTALL} ({str(error).splitlines()[0]})")
    with tempfile.TemporaryDirectory() as directory:
        mp.start_processes(_run, args=(directory, options.vocab_size, options.steps), nprocs=R, start_method="spawn")
        ours, theirs = (torch.load(Path(directory, f"{name}.pt")) for name in ("bnce", "torchrec"))
    last = "largest difference, divided by the value if it is above 1"
    print(f"| | numbers | changed | largest value | largest difference | {last} |")
    print("|---|---:|---:|---:|---:|---:|")
    worst = 0.0
    for name, tensor in ours.items():
        start = initial(name, options.vocab_size) if name in TABLES else torch.zeros_like(tensor)
        difference = (tensor - theirs[name]).abs()
        relative = float((difference / theirs[name].abs().clamp(min=1)).max())
        worst = max(worst, relative)
        print(
            f"| {name} | {tensor.numel():,} | {int((tensor != start).sum()):,} | {float(tensor.abs().max()):.3g} "
            f"| {float(difference.max()):.1e} | {relative:.1e} |"
        )
    unmerged = square_each(options.vocab_size, options.steps)
    apart = float(((ours["accumulator of embedding"] - unmerged).abs() / unmerged.clamp(min=1)).max())
    print(
        f"\n{R} gloo processes, V = {options.vocab_size:,}, D = {D}, {options.steps} steps of {T * B} words per table "
        f"and process, float32. torch {torch.__version__}, torchrec {torchrec.__version__}, fbgemm-gpu-cpu "
        f"{fbgemm_gpu.__version__}, bnce {__version__}. Squared before equal rows are added up, the first accumulator "
        f"would differ by {apart:.1e}."
    )
    if not worst < TOLERANCE:
        sys.exit(f"The two differ by {worst:.1e}; float32 explains {TOLERANCE:.0e}.")


def square_each(vocab_size: int, num_steps: int) -> Tensor:
    """Make the embedding's accumulator as it would be if each occurrence of a word were squared on its own."""
    total = torch.zeros(vocab_size)
    for number, rank in itertools.product(range(num_steps), range(R)):
        chunk, grads = step_of(number, rank, vocab_size)
        total.index_add_(0, words_of(chunk)["embedding"], grads["embedding"].square().mean(1))
    return total


def initial(name: str, vocab_size: int) -> Tensor:
    """Make the table that both begin with."""
    return torch.randn(vocab_size, D, generator=torch.Generator().manual_seed(list(TABLES).index(name)))


def zipf(vocab_size: int) -> Tensor:
    """Count words as text has them."""
    return vocab_size / torch.arange(1, vocab_size + 1)


def step_of(number: int, rank: int, vocab_size: int) -> tuple[Chunk, dict[str, Tensor]]:
    """Draw the words of a process's step, and a gradient for every occurrence (M, D)."""
    generator = torch.Generator().manual_seed(2 * number + rank)
    words = torch.multinomial(zipf(vocab_size), (T + 1) * B, replacement=True, generator=generator).reshape(T + 1, B)
    chunk = Chunk(words[:-1], words[1:])
    return chunk, {name: torch.randn(T * B, D, generator=generator) for name in TABLES}


def words_of(chunk: Chunk) -> dict[str, Tensor]:
    """Say which words' rows a step uses of each table."""
    return {"embedding": chunk.input_LB.reshape(-1), "output.weight": chunk.target_TB.reshape(-1)}


def train_ours(world: World, vocab_size: int, num_steps: int) -> Found:
    """Give the tables and accumulators that bnce ends with, in the order of words."""
    model = LanguageModel(
        ModelConfig(name="relu-rnn", embedding_size=D, hidden_size=4, bottleneck_size=D),
        LossConfig(),
        unigram(zipf(vocab_size)),
    )
    with torch.no_grad():
        for name in TABLES:
            model.tables()[name].copy_(initial(name, vocab_size))
    tables = WorkingTables(model, world, sharded=True, num_groups=1, chunk_shape=(T, B))
    config = OptimiserConfig(name="rowwise", learning_rate=RATE, clip_norm=1e30, initial_accumulator=0.0)
    optimiser = build_optimiser(model, config, tables=tables)
    for number in range(num_steps):
        chunk, grads = step_of(number, world.rank, vocab_size)
        places = words_of(tables.begin([chunk], number)[0])
        # A sum whose derivative by a row, at each of its occurrences, is the gradient that was drawn.
        read = {name: rows.gather(table, places[name]) for name, table in model.tables().items() if name in TABLES}
        total = torch.stack([(read[name] * grads[name]).sum() for name in TABLES]).sum()
        (total + 0 * rows.gather(model.tables()["output.bias"], places["output.weight"]).sum()).backward()
        tables.end_group(optimiser.body)
        optimiser.apply(optimiser.collect())
        assert int(tables.traffic.most_rows) <= tables.traffic.capacity
    found = {name: tables.whole(name) for name in TABLES}
    for name in TABLES:
        shuffled = torch.cat(list(world.gather(optimiser.state_tensors()[f"accumulator.{name}"], "accumulators")))
        found[f"accumulator of {name}"] = shuffled.index_select(0, tables.placement.position_V)
    return found


def train_theirs(world: World, vocab_size: int, num_steps: int) -> Found:
    """Give the tables and accumulators that TorchRec ends with, in the order of words."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.comm_ops import set_gradient_division
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingPlan

    set_gradient_division(False)  # gradients are to be added up, as they are in bnce, and not averaged
    device, names = torch.device("cpu"), list(TABLES.values())
    plain = EmbeddingCollection(
        device=device,
        tables=[
            EmbeddingConfig(name=name, embedding_dim=D, num_embeddings=vocab_size, feature_names=[name])
            for name in names
        ],
    )
    with torch.no_grad():
        for ours, name in TABLES.items():
            plain.embeddings[name].weight.copy_(initial(ours, vocab_size))
    sharder = EmbeddingCollectionSharder(
        fused_params={"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": RATE, "eps": EPS}
    )
    plan = construct_module_sharding_plan(
        plain,
        {name: row_wise(compute_kernel="fused") for name in names},
        sharder,
        local_size=R,
        world_size=R,
        device_type="cpu",
    )
    sharded = DistributedModelParallel(
        plain, device=device, plan=ShardingPlan({"": plan}), sharders=[sharder], init_parameters=False
    )
    _load(sharded.state_dict(), vocab_size)
    for number in range(num_steps):
        chunk, grads = step_of(number, world.rank, vocab_size)
        words = torch.cat(list(words_of(chunk).values()))
        jagged = KeyedJaggedTensor(names, words, lengths=torch.full((len(names),), T * B))
        found = sharded(jagged)
        total = torch.stack([(found[TABLES[name]].values() * grads[name]).sum() for name in TABLES]).sum()
        total.backward()
    rows = {key: _whole(world, tensor) for key, tensor in sharded.state_dict().items()}
    states: dict[str, Any] = sharded.fused_optimizer.state_dict()["state"]
    result = {}
    for ours, name in TABLES.items():
        result[ours] = rows[f"embeddings.{name}.weight"]
        momentum = states[f"embeddings.{name}.weight"][f"{name}.momentum1"]
        result[f"accumulator of {ours}"] = _whole(world, momentum).reshape(-1)
    return result


def _load(state: dict[str, Any], vocab_size: int) -> None:
    for ours, name in TABLES.items():
        for shard in state[f"embeddings.{name}.weight"].local_shards():
            begin, size = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
            with torch.no_grad():
                shard.tensor.copy_(initial(ours, vocab_size)[begin : begin + size])


def _whole(world: World, sharded: Any) -> Tensor:
    """Gather the rows of all processes; TorchRec gives each process a range of them, in order."""
    here = torch.cat([shard.tensor.detach() for shard in sharded.local_shards()])
    return torch.cat(world.gather_uneven(here, "tables"))


def _run(rank: int, directory: str, vocab_size: int, num_steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=R)
    world = World(rank, R)
    for name, train in (("bnce", train_ours), ("torchrec", train_theirs)):
        found = train(world, vocab_size, num_steps)
        if world.is_first:
            torch.save(found, Path(directory, f"{name}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
