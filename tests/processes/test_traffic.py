"""What goes from process to process: as many bytes as the formula of docs/scaling.md says, whatever V is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from making import loss_of, model_of, optimiser_of

import bnce
from bnce.corpus.streams import Chunk
from bnce.language_model import LanguageModel
from bnce.machine.world import World
from bnce.optimisers import build_optimiser
from bnce.processes.working_tables import WorkingTables, bound_rows
from bnce.training.step import TrainingStep

R, T, B, E, D = 2, 3, 4, 6, 5  # E + D + 1 = 12 columns, which are filled up to 16
NUM_FREQUENT = 100  # words that occur; of so few, there is room for as many as a larger vocabulary has


def _count(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=R)
    found = {}
    for vocab_size in (100, 5000):
        counts = torch.full((vocab_size,), 1e-9, dtype=torch.float64)
        counts[:NUM_FREQUENT] = 1.0
        model = LanguageModel(
            model_of(name="relu-rnn", embedding_size=E, hidden_size=7, bottleneck_size=D),
            loss_of(),
            bnce.noise.unigram(counts),
        )
        world = World(rank, R)
        tables = WorkingTables(model, world, num_groups=1, chunk_shape=(T, B))
        optimiser = build_optimiser(model, optimiser_of(name="rowwise-adam"), tables=tables)
        step = TrainingStep(
            model, optimiser, B, T, gradient="tokens", precision="float32", tables=tables, total_groups=R
        )
        words = torch.randint(NUM_FREQUENT, (T + 1, B), generator=torch.Generator().manual_seed(rank))
        step(Chunk(words[:-1], words[1:]), 1.0)
        found[vocab_size] = dict(world.bytes_sent), tables.traffic.num_rows, len(optimiser.body.flat)
    if rank == 0:
        torch.save(found, f"{directory}/found.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_bytes_of_a_step_are_those_of_the_formula(tmp_path: Path) -> None:
    """Row numbers and gradients to each other process, and the body once around the ring."""
    mp.start_processes(_count, args=(str(tmp_path),), nprocs=R, start_method="fork")
    found = torch.load(tmp_path / "found.pt")
    sent, num_rows, num_body = found[100]
    assert sent["row numbers"] == 8 * num_rows * (R - 1)
    assert sent["row gradients"] == 4 * num_rows * (R - 1) * 16
    assert sent["body"] == 2 * num_body * 4 * (R - 1) // R
    assert sent.get("control", 0) < 100
    assert found[5000] == found[100]


def test_room_for_rows_follows_the_frequencies_of_words() -> None:
    """Words that follow p_n need no more rows than the bound."""
    noise = bnce.noise.unigram(1000 / torch.arange(1, 2001))
    room = bound_rows(noise, 500)
    assert room < 500
    for seed in range(50):
        drawn = noise.sample((500,), torch.Generator().manual_seed(seed)).unique()
        assert len(drawn) <= room


def test_too_little_room_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """At the end of this text, every word of a step is another one, which the frequencies do not show."""
    text = tmp_path / "text.txt"
    names = [f"{first}{second}" for first in "bcdfghklmn" for second in "aeioubcdfghklmn"]
    text.write_text("and so on\n" * 400 + " ".join(names) + "\n", encoding="utf-8")
    corpus = bnce.prepare([text], tmp_path / "corpus", valid=text, test=text, min_count=1)
    settings = {"training.groups": 2, "training.batch_size": 1, "training.num_steps": 50, "training.epochs": 1}
    with pytest.raises(
        bnce.UserError, match=r"A step has \d+ different words, but there is room for only \d+.*training\.groups=1"
    ):
        bnce.train("small", corpus=corpus, out=tmp_path / "run", loss="softmax", settings=settings)
