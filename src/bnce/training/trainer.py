"""The training loop, to be read from top to bottom.

A run is decided by its config, its corpus and its seed: checkpoints, evaluations and interruptions change no number,
nor does the number of processes. Each process has the whole model and its share of the streams. All of them come to
the same places in this file at the same time; the first one writes.
"""

from __future__ import annotations

import functools
import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnce import files
from bnce.corpus.store import Corpus
from bnce.corpus.streams import Resets, open_streams, training_streams
from bnce.errors import DivergedError
from bnce.evaluation.evaluate import evaluate
from bnce.machine.devices import describe_device, peak_memory_bytes, reset_peak_memory, synchronize
from bnce.machine.processes import World
from bnce.machine.signals import HeldSignals, Stopped, hold_signals
from bnce.optimisers.optimiser import Schedule
from bnce.runs.checkpoint import State, load_newest_state, save_state, state_file, state_files
from bnce.runs.directory import CONFIG_FILE, Run
from bnce.runs.metrics import METRICS_FILE, append_metrics, keep_metrics_up_to, read_metrics
from bnce.runs.model_file import build_model, save_weights
from bnce.runs.resuming import check_corpus, check_state, find_differences, settings_of_state
from bnce.settings import to_toml
from bnce.training import advice
from bnce.training.progress import Progress
from bnce.training.recorder import Observer
from bnce.training.step import TrainingStep

# How often the loss is read back and looked at; a GPU should not have to wait for the host.
CHECK_EVERY_STEPS = {"cpu": 1, "cuda": 50}
# How much worse than at its start a model's perplexity must be for the run to have gone astray.
ASTRAY = 1.1


class Trainer:
    """Trains the model of one run directory on one corpus."""

    def __init__(
        self, run: Run, corpus: Corpus, device: torch.device, observer: Observer, world: World | None = None
    ) -> None:
        check_corpus(run, corpus)
        self.run, self.device, self.observer, self.world = run, device, observer, world or World()
        self.config, self.loss = run.config, run.config.loss
        training = self.config.training
        torch.manual_seed(training.seed)
        self.training_step = TrainingStep(build_model(run), self.config, self.world, device)
        self.model, self.optimiser = self.training_step.model, self.training_step.optimiser
        text, columns = training_streams(training, corpus), self.training_step.columns
        self.streams = open_streams(text.ids, text.batch_size, text.num_steps, self.model.num_context, device, columns)
        self.training_step.fit_to_text(self.streams)
        self.resets = Resets(self.streams, training.reset_rate, training.seed) if training.reset_rate else None
        self.valid_ids = corpus.split("valid")[: training.max_valid_tokens or None]
        self.total_steps = max(1, round(training.epochs * len(self.streams)))  # with a budget, an estimate
        self.schedule = Schedule(self.config.optimiser, self.total_steps)
        # A model to start from is evaluated before the first step, and may stay the best.
        self.progress = Progress(evaluated_step=-1 if self.config.init else 0, devices=[describe_device(device)])
        self.newest_state: Path | None = None  # the one that was written or read last
        self._loss_total = 0.0  # since the last evaluation, over all processes, when it was last read

    def train(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until asked to stop; returns whether the end was reached.

        `should_stop` is asked after every step. Ctrl-C and SIGTERM wait for the end of a step, and break off an
        evaluation: nothing is lost, for the state is saved.
        """
        finished = False
        with hold_signals() as signals:
            try:
                finished = self._train(lambda: should_stop() or signals(), signals)
            except Stopped:
                self.progress.stop_clock(self.device)
                self._check_parameters()
                self.save_if_needed()
                raise
        return finished

    def _train(self, should_stop: Callable[[], bool], signals: HeldSignals) -> bool:
        reset_peak_memory(self.device)
        if self.progress.step == 0 and not self.config.training.budget_seconds:
            self._warn(advice.advise_smaller_batch(self.total_steps, self.config.training.batch_size))
        self._warn(self.loss.caveat)
        check_every = CHECK_EVERY_STEPS.get(self.device.type, 1)
        may_save = math.isfinite(self.config.training.checkpoint_seconds)
        self._fit_to_budget()
        if self._evaluation_due():  # the one that this run was stopped in, or that of the model it starts from
            if may_save:
                self.save_if_needed()
            self._evaluate(signals)
            self._fit_to_budget()
        began_step, began = self.progress.step, self.progress.start_clock()
        last_saved = began
        while self.progress.step < self.total_steps and not self.stops_early:
            epoch, index = divmod(self.progress.step, len(self.streams))
            if index == 0:
                self.training_step.reset_state()
            chunk = self.streams.chunk(index)
            if self.resets is not None:
                chunk = self.resets.choose(chunk, index, epoch)
            is_startup = self.training_step.starts_up
            self.training_step(chunk, self.schedule.factor(self.progress.step), self.progress.step)
            num_tokens = chunk.target_TB.numel() * self.world.size
            self.progress.count_step(num_tokens, self.device, is_startup=is_startup)
            looks = self.progress.step % check_every == 0
            if looks:
                self._check_finite()
                pace = (time.monotonic() - began) / (self.progress.step - began_step)
                self.observer.advanced(
                    tokens=self.progress.tokens,
                    words_per_second=self.progress.recent_words_per_second,
                    loss=self._mean_loss(),
                    seconds_left=pace * (self.total_steps - self.progress.step),
                )
                self._fit_to_budget()
            evaluates = self._evaluation_due()
            saves, stops = time.monotonic() - last_saved >= self.config.training.checkpoint_seconds, should_stop()
            if self.world.size > 1:  # what clocks and signals say differs, and to agree takes an exchange
                agreed = self.world.any({"saves": saves, "stops": stops}) if looks or evaluates else {}
                saves, stops = agreed.get("saves", False), agreed.get("stops", False)
            if not (evaluates or saves or stops):
                continue
            self._check_finite()
            self.progress.stop_clock(self.device)
            self._check_parameters()
            # A run that never saves by the clock is one to be repeated rather than resumed, unless it is stopped.
            if stops or may_save:
                self.save()
            if stops and self.progress.step < self.total_steps:
                return False
            if evaluates:
                self._evaluate(signals)
                self._fit_to_budget()
            last_saved = self.progress.start_clock()
        if self.stops_early:
            self.observer.noticed(advice.describe_early_stop(self.progress, self.total_steps, self.config.training))
        return True

    @property
    def stops_early(self) -> bool:
        """Whether validation has not become better for as many evaluations as the settings allow."""
        return 0 < self.config.training.stop_after <= self.progress.evaluations_without_better

    def _evaluation_due(self) -> bool:
        """Say whether the last step is one to evaluate after, and that has not been done."""
        if self.progress.step == self.progress.evaluated_step:
            return False
        if self.progress.step in (0, self.total_steps):
            return True
        per_epoch, length = self.config.training.evaluations_per_epoch, len(self.streams)
        index = (self.progress.step - 1) % length
        return (index + 1) * per_epoch // length > index * per_epoch // length

    def _evaluate(self, signals: HeldSignals) -> None:
        """Measure the model on validation, keep it if it is the best so far, and write down what was found."""

        def tell(num_done: int, num_tokens: int) -> None:
            self.observer.evaluating("valid", num_done, num_tokens)
            if self.world.any({"stops": signals()})["stops"]:
                raise Stopped(signals.number or signal.SIGTERM)

        result = evaluate(self.model, self.valid_ids, progress=tell, world=self.world)
        self._check_perplexity(result.ppl_f)
        record = {
            "step": self.progress.step,
            "epoch": self.progress.step / len(self.streams),
            "tokens": self.progress.tokens,
            "seconds": self.progress.seconds,
            "words_per_second": self.progress.recent_words_per_second,
            "loss": self._mean_loss(),
            "ppl_n": result.ppl_n,
            "ppl_f": result.ppl_f,
            "log_z_mean": result.log_z_mean,
            "log_z_std": result.log_z_std,
            "lr": self.config.optimiser.learning_rate * self.schedule.factor(max(0, self.progress.step - 1)),
            "grad_norm": float(self.training_step.norm),
            "peak_memory_bytes": peak_memory_bytes(self.device),
        }
        if result.ppl_f < self.progress.best_perplexity and self.world.is_first:
            save_weights(self.run, self.model.state_dict(), self.progress.step)
        # Last, so that an evaluation that is written down has been made whole.
        if self.world.is_first:
            append_metrics(self.run.path, record)
        self.world.wait()
        self._take_in(record)
        self.observer.evaluated(record)

    def _take_in(self, record: dict[str, Any]) -> None:
        """Act on an evaluation that is already written: made just now, or before the run was killed."""
        self.progress.count_evaluation(record["ppl_f"])
        if self.progress.step % len(self.streams) == 0:
            self.schedule.end_epoch(record["ppl_f"])
        self.training_step.loss_total.zero_()
        self._loss_total = 0.0

    def save(self) -> None:
        """Write everything that the rest of the run depends on."""
        tensors = {
            **{f"model.{name}": tensor for name, tensor in self.model.state_dict().items()},
            **{f"optimiser.{name}": tensor for name, tensor in self.optimiser.state_tensors().items()},
            **{f"step.{name}": tensor for name, tensor in self.training_step.tensors().items()},
        }
        record = {**self.progress.to_record(), "schedule": self.schedule.state()}
        if self.world.is_first:
            save_state(self.run.path, self.progress.step, tensors, record, self.run.origin)
        self.world.wait()
        self.newest_state = state_file(self.run.path, self.progress.step)

    def save_if_needed(self) -> None:
        """Write the state unless it is the one on disk."""
        if self.newest_state != state_file(self.run.path, self.progress.step):
            self.save()

    def resume(self) -> None:
        """Go back to the newest state that is whole, or to the start of a run that was stopped before its first."""
        if self.world.is_first:
            for leftover in self.run.path.glob(f".*{files.PARTIAL_SUFFIX}"):  # which can be as large as a checkpoint
                files.remove_stale(leftover)
        self.world.wait()
        if not state_files(self.run.path):
            self.observer.noticed(f"'{self.run.path}' has no checkpoint yet: training starts at the first step.")
            self._write_config()
            return
        state, refused = load_newest_state(self.run.path, functools.partial(check_state, self.run))
        for sentence in refused:
            self.observer.noticed(f"{sentence} The previous checkpoint is used.")
        self.model.load_state_dict(_under("model.", state.tensors))
        self.optimiser.load_state_tensors(_under("optimiser.", state.tensors))
        self.training_step.load_tensors(_under("step.", state.tensors))
        self.schedule.load_state(state.record["schedule"])
        self._loss_total = float(state.tensors["step.loss_total"])
        here, self.progress = self.progress.devices, Progress.from_record(state.record)
        self.newest_state = state.path
        self.progress.devices = list(dict.fromkeys([*self.progress.devices, *here]))
        self.world.wait()  # nobody is reading any more
        if self.world.is_first:
            for newer in state_files(self.run.path):
                if newer > state.path:
                    newer.unlink()
            if num_damaged := keep_metrics_up_to(self.run.path, self.progress.step):
                file = self.run.path / METRICS_FILE
                self.observer.noticed(f"Damaged lines in '{file}' were skipped: {num_damaged}.")
        self._note_changes(state)
        # An evaluation that was written down after this state counts, be it due by the settings of today or not.
        if self.progress.evaluated_step != self.progress.step:
            for written in read_metrics(self.run.path).records:
                if written["step"] == self.progress.step:
                    self._take_in(written)

    def _note_changes(self, state: State) -> None:
        """Write down which settings are other than those that the run was trained with so far."""
        before = settings_of_state(state.origin)
        for setting, (old, new) in find_differences(before, self.config).items():
            self.progress.changes.append({"step": self.progress.step, "setting": setting, "from": old, "to": new})
            self.observer.noticed(f"From step {self.progress.step} on, {setting} is {new} instead of {old}.")
        if before != self.config:
            self.save()  # a state that has the note comes before the settings
        self._write_config()

    def _write_config(self) -> None:
        if self.world.is_first:
            files.write_text(self.run.path / CONFIG_FILE, to_toml(self.config))
        self.world.wait()

    def _check_finite(self) -> None:
        with self.world.patience():
            synchronize(self.device)
        self._loss_total = float(self.world.sum_(self.training_step.loss_total.clone()))
        for what, number in (("loss", self._loss_total), ("gradient", float(self.training_step.norm))):
            if not math.isfinite(number):
                self.model.output.check()  # may know a better reason
                raise self._diverged(f"The {what} is no longer finite")

    def _check_parameters(self) -> None:
        """Check what the last step computed, which its loss does not show: a checkpoint must be usable."""
        if not all(bool(torch.isfinite(part).all()) for part in self.model.parameters()):
            raise self._diverged("The model is no longer finite")

    def _check_perplexity(self, perplexity: float) -> None:
        """Refuse to go on with a model that is worse than guessing, unless it was when it came from another run."""
        num_words, step = len(self.run.vocabulary), self.progress.step
        # What a model that knows the frequencies of the words alone has, as this one did at its start.
        valid_N = torch.from_numpy(np.asarray(self.valid_ids, dtype=np.int64)).to(self.device)
        start = math.exp(-float(self.model.output.noise.log_target_probs()[valid_N].double().mean()))
        known = (num_words, start, self.progress.best_perplexity)
        is_lost = perplexity > ASTRAY * max(one for one in known if math.isfinite(one))
        may_be_high = step == 0 or self.loss.scores_odds  # a softmax over odds is worse than that from the start
        if math.isfinite(perplexity) and (may_be_high or not is_lost):
            if perplexity > ASTRAY * start and not may_be_high:
                self._warn(advice.describe_astray(self.config.optimiser, start))
            return
        # The state that was saved for this evaluation is none to go on from.
        if self.world.is_first:
            state_file(self.run.path, step).unlink(missing_ok=True)
        self.world.wait()
        self.newest_state = max(state_files(self.run.path), default=None)
        if not math.isfinite(perplexity):
            raise self._diverged("The validation perplexity is no longer finite")
        raise self._diverged(
            f"Training has diverged, with a validation PPLf of {perplexity:.3g} where guessing has {num_words:,},"
        )

    def _diverged(self, what: str) -> DivergedError:
        factor = self.schedule.factor(max(0, self.progress.step - 1))
        has_figures = bool(read_metrics(self.run.path).records)
        remedy = advice.advise_lower_rates(self.run.path, self.config, factor, self.newest_state, has_figures)
        return DivergedError(f"{what} at step {self.progress.step} {remedy}")

    def _warn(self, sentence: str | None) -> None:
        """Warn once per run; the summary and reports repeat the warning."""
        if sentence and sentence not in self.progress.warnings:
            self.progress.warnings.append(sentence)
            self.observer.noticed(sentence)

    def _fit_to_budget(self) -> None:
        """Estimate the length of a run that has a budget, and let the schedule end with it."""
        training = self.config.training
        if not training.budget_seconds:
            return
        self.progress.use_budget(self.world)
        self.total_steps = self.progress.steps_in_budget(training.budget_seconds, unmeasured=self.total_steps)
        self.schedule.set_total_steps(self.total_steps)

    def _mean_loss(self) -> float:
        num_tokens = self.progress.tokens - self.progress.tokens_at_evaluation
        return self._loss_total / num_tokens if num_tokens else math.nan


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
