"""A run that is trained in many processes, which may be stopped or killed on the way."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from making import loss_of, model_of, optimiser_of

from bnce import Corpus
from bnce.machine.processes import ProcessLostError, World
from bnce.optimisers.optimiser import Optimiser
from bnce.runs.directory import Run
from bnce.settings import RunConfig, TrainingConfig
from bnce.training.run import run_training
from bnce.training.trainer import Trainer

G = 12


def config(loss: str = "bnce", **changes: Any) -> RunConfig:
    """Settings of a small run in twelve groups."""
    return RunConfig(
        model=model_of(name="relu-lstm", embedding_size=6, hidden_size=7, bottleneck_size=5, dropout=0.1),
        loss=loss_of(name=loss, num_noise=3 if loss == "snce" else 0),
        optimiser=optimiser_of(
            name="rowwise-adam", learning_rate=0.05, body_learning_rate=0.01, clip_norm=1.0, schedule="linear"
        ),
        training=TrainingConfig(
            **{
                "batch_size": 4,
                "groups": G,
                "num_steps": 5,
                "epochs": 2,
                "reset_rate": 0.3,
                "evaluations_per_epoch": 2,
                "deterministic": True,
                **changes,
            }
        ),
    )


class Silent:
    """Hears nothing."""

    def advanced(self, **_: Any) -> None: ...
    def evaluating(self, *_: Any) -> None: ...
    def evaluated(self, record: dict[str, Any]) -> None: ...
    def noticed(self, sentence: str) -> None: ...


def train(
    world: World, corpus: str, run: str, *, stop_at: int = 0, die: str = "", settings: RunConfig | None = None
) -> str:
    """Train as one of the processes from where the run is; `stop_at` stops it politely, `die` kills the last one."""
    opened = Corpus.open(corpus)
    resume = Path(run, "config.toml").is_file()
    world.wait()
    if world.is_first and not resume:
        Run.create(run, settings or config(), opened)
    world.wait()
    num_asked = 0

    def should_stop() -> bool:
        nonlocal num_asked
        num_asked += 1
        return bool(stop_at) and num_asked >= stop_at

    if die and world.rank == world.size - 1:
        _arm(die)
    try:
        summary = run_training(
            Run.open(run),
            opened,
            torch.device("cpu"),
            Silent(),
            resume=resume,
            should_stop=should_stop,
            world=world,
        )
    except ProcessLostError as error:
        return str(error)
    return str(summary["status"])


def _arm(die: str) -> None:
    """Have this process killed in a step after some, or when it saves for the second time."""
    owner, name, at = (Optimiser, "reduce", 8) if die == "step" else (Trainer, "save", 2)
    plain, calls = getattr(owner, name), itertools.count(1)

    def kill_self(*arguments: Any) -> Any:
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments)

    setattr(owner, name, kill_self)


def _work(rank: int, size: int, meeting: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    told = train(World(rank, size, torch.device("cpu")), *arguments, **keywords)
    Path(f"{meeting}.{rank}").write_text(told, encoding="utf-8")
    if not keywords.get("die"):
        dist.barrier()
        dist.destroy_process_group()


def in_processes(size: int, meeting: Path, *arguments: Any, **keywords: Any) -> list[str]:
    """Train in so many processes, and give what each of them came to; a killed one says nothing."""
    arguments_of_all = (size, str(meeting), arguments, keywords)
    # A fork has PyTorch already, whose import takes seconds. It computes in one thread, so none is missed there.
    context = mp.start_processes(_work, args=arguments_of_all, nprocs=size, join=False, start_method="fork")
    for process in context.processes:
        process.join(120)
        assert process.exitcode is not None, "a process hangs"
    said = [Path(f"{meeting}.{rank}") for rank in range(size)]
    return [path.read_text(encoding="utf-8") for path in said if path.is_file()]
