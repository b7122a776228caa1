"""One training run from its config to its figures: what `bnce train` does, and anything else that trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnce.config import RunConfig
from bnce.corpus.store import Corpus
from bnce.errors import DiskFullError, NotFiniteError, OutOfMemoryError, UserError, full_memory
from bnce.evaluation.evaluate import Evaluation, evaluate
from bnce.machine.devices import describe_device
from bnce.machine.stopping import Stopped
from bnce.machine.threads import use_threads
from bnce.machine.torchrun import tell_place
from bnce.machine.world import World
from bnce.runs.directory import Run, read_summary
from bnce.runs.model_file import read_weights
from bnce.runs.resuming import check_resumable, remove_unbegun
from bnce.training.observer import Observer
from bnce.training.recorder import Recorder
from bnce.training.summary import summarise
from bnce.training.trainer import Trainer

ALL_BUT_LITTLE = 0.9  # of a text; who trains on less of it is told


@dataclass(frozen=True)
class Start:
    """What a run starts from instead of random weights: a model's tensors by name, and where they come from."""

    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any]


def run_training(
    run: Run,
    corpus: Corpus,
    device: torch.device,
    observer: Observer,
    *,
    resume: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    command: str = "",
    start: Start | None = None,
    world: World | None = None,
) -> dict[str, Any]:
    """Train to the end or to a stop, evaluate the best model on test, and return the run's summary.

    In a `world` of many processes all of them call it, and the first one writes what is not rows.

    Ctrl-C and SIGTERM raise what they usually do, once the run is saved and its summary says that it was stopped.
    Whoever calls it holds the run, so that no other process trains it, too.
    """
    world = world or World()
    with _removing_unbegun(run) if world.is_first and not resume else contextlib.nullcontext():
        if resume:
            check_resumable(run)
        corpus.verify()  # a test text that is damaged is to be known before hours go into training
        _choose_threads(run, resume)
        recorder = Recorder(run.path / "tensorboard", observer, writes=world.is_first)
        with _explain_full_memory(config=run.config):
            trainer = Trainer(run, corpus, device, recorder, world)
            if start is not None:
                trainer.network.load_weights(start.tensors)
            if resume:
                trainer.resume()
        _tell_of_part(run.config, corpus, observer)
        _tell_of_unseen(trainer, observer)
        if device.type == "cpu" and trainer.progress.step < trainer.total_steps:
            observer.noticed(
                f"Training on {tell_place(describe_device(device), world.size)}; OMP_NUM_THREADS sets the number of "
                f"threads{' of each process' if world.size > 1 else ''}."
            )

        def summary(status: str) -> dict[str, Any]:
            return {**summarise(trainer, run, corpus, status, command), **({"init": init} if init else {})}

        init = read_summary(run.path).get("init") if start is None else start.record
        # What made a run is the command that started it, not the one that goes on with it.
        command = read_summary(run.path).get("command") or command
        if world.is_first:
            run.write_json("summary.json", summary("running"))
            # One that was killed while it ended has figures of a model that may never be made again.
            (run.path / "evaluation.json").unlink(missing_ok=True)
        world.wait()
        recorder.start(trainer.progress.step)  # last: what is opened is closed below, also where the run fails
        try:
            with _explain_full_memory(config=run.config):
                finished = trainer.train(should_stop)
                if finished and "test" in corpus.statistics:
                    recorder.tested(trainer.progress.step, _test(trainer, run, corpus))
        except (Stopped, KeyboardInterrupt):
            trainer.save_if_needed()
            if world.is_first:
                run.write_json("summary.json", summary("stopped"))
            raise
        except BaseException as error:
            status = "diverged" if isinstance(error, NotFiniteError) else "failed"
            with contextlib.suppress(UserError, OSError):  # the first error is the one to tell
                if world.is_first:
                    run.write_json("summary.json", summary(status))
            raise
        finally:
            recorder.close()
        status = "finished" if finished else "stopped"
        if world.is_first:
            run.write_json("summary.json", summary(status))
        world.wait()
        return summary(status)


def _tell_of_part(config: RunConfig, corpus: Corpus, observer: Observer) -> None:
    """Say that much of the text is left out: somebody may have meant to train on all of it."""
    limit, num_tokens = config.training.max_train_tokens, corpus.statistics["train"].num_tokens
    if 0 < limit < ALL_BUT_LITTLE * num_tokens:
        observer.noticed(
            f"Training uses the first {limit:,} of the corpus's {num_tokens:,} training tokens "
            f"({100 * limit / num_tokens:.0f}%), as training.max_train_tokens says: set it to 0 to use all of them."
        )


def _tell_of_unseen(trainer: Trainer, observer: Observer) -> None:
    """Say what words get that the text does not have: most losses never move them, so they keep it."""
    unseen_V = torch.as_tensor(trainer.run.target_counts == 0)
    num_unseen = int(unseen_V.sum())
    if num_unseen and trainer.loss.structure is None:
        share = float(trainer.network.noise.log_target_probs().cpu().double().exp()[unseen_V].sum())
        observer.noticed(
            f"{num_unseen:,} of the {len(unseen_V):,} words of the vocabulary are no targets in the training text. "
            f"Together they start with {100 * share:.2g}% of the probability."
        )


def _choose_threads(run: Run, resume: bool) -> None:
    """Compute with as many CPU threads as a resumed run had, to get the same bits."""
    before = read_summary(run.path).get("threads") if resume else None
    usual = before if isinstance(before, int) and before > 0 else 0
    use_threads(usual)


def _test(trainer: Trainer, run: Run, corpus: Corpus) -> Evaluation:
    """Evaluate the best model on test: the one at hand, or the one on disk, which takes its place."""
    if trainer.progress.best_step != trainer.progress.step:
        trainer.save_if_needed()  # as it is now, in case that the test is broken off
        trainer.network.load_weights(read_weights(run)[0])
    part = corpus.part("test", max_words=run.config.training.max_test_tokens)
    with trainer.network.as_whole() as model:
        result = evaluate(
            model,
            part.ids,
            progress=lambda num_done, num_tokens: trainer.observer.evaluating("test", num_done, num_tokens),
            known=run.word_counts,
            world=trainer.world,
            num_bytes=part.num_bytes,
            # A second reading takes as long as the first: only where sentences are what the model is trained for.
            by_sentence=run.config.training.reset_rate > 0,
        )
    if trainer.world.is_first:
        run.write_json("evaluation.json", {"split": "test", **result.to_dict()})
    return result


@contextlib.contextmanager
def _removing_unbegun(run: Run) -> Iterator[None]:
    """Remove a run that fails at its start: it shall not stand in the way of the same command, corrected."""
    try:
        yield
    except (NotFiniteError, DiskFullError):
        raise
    except Exception:
        with contextlib.suppress(OSError, UserError):
            remove_unbegun(run.path)
        raise


@contextlib.contextmanager
def _explain_full_memory(config: RunConfig) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        # Capturing a step fails once more as it is broken off, and shows that error instead.
        memory = full_memory(error) or full_memory(error.__context__)
        if memory is None:
            raise
        raise OutOfMemoryError(
            f"The {memory} is full: {config.model.name} with {config.loss.name} does not fit. Lower "
            f"training.batch_size ({config.training.batch_size}) or the model's sizes, or stop other programs there."
        ) from error
