"""One training run from its config to its figures: what `bnce train` does, and anything else that trains."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bnce import files
from bnce.config import MAX_THREADS, RunConfig
from bnce.corpus.prepare import DOCSTRINGS, prepare
from bnce.corpus.store import Corpus
from bnce.errors import DiskFullError, NotFiniteError, OutOfMemoryError, UserError, argument, full_memory
from bnce.evaluation.evaluate import Evaluation, evaluate
from bnce.evaluation.events import write_test_events
from bnce.kinds.losses import LOSSES
from bnce.losses import softmax_forms
from bnce.machine.devices import describe_device
from bnce.machine.stopping import Stopped
from bnce.machine.threads import use_threads
from bnce.machine.workers import num_cores
from bnce.runs.directory import RunDirectory, read_summary, remove_unbegun, training_streams
from bnce.training.observer import Observer
from bnce.training.trainer import Trainer
from bnce.version import __version__

ALL_BUT_LITTLE = 0.9  # of a text; who trains on less of it is told
# Up to so many tokens a text is small; from so many on it is large enough for the largest models.
SMALL_TOKENS, LARGE_TOKENS = 20_000_000, 300_000_000
DOCSTRING_WORDS = 30_000  # nearly all of them


def open_corpus(name: str, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """Open a corpus directory, or the docstrings, which are prepared once for every version of what they come from."""
    if name != DOCSTRINGS:
        return Corpus.open(name)
    import numpy

    versions = f"torch-{torch.__version__}-numpy-{numpy.__version__}-bnce-{__version__}-{DOCSTRING_WORDS}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bnce" / f"docstrings-{versions}"
    if not cache.exists():
        if progress is not None:
            progress(0, 0)  # to show that something is going on: another process may be at it
        with files.one_maker(cache):
            if not cache.exists():
                _prepare_docstrings(cache, progress)
    return Corpus.open(cache)


def _prepare_docstrings(cache: Path, progress: Callable[[int, int], None] | None) -> None:
    # With every word, since published figures are of this vocabulary.
    prepare([DOCSTRINGS], cache, vocab_size=DOCSTRING_WORDS, min_count=1, num_workers=num_cores(), progress=progress)


def corpus_setting(name: str) -> str:
    """Write a corpus the way a run's config keeps it: the docstrings by their name, a directory by its whole path."""
    return name if name == DOCSTRINGS else str(Path(name).resolve())


def choose_recipe(corpus: Corpus, device: torch.device) -> tuple[str, str]:
    """Choose a recipe by the size of the training text and the device, and say why in a sentence."""
    num_tokens = corpus.statistics["train"].num_tokens
    on_gpu = device.type == "cuda"
    if not on_gpu or num_tokens <= SMALL_TOKENS:
        name = "small"
    else:
        name = "wiki" if num_tokens <= LARGE_TOKENS else "news"
    where = "a GPU" if on_gpu else "a CPU"
    return (
        name,
        f"The recipe '{name}' was chosen for {num_tokens:,} training tokens on {where}; name another to use it.",
    )


def create_run(out: str | Path, config: RunConfig, corpus: Corpus, device: torch.device | None = None) -> RunDirectory:
    """Lay out a run directory, after checking that the corpus and the device, where it is known, can train it."""
    check_trainable(config, corpus, device)
    return RunDirectory.create(out, config, corpus)


def check_trainable(config: RunConfig, corpus: Corpus, device: torch.device | None = None) -> None:
    """Refuse settings that the corpus, or the device, where it is known, cannot train."""
    training, loss = config.training, config.loss
    kind = LOSSES.find(loss.name)
    if device is not None and kind.has_forms and loss.softmax != "auto":
        softmax_forms.get_form(loss.softmax, device)
    training_streams(training, corpus)
    if kind.batch_is_noise and (loss.noise != "unigram" or loss.noise_power != 1):
        drawing = " or ".join(other.name for other in LOSSES if other.draws == "must")
        raise UserError(
            f"The loss {loss.name} takes the other targets of the batch as noise, so its noise is the unigram of the "
            f"text: loss.noise={loss.noise} with loss.noise_power={loss.noise_power:g} would train a wrong model. "
            f"Leave out both settings, or use the losses {drawing}, which draw their noise."
        )
    if kind.batch_is_noise and training.batch_size + loss.num_noise < 2:
        remedy = "training.batch_size" if kind.draws == "never" else "training.batch_size or loss.num_noise"
        raise UserError(f"{kind.shown} with one stream and no drawn words has no noise: raise {remedy}.")


@dataclass(frozen=True)
class Start:
    """What a run starts from in place of chance: a model's tensors by name, and where they come from."""

    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any]


def run_training(
    run: RunDirectory,
    corpus: Corpus,
    device: torch.device,
    observer: Observer,
    *,
    resume: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    command: str = "",
    num_threads: int = 0,
    start: Start | None = None,
) -> dict[str, Any]:
    """Train to the end or to a stop, evaluate the best model on test, and return the run's summary.

    Ctrl-C and SIGTERM raise what they usually do, once the run is saved and its summary says that it was stopped.
    Whoever calls it holds the run, so that no other process trains it, too.
    """
    try:
        return _run_training(run, corpus, device, observer, resume, should_stop, command, num_threads, start)
    except (NotFiniteError, DiskFullError):
        raise
    except Exception:
        if not resume:
            # What failed at its start shall not stand in the way of the same command, corrected.
            with contextlib.suppress(OSError, UserError):
                remove_unbegun(run.path)
        raise


def _run_training(
    run: RunDirectory,
    corpus: Corpus,
    device: torch.device,
    observer: Observer,
    resume: bool,
    should_stop: Callable[[], bool],
    command: str,
    num_threads: int,
    start: Start | None,
) -> dict[str, Any]:
    if resume:
        run.check_resumable()
    corpus.verify()  # a test text that is damaged is to be known before hours go into training
    _choose_threads(run, num_threads, resume)
    recorder = _Recorder(run.path / "tensorboard", observer)
    with _explain_full_memory(config=run.config):
        trainer = Trainer(run, corpus, device, recorder)
        if start is not None:
            trainer.load_weights(start.tensors)
        if resume:
            trainer.resume()
    recorder.start(trainer.step)
    _tell_of_part(run.config, corpus, observer)
    if device.type == "cpu":
        observer.noticed(f"Training on {describe_device(device)}; {argument('num_threads')} changes it.")

    def summary(status: str) -> dict[str, Any]:
        return {**_summary(trainer, run, status, command), **({"init": init} if init else {})}

    init = read_summary(run.path).get("init") if start is None else start.record
    # What made a run is the command that started it, not the one that goes on with it.
    command = read_summary(run.path).get("command") or command
    run.write_json("summary.json", summary("running"))
    # One that was killed while it ended has figures of a model that may never be made again.
    (run.path / "evaluation.json").unlink(missing_ok=True)
    try:
        with _explain_full_memory(config=run.config):
            finished = trainer.train(should_stop)
            if finished and "test" in corpus.statistics:
                recorder.tested(trainer.step, _test(trainer, run, corpus))
    except (Stopped, KeyboardInterrupt):
        trainer.save_if_needed()
        run.write_json("summary.json", summary("stopped"))
        raise
    except BaseException as error:
        status = "diverged" if isinstance(error, NotFiniteError) else "failed"
        with contextlib.suppress(UserError, OSError):  # the first error is the one to tell
            run.write_json("summary.json", summary(status))
        raise
    finally:
        recorder.close()
    status = "finished" if finished else "stopped"
    run.write_json("summary.json", summary(status))
    return summary(status)


def _tell_of_part(config: RunConfig, corpus: Corpus, observer: Observer) -> None:
    """Say that much of the text is left out: somebody may have meant to train on all of it."""
    limit, num_tokens = config.training.max_train_tokens, corpus.statistics["train"].num_tokens
    if 0 < limit < ALL_BUT_LITTLE * num_tokens:
        observer.noticed(
            f"Training uses the first {limit:,} of the corpus's {num_tokens:,} training tokens "
            f"({100 * limit / num_tokens:.0f}%), as training.max_train_tokens says: set it to 0 to use all of them."
        )


def _choose_threads(run: RunDirectory, num_threads: int, resume: bool) -> None:
    """Train with so many CPU threads; with 0, one per core, or as many as a resumed run had, for the same bits."""
    before = read_summary(run.path).get("threads") if resume else None
    kept = before if isinstance(before, int) and 1 <= before <= MAX_THREADS else 0
    use_threads(num_threads or kept)


def _test(trainer: Trainer, run: RunDirectory, corpus: Corpus) -> Evaluation:
    """Evaluate the best model on test: the one at hand, or the one on disk, which takes its place."""
    if trainer.best_step != trainer.step:
        trainer.save_if_needed()  # as it is now, in case that the test is broken off
        trainer.model.load_state_dict(run.read_model()[0])
    test_ids = corpus.split("test")[: run.config.training.max_test_tokens or None]
    result = evaluate(
        trainer.model,
        test_ids,
        progress=lambda num_done, num_tokens: trainer.observer.evaluating("test", num_done, num_tokens),
        known=run.word_counts,
    )
    run.write_json("evaluation.json", {"split": "test", **result.to_dict()})
    return result


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
            f"training.batch_size ({config.training.batch_size}) or the model's sizes, or end what else runs there."
        ) from error


def _summary(trainer: Trainer, run: RunDirectory, status: str, command: str) -> dict[str, Any]:
    model = trainer.model
    # While a run goes on, and where an error broke it off, its clock has not been read.
    is_timed = status in ("finished", "stopped")
    return {
        "status": status,
        "num_parameters": model.num_parameters,
        "num_table_parameters": sum(table.numel() for table in model.tables().values()),
        "vocab_size": len(run.vocabulary),
        "vocabulary_digest": run.vocabulary.digest,
        "device": ", then ".join(trainer.devices),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "bnce": __version__,
        "commit": _commit(),
        "command": command,
        "seed": run.config.training.seed,
        "words_per_second": trainer.clock.words_per_second if is_timed else None,
        "train_seconds": trainer.clock.seconds if is_timed else None,
        "startup_seconds": trainer.clock.startup_seconds if is_timed else None,
        "tokens": trainer.tokens if is_timed else None,
        "epochs": trainer.step / len(trainer.streams) if is_timed else None,
        "step": trainer.step,
        "best_step": trainer.best_step,
        "stopped_early": trainer.stops_early,
        "warnings": trainer.warnings,
        "changes": trainer.changes,
    }


class _Recorder:
    """Passes everything on to the observer, and writes it as TensorBoard events."""

    def __init__(self, directory: Path, observer: Observer) -> None:
        self.directory, self.observer = directory, observer
        self.writer: Any = None
        self.given_up = False

    def start(self, step: int) -> None:
        with warnings.catch_warnings():
            # TensorBoard's own imports warn of their dependencies' futures.
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter

            # After a resume, what was written beyond its step is hidden.
            with self._without_tensorboard():
                self.writer = SummaryWriter(str(self.directory), purge_step=step + 1)

    def advanced(self, *, tokens: int, words_per_second: float, loss: float) -> None:
        self.observer.advanced(tokens=tokens, words_per_second=words_per_second, loss=loss)

    def evaluating(self, split: str, num_done: int, num_tokens: int) -> None:
        self.observer.evaluating(split, num_done, num_tokens)

    def evaluated(self, record: dict[str, Any]) -> None:
        with self._without_tensorboard():
            for key, value in record.items():
                if self.writer is not None and key != "step" and value is not None:
                    self.writer.add_scalar(key, value, record["step"])
        self.observer.evaluated(record)

    def tested(self, step: int, result: Evaluation) -> None:
        if not self.given_up:
            # A directory of its own: a resume hides what the others say of later steps, and positions are no steps.
            with self._without_tensorboard():
                write_test_events(self.directory / "test", step, result)

    def noticed(self, sentence: str) -> None:
        self.observer.noticed(sentence)

    def close(self) -> None:
        with self._without_tensorboard():
            if self.writer is not None:
                self.writer.close()

    @contextlib.contextmanager
    def _without_tensorboard(self) -> Iterator[None]:
        """Go on without events that cannot be written: metrics.jsonl has the same figures."""
        try:
            yield
        except OSError as error:
            self.writer, self.given_up = None, True
            self.noticed(f"TensorBoard events cannot be written to '{self.directory}' ({error.strerror}): going on.")


@functools.cache
def _commit() -> str | None:
    """Name the commit of this code, where it runs from a checkout."""
    here = Path(__file__).parents[1]
    if not (here.parent.parent / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
