"""What goes from process to process: as many bytes as the formula of docs/scaling.md says, whatever V is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import bnce
from bnce import UserError
from bnce.config import LossConfig, ModelConfig, OptimiserConfig
from bnce.corpus.streams import Chunk
from bnce.language_model import LanguageModel
from bnce.machine.world import World
from bnce.optimisers import build_optimiser
from bnce.processes.placement import Placement
from bnce.processes.working_tables import WorkingTables, bound_rows
from bnce.training.step import TrainingStep

R, T, B, E, D, C = 2, 3, 4, 6, 5, 20  # E + D + 1 = 12 columns, which are filled up to 16


def _count(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=R)
    found: dict[tuple[int, str], Any] = {}
    for vocab_size in (100, 5000):
        for wire in (None, torch.bfloat16):
            model = LanguageModel(
                ModelConfig(name="relu-rnn", embedding_size=E, hidden_size=7, bottleneck_size=D),
                LossConfig(),
                bnce.noise.unigram(torch.ones(vocab_size)),
            )
            world = World(rank, R)
            tables = WorkingTables(model, world, sharded=True, num_groups=1, chunk_shape=(T, B), capacity=C, wire=wire)
            optimiser = build_optimiser(model, OptimiserConfig(name="rowwise-adam"), tables=tables)
            step = TrainingStep(
                model, optimiser, B, T, gradient="tokens", precision="float32", tables=tables, total_groups=R
            )
            words = torch.randint(100, (T + 1, B), generator=torch.Generator().manual_seed(rank))
            step(Chunk(words[:-1], words[1:]), 1.0)
            found[vocab_size, str(wire)] = dict(world.bytes_sent), len(optimiser.body.flat)
    if rank == 0:
        torch.save(found, f"{directory}/found.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_bytes_of_a_step_are_those_of_the_formula(tmp_path: Path) -> None:
    """Row numbers, rows and gradients to each other process, and the body once around the ring."""
    mp.start_processes(_count, args=(str(tmp_path),), nprocs=R, start_method="fork")
    found = torch.load(tmp_path / "found.pt")
    for (_, wire), (sent, num_body) in found.items():
        rows = C * (R - 1) * 16 * (4 if wire == "None" else 2)
        assert sent["rows"] == sent["row gradients"] == rows
        assert sent["row numbers"] == C * (R - 1) * 4
        assert sent["body"] == 2 * num_body * 4 * (R - 1) // R
        assert sent["control"] < 100
    assert found[100, "None"] == found[5000, "None"]


def test_rows_are_spread_evenly_and_owned_once() -> None:
    """Frequent words, which have neighbouring numbers, are not together."""
    for num_processes in (1, 2, 3, 7):
        placement = Placement.of(1000, num_processes, torch.device("cpu"))
        owned = [placement.words_of(rank) for rank in range(num_processes)]
        assert torch.equal(torch.cat(owned).sort().values, torch.arange(1000))
        for rank, words in enumerate(owned):
            owner, row = placement.find(words)
            assert torch.all(owner == rank)
            assert torch.equal(row, torch.arange(len(words)))
            expected = 100 / num_processes
            assert abs(int((words < 100).sum()) - expected) <= 4 * expected**0.5


def test_room_for_rows_follows_the_frequencies_of_words() -> None:
    """Words that follow p_n need no more rows than the bound, with one process and with four."""
    counts = 1000 / torch.arange(1, 2001)
    noise = bnce.noise.unigram(counts)
    for num_processes in (1, 4):
        placement = Placement.of(2000, num_processes, torch.device("cpu"))
        room = bound_rows(noise, 500, placement)
        assert room < 500
        for seed in range(50):
            drawn = noise.sample((500,), torch.Generator().manual_seed(seed)).unique()
            owner, _ = placement.find(drawn)
            assert int(owner.bincount().max()) <= room


def test_groups_must_be_divided_by_processes(tmp_path: Path) -> None:
    """Somebody who starts three processes for two groups is told so."""
    from bnce.runs.model_file import build_model
    from bnce.training.network import Network
    from bnce.training.plan import create_run
    from tests.processes.run_in_processes import config
    from tests.small_corpus import small_corpus

    run = create_run(tmp_path / "run", config(), small_corpus(tmp_path / "corpus"))
    with pytest.raises(UserError, match=r"training\.groups is 12, but the run has 5 processes"):
        Network(build_model(run), run.config, torch.device("cpu"), World(0, 5))


def test_too_little_room_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    """A step whose rows do not fit ends the run with what to set."""
    from tests.processes.run_in_processes import config, train
    from tests.small_corpus import small_corpus

    corpus = small_corpus(tmp_path / "corpus")
    with pytest.raises(UserError, match=r"rows .* room for only 7: continue with training\.row_capacity="):
        train(World(), str(corpus.directory), str(tmp_path / "run"), settings=config(row_capacity=7))
