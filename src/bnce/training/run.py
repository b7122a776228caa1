"""One training run from its config to its figures: what `bnce train` does, and anything else that trains."""

from __future__ import annotations

import contextlib
import functools
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bnce import files
from bnce.corpus.store import Corpus
from bnce.errors import DiskFullError, DivergedError, OutOfMemoryError, UserError, full_memory
from bnce.evaluation.evaluate import Evaluation, digest_ids, evaluate
from bnce.machine.devices import describe_device
from bnce.machine.processes import World
from bnce.machine.signals import Stopped
from bnce.machine.threads import tell_place, use_threads
from bnce.runs.directory import Run, read_summary
from bnce.runs.model_file import read_weights
from bnce.runs.resuming import check_resumable, remove_unbegun
from bnce.settings import RunConfig
from bnce.training.advice import advise_whole_text
from bnce.training.recorder import Observer, Recorder
from bnce.training.trainer import Trainer
from bnce.version import __version__


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
    world, before = world or World(), read_summary(run.path)
    with _removing_unbegun(run) if world.is_first and not resume else contextlib.nullcontext():
        if resume:
            check_resumable(run)
        corpus.verify()  # a test text that is damaged is to be known before hours go into training
        # With as many threads as a resumed run had, sums are rounded the same.
        use_threads(before.get("threads", 0) if resume else 0)
        recorder = Recorder(run.path / "tensorboard", observer, writes=world.is_first)
        with _explain_full_memory(config=run.config):
            trainer = Trainer(run, corpus, device, recorder, world)
            if start is not None:
                trainer.model.load_state_dict(dict(start.tensors))
            if resume:
                trainer.resume()
        for sentence in (advise_whole_text(run.config, corpus), _describe_unseen(trainer)):
            if sentence is not None:
                observer.noticed(sentence)
        if device.type == "cpu" and trainer.progress.step < trainer.total_steps:
            observer.noticed(
                f"Training on {tell_place(describe_device(device), world.size)}; OMP_NUM_THREADS sets the number of "
                f"threads{' of each process' if world.size > 1 else ''}."
            )
        init = before.get("init") if start is None else start.record
        # What made a run is the command that started it, not the one that goes on with it.
        command = before.get("command") or command

        def write_summary(status: str) -> dict[str, Any]:
            summary = summarise(trainer, run, corpus, status, command) | ({"init": init} if init else {})
            if world.is_first:
                files.write_json(run.path / "summary.json", summary)
            return summary

        write_summary("running")
        if world.is_first:
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
            write_summary("stopped")
            raise
        except BaseException as error:
            with contextlib.suppress(UserError, OSError):  # the first error is the one to tell
                write_summary("diverged" if isinstance(error, DivergedError) else "failed")
            raise
        finally:
            recorder.close()
        summary = write_summary("finished" if finished else "stopped")
        world.wait()
        return summary


def _describe_unseen(trainer: Trainer) -> str | None:
    """Say what words get that the text does not have: most losses never move them, so they keep it."""
    unseen_V = torch.as_tensor(trainer.run.target_counts == 0)
    num_unseen = int(unseen_V.sum())
    if not num_unseen or trainer.loss.structure:
        return None
    share = float(trainer.model.output.noise.log_target_probs().cpu().double().exp()[unseen_V].sum())
    return (
        f"{num_unseen:,} of the {len(unseen_V):,} words of the vocabulary are no targets in the training text. "
        f"Together they start with {100 * share:.2g}% of the probability."
    )


def _test(trainer: Trainer, run: Run, corpus: Corpus) -> Evaluation:
    """Evaluate the best model on test: the one at hand, or the one on disk, which takes its place."""
    if trainer.progress.best_step != trainer.progress.step:
        trainer.save_if_needed()  # as it is now, in case that the test is broken off
        trainer.model.load_state_dict(read_weights(run)[0])
    part = corpus.part("test", max_words=run.config.training.max_test_tokens)
    result = evaluate(
        trainer.model,
        part.ids,
        progress=lambda num_done, num_tokens: trainer.observer.evaluating("test", num_done, num_tokens),
        known=run.word_counts,
        world=trainer.world,
        num_bytes=part.num_bytes,
        # A second reading takes as long as the first: only where sentences are what the model is trained for.
        by_sentence=run.config.training.reset_rate > 0,
    )
    if trainer.world.is_first:
        files.write_json(run.path / "evaluation.json", {"split": "test", **result.to_dict()})
    return result


@contextlib.contextmanager
def _removing_unbegun(run: Run) -> Iterator[None]:
    """Remove a run that fails at its start: it shall not stand in the way of the same command, corrected."""
    try:
        yield
    except (DivergedError, DiskFullError):
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


def summarise(trainer: Trainer, run: Run, corpus: Corpus, status: str, command: str) -> dict[str, Any]:
    """Describe a run as it is now, for summary.json: its size, speed, machine and command, and how far it has come."""
    # While a run goes on, and where an error broke it off, its clock has not been read.
    is_timed, progress = status in ("finished", "stopped"), trainer.progress
    return {
        "status": status,
        "num_parameters": trainer.model.num_parameters,
        "num_table_parameters": sum(table.numel() for table in trainer.model.tables().values()),
        "vocab_size": len(run.vocabulary),
        "vocabulary_digest": run.vocabulary.digest,
        "valid_text_sha256": digest_ids(trainer.valid_ids),
        "device": ", then ".join(progress.devices),
        "processes": trainer.world.size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "bnce": __version__,
        "commit": _commit(),
        "command": command,
        "seed": run.config.training.seed,
        "words_per_second": progress.words_per_second if is_timed else None,
        "train_seconds": progress.seconds if is_timed else None,
        "startup_seconds": progress.startup_seconds if is_timed else None,
        "tokens": progress.tokens if is_timed else None,
        "epochs": progress.step / len(trainer.streams) if is_timed else None,
        "step": progress.step,
        "best_step": progress.best_step,
        "stopped_early": trainer.stops_early,
        "warnings": progress.warnings,
        "changes": progress.changes,
    }


@functools.cache
def _commit() -> str | None:
    """Name the commit of this code, where it runs from a checkout."""
    here = Path(__file__).parents[1]
    if not (here.parent.parent / ".git").exists():
        return None
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    try:
        answer = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
