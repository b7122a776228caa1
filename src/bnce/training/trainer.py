"""The training loop, to be read from top to bottom.

A run is decided by its config, its corpus and its seed: checkpoints, evaluations and interruptions change no number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bnce.config import LossConfig, RunConfig, read_config
from bnce.corpus.resets import Resets
from bnce.corpus.store import Corpus
from bnce.corpus.streams import open_streams, training_streams
from bnce.errors import NotFiniteError, counted
from bnce.evaluation.evaluate import Evaluation, evaluate
from bnce.kinds.losses import LOSSES
from bnce.kinds.optimisers import OPTIMISERS
from bnce.machine.devices import describe_device
from bnce.machine.memory import peak_memory_bytes, reset_peak_memory
from bnce.machine.stopping import HeldSignals, Stopped, hold_signals
from bnce.machine.world import World
from bnce.optimisers.schedule import Schedule
from bnce.runs.directory import Run
from bnce.runs.metrics import append_metrics, read_metrics
from bnce.runs.model_file import build_model, save_weights
from bnce.runs.resuming import advise_lower_rates, check_corpus, find_differences, settings_of_state
from bnce.training.budget import Budget
from bnce.training.checkpoints import Checkpoints
from bnce.training.clock import TrainingClock
from bnce.training.network import Network
from bnce.training.observer import Observer
from bnce.training.progress import Progress
from bnce.training.together import Together

# How often the loss is read back and looked at; a GPU should not have to wait for the host.
CHECK_EVERY_STEPS = {"cpu": 1, "cuda": 50}
# How much worse than at its start a model's perplexity must be for the run to have gone astray.
ASTRAY = 1.1
# A run of fewer steps, with a batch that could be smaller, learns little.
FEW_STEPS = 500
LARGE_BATCH = 64
# The share of a budget after which the speed is known well enough to tell how far it will go.
TOLD_AFTER = 0.05


class Trainer:
    """Trains the model of one run directory on one corpus."""

    def __init__(
        self,
        run: Run,
        corpus: Corpus,
        device: torch.device,
        observer: Observer,
        world: World | None = None,
    ) -> None:
        check_corpus(run, corpus)
        self.run, self.device, self.observer, self.world = run, device, observer, world or World()
        self.config = run.config
        training = self.config.training
        torch.manual_seed(training.seed)
        text = training_streams(training, corpus)
        model = build_model(run)
        self.network = Network(model, self.config, device, self.world)
        self.model, self.optimiser, self.training_step = self.network.model, self.network.optimiser, self.network.step
        self.together = Together(self.network, device, self.world)
        self.streams = open_streams(
            text.ids,
            training.groups * training.batch_size,
            training.num_steps,
            self.model.num_context,
            device,
            self.network.columns,
        )
        self.resets = Resets(self.streams, training.reset_rate, training.seed) if training.reset_rate else None
        self.loss = LOSSES.find(self.config.loss.name)
        if self.loss.merges_targets:
            self.model.output.set_form(max_distinct_targets=self.together.max_distinct_targets(self.streams))
        if device.type != "cpu":  # where the host would have to wait to know
            self.model.output.set_form(room=self.together.max_places(self.streams))

        self.valid_ids = corpus.split("valid")[: training.max_valid_tokens or None]
        self.total_steps = max(1, round(training.epochs * len(self.streams)))  # with a budget, an estimate
        self.budget = Budget(training.budget_seconds, self.world) if training.budget_seconds else None
        self.schedule = Schedule(self.config.optimiser, self.total_steps)
        self.clock = TrainingClock(device)
        # A model to start from is evaluated before the first step, and may stay the best.
        self.progress = Progress(evaluated_step=-1 if self.config.init else 0, devices=[describe_device(device)])
        self.checkpoints = Checkpoints(run, self.network, self.clock, self.schedule, device, self.world)
        test = corpus.statistics.get("test")
        self.num_test_tokens = min(test.num_tokens, training.max_test_tokens or test.num_tokens) if test else 0
        self._seconds_per_evaluated: float | None = None  # token, once an evaluation was timed
        self._loss_total = 0.0  # since the last evaluation, over all processes, when it was last read
        self._has_told_length = False

    def train(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until asked to stop; returns whether the end was reached.

        `should_stop` is asked after every step. Ctrl-C and SIGTERM break off an evaluation, and on a CPU a step before
        it has changed anything: nothing is lost, for the state is saved.
        """
        finished = False
        with hold_signals() as signals:
            try:
                finished = self._train(lambda: should_stop() or signals(), signals)
            except Stopped:
                self.clock.pause()
                self._check_parameters()
                self.save_if_needed()
                raise
        return finished

    def _train(self, should_stop: Callable[[], bool], signals: HeldSignals) -> bool:
        reset_peak_memory(self.device)
        self._warn_of_few_steps()
        if self.loss.caveat is not None:
            self._warn(self.loss.caveat)
        check_every = CHECK_EVERY_STEPS.get(self.device.type, 1)
        if self.budget is not None:
            self.budget.start(self.progress.budget_used_seconds)
        self._fit_to_budget()
        if self._evaluation_due():  # the one that this run was stopped in, or that of the model it starts from
            if math.isfinite(self.config.training.checkpoint_seconds):
                self.save_if_needed()
            self._evaluate(signals)
            self._fit_to_budget()
        last_saved = self.clock.start()
        while self.progress.step < self.total_steps and not self.stops_early:
            index = self.progress.step % len(self.streams)
            if index == 0:
                self.training_step.reset_state()
            chunk = self.streams.chunk(index)
            if self.resets is not None:
                chunk = self.resets.choose(chunk, index, self.progress.step // len(self.streams))
            is_startup = self.training_step.starts_up
            self.training_step(
                chunk, self.schedule.factor(self.progress.step), self.together.breakable(signals), self.progress.step
            )
            self.progress.step += 1
            num_tokens = chunk.target_TB.numel() * self.world.size
            self.progress.tokens += num_tokens
            self.clock.count(num_tokens, is_startup=is_startup)
            is_checked = self.progress.step % check_every == 0
            if is_checked:
                self.together.settle()
                self._check_finite()
                self._tell()
                self._fit_to_budget()
            evaluates = self._evaluation_due()
            saves = time.monotonic() - last_saved >= self.config.training.checkpoint_seconds
            saves, stops = self.together.agree(saves, should_stop(), now=is_checked or evaluates)
            if evaluates or saves or stops:
                self.together.settle()
                self.clock.pause()
                self._check_finite()
                self._check_parameters()
                # A run that never saves by the clock is one to be repeated rather than resumed, unless it is stopped.
                if stops or math.isfinite(self.config.training.checkpoint_seconds):
                    self.save()
                if stops and self.progress.step < self.total_steps:
                    return False
                if evaluates:
                    self._evaluate(signals)
                    self._fit_to_budget()
                last_saved = self.clock.start()
        if self.stops_early:
            in_vain = counted(self.progress.evaluations_without_better, "evaluation")
            self.observer.noticed(
                f"Training stops early at step {self.progress.step} of {self.total_steps}: "
                f"{in_vain} in a row found no validation PPLf below "
                f"{self.progress.best_perplexity:.5g} (step {self.progress.best_step}), and training.stop_after is "
                f"{self.config.training.stop_after}."
            )
        return True

    def _fit_to_budget(self) -> None:
        """Estimate the length of a run that has a budget, and let the schedule end with it."""
        if self.budget is None:
            return
        self.budget.use()
        self.progress.budget_used_seconds = self.budget.used_seconds
        self.total_steps = self.budget.total_steps(self.progress.step, unmeasured=self.total_steps)
        self.schedule.set_total_steps(self.total_steps)
        if not self._has_told_length and self.budget.used_seconds >= TOLD_AFTER * self.budget.seconds:
            self._has_told_length = True
            self.observer.noticed(
                f"At this speed, training.budget={self.config.training.budget} is enough for about "
                f"{counted(self.total_steps, 'step')} ({self.total_steps / len(self.streams):.2g} epochs)."
            )

    @property
    def stops_early(self) -> bool:
        """Whether validation has not become better for as many evaluations as the settings allow."""
        return 0 < self.config.training.stop_after <= self.progress.evaluations_without_better

    def _check_finite(self) -> None:
        self._loss_total = self.together.loss_total()
        self.together.check_room()
        loss, norm = self._loss_total, float(self.training_step.norm)
        if not math.isfinite(loss) or not math.isfinite(norm):
            self.model.output.check()  # may know a better reason
            raise self._not_finite("loss" if not math.isfinite(loss) else "gradient", self.progress.step - 1)

    def _check_parameters(self) -> None:
        """Check what the last step computed, which its loss does not show: a checkpoint must be usable."""
        if not self.together.is_finite():
            raise self._not_finite("model", self.progress.step - 1)

    def _not_finite(self, what: str, index: int) -> NotFiniteError:
        """Explain a run that blew up in the step with this number, counted from 0."""
        rate = self.config.optimiser.learning_rate * self.schedule.factor(index)
        has_figures = bool(read_metrics(self.run.path).records)
        advice = advise_lower_rates(self.run.path, self.config.optimiser, self.checkpoints.newest, has_figures)
        with_rate = f"learning rate {rate:g}"
        penalty, usual = self.config.loss.penalty, LossConfig.penalty
        if self.loss.penalises and penalty > usual:  # which a resumed run cannot change
            with_rate += f"; loss.penalty is {penalty:g}, usually {usual:g}, and a new run may need a lower one"
        return NotFiniteError(f"The {what} is no longer finite at step {index + 1} ({with_rate}): {advice}")

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
        began = time.monotonic()
        with self.together.breakable(signals)(), self.network.as_whole() as model:
            result = evaluate(
                model, self.valid_ids, progress=self.together.telling(self.observer, signals), world=self.world
            )
        self._seconds_per_evaluated = (time.monotonic() - began) / len(self.valid_ids)
        if not math.isfinite(result.ppl_f):
            self.checkpoints.drop(self.progress)  # the state that was saved for this evaluation
            raise self._not_finite("validation perplexity", self.progress.step - 1)
        record = self._metrics(result)
        if result.ppl_f < self.progress.best_perplexity:
            weights = self.network.weights()
            if self.world.is_first:
                save_weights(self.run, weights, self.progress.step)
        # Last, so that an evaluation that is written down has been made whole.
        if self.world.is_first:
            append_metrics(self.run.path, record)
        self.world.wait()
        self._take_in(record)
        self.observer.evaluated(record)

    def _take_in(self, record: dict[str, Any]) -> None:
        """Act on an evaluation that is already written: made just now, or before the run was killed."""
        perplexity = record["ppl_f"]
        if self.progress.step:
            self._warn_if_astray(perplexity)
        self.progress.take_in(perplexity)
        if self.progress.step % len(self.streams) == 0:
            self.schedule.end_epoch(perplexity)
        self.training_step.loss_total.zero_()
        self._loss_total = 0.0
        self.clock.mark_evaluation()

    def _warn(self, sentence: str) -> None:
        """Warn once per run; the summary and reports repeat the warning."""
        if sentence not in self.progress.warnings:
            self.progress.warnings.append(sentence)
            self.observer.noticed(sentence)

    def _warn_of_few_steps(self) -> None:
        batch_size = self.config.training.batch_size
        if (
            self.budget is None
            and self.total_steps < FEW_STEPS
            and batch_size > LARGE_BATCH
            and self.progress.step == 0
        ):
            self._warn(
                f"The whole run has only {counted(self.total_steps, 'step')}: lower training.batch_size "
                f"({batch_size}), as the recipe small does, or train on more text."
            )

    def _warn_if_astray(self, perplexity: float) -> None:
        """Say once that the model has become worse than what it started as: the frequencies of the words."""
        if self.progress.is_astray or self.loss.scores_odds:  # a softmax over odds is worse than that from the start
            return
        valid_N = torch.from_numpy(np.asarray(self.valid_ids, dtype=np.int64)).to(self.device)
        start = math.exp(-float(self.network.noise.log_target_probs()[valid_N].double().mean()))
        if perplexity > ASTRAY * start:
            self.progress.is_astray = True
            optimiser = self.config.optimiser
            rates = OPTIMISERS.find(optimiser.name).rates
            told = " or ".join(f"optimiser.{rate} ({getattr(optimiser, rate):g})" for rate in rates)
            self._warn(
                f"Validation PPLf is {perplexity:.5g} at step {self.progress.step}, worse than at the start of "
                f"training ({start:.5g}): lower {told}."
            )

    def _metrics(self, result: Evaluation) -> dict[str, Any]:
        return {
            "step": self.progress.step,
            "epoch": self.progress.step / len(self.streams),
            "tokens": self.progress.tokens,
            "seconds": self.clock.seconds,
            "words_per_second": self.clock.recent_words_per_second,
            "loss": self._mean_loss(),
            "ppl_n": result.ppl_n,
            "ppl_f": result.ppl_f,
            "log_z_mean": result.log_z_mean,
            "log_z_std": result.log_z_std,
            "lr": self.config.optimiser.learning_rate * self.schedule.factor(max(0, self.progress.step - 1)),
            "grad_norm": float(self.training_step.norm),
            "peak_memory_bytes": peak_memory_bytes(self.device),
        }

    def _note_device(self, name: str) -> None:
        """Keep the names of all devices the run was trained on: its speed is then not the speed of one device."""
        devices = self.progress.devices
        if devices and devices[-1] != name:
            self.observer.noticed(
                f"The run was trained on {devices[-1]} and continues on {name}: its speed will be an average of both."
            )
        self.progress.devices = list(dict.fromkeys([*devices, name]))

    def _mean_loss(self) -> float:
        num_tokens = self.progress.tokens - self.progress.tokens_at_evaluation
        return self._loss_total / num_tokens if num_tokens else math.nan

    def _tell(self) -> None:
        self.observer.advanced(
            tokens=self.progress.tokens,
            words_per_second=self.clock.recent_words_per_second,
            loss=self._mean_loss(),
            seconds_left=self._seconds_left(),
        )

    def _seconds_left(self) -> float | None:
        """Estimate how long training, its evaluations and the one on test still take; None while no speed is known."""
        speed = self.clock.recent_words_per_second
        if not speed:
            return None
        steps_left = self.total_steps - self.progress.step
        evaluations_left = math.ceil(steps_left * self.config.training.evaluations_per_epoch / len(self.streams))
        train_tokens = steps_left * self.progress.tokens / self.progress.step
        evaluated_tokens = evaluations_left * len(self.valid_ids) + self.num_test_tokens
        # As long as no evaluation was timed, a token is taken to cost as much there as in training.
        return train_tokens / speed + evaluated_tokens * (self._seconds_per_evaluated or 1 / speed)

    def save(self) -> None:
        """Write everything that the rest of the run depends on."""
        self.checkpoints.save(self.progress)

    def save_if_needed(self) -> None:
        """Write the state unless it is the one on disk."""
        if not self.checkpoints.has(self.progress):
            self.save()

    def resume(self) -> None:
        """Go back to the newest state that is whole, or to the start of a run that was stopped before its first."""
        state = self.checkpoints.load(self.observer)
        if state is None:
            return
        self._loss_total = float(state.tensors["step.loss_total"])
        here, self.progress = self.progress.devices[-1], Progress.from_record(state.record)
        self._note_device(here)
        self.checkpoints.forget_after(state, self.progress.step, self.observer)
        self._note_changes(settings_of_state(state.origin))
        # An evaluation that was written down after this state counts, be it due by the settings of today or not.
        if self.progress.evaluated_step != self.progress.step:
            for written in read_metrics(self.run.path).records:
                if written["step"] == self.progress.step:
                    self._take_in(written)

    def _note_changes(self, before: RunConfig) -> None:
        """Write down which settings are other than those that the run was trained with so far."""
        for setting, (old, new) in find_differences(before, self.config).items():
            self.progress.changes.append({"step": self.progress.step, "setting": setting, "from": old, "to": new})
            self.observer.noticed(f"From step {self.progress.step} on, {setting} is {new} instead of {old}.")
            self.progress.is_astray = False  # what was told of may be what is mended now
        if before != self.config:
            self.save()  # a state that has the note comes before the settings
        if self.world.is_first and read_config(self.run.path / "config.toml") != self.config:
            self.run.write_config()
        self.world.wait()
