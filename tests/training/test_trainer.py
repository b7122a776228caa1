"""The training loop: what it computes, when it measures, what it keeps, and how it stops."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_corpus import Watcher, random_ids, small_config, small_model, write_corpus
from torch import Tensor

from bnce import Corpus, UserError
from bnce.corpus.streams import Chunk, Resets, Streams
from bnce.errors import DivergedError
from bnce.evaluation.evaluate import Evaluation, evaluate
from bnce.language_model import LanguageModel
from bnce.machine.processes import World
from bnce.optimisers.gradients import Gradients
from bnce.runs.checkpoint import MODEL_FORMAT, STATE_FORMAT, read_tensors, state_files
from bnce.runs.directory import MODEL_FILE, Run
from bnce.runs.metrics import read_metrics
from bnce.runs.model_file import save_weights
from bnce.training import progress as progress_module
from bnce.training import trainer as trainer_module
from bnce.training.progress import Progress
from bnce.training.step import TrainingStep
from bnce.training.trainer import Trainer

CPU = torch.device("cpu")
MakeTrainer = Callable[..., Trainer]
METRICS = (
    "step epoch tokens seconds words_per_second loss ppl_n ppl_f log_z_mean log_z_std lr grad_norm peak_memory_bytes"
)
OF_THE_MACHINE = ("seconds", "words_per_second", "peak_memory_bytes")

# 2003 tokens in 8 streams of 250 words are 50 chunks of 5 steps an epoch.
STEPS_AN_EPOCH = 50


@pytest.fixture
def make_trainer(tmp_path: Path, corpus: Corpus) -> MakeTrainer:
    """Give a maker of trainers, each of a run of its own."""
    numbers = itertools.count()

    def make(**sections: dict[str, Any]) -> Trainer:
        run = Run.create(tmp_path / f"run-{next(numbers)}", small_config(corpus, **sections), corpus)
        return Trainer(run, corpus, CPU, Watcher())

    return make


def learned(trainer: Trainer) -> list[dict[str, Any]]:
    """Read the metrics that do not depend on the machine."""
    records = read_metrics(trainer.run.path).records
    return [{key: value for key, value in record.items() if key not in OF_THE_MACHINE} for record in records]


def script_perplexities(monkeypatch: pytest.MonkeyPatch, perplexities: list[float]) -> None:
    """Let validation find these perplexities, one after another."""
    left = iter(perplexities)

    def scripted(model: LanguageModel, ids: np.ndarray, **_: Any) -> Evaluation:
        return dataclasses.replace(evaluate(model, ids[:20]), ppl_f=next(left))

    monkeypatch.setattr(trainer_module, "evaluate", scripted)


def blow_up_after(monkeypatch: pytest.MonkeyPatch, num_steps: int) -> None:
    """Let the loss be no number from some step on."""
    steps = iter(range(1_000_000))
    plain = LanguageModel.loss_sum

    def loss_sum(self: LanguageModel, *arguments: Any) -> tuple[Tensor, Any]:
        loss, state = plain(self, *arguments)
        return (loss * torch.nan if next(steps) >= num_steps else loss), state

    monkeypatch.setattr(LanguageModel, "loss_sum", loss_sum)


def assert_all_finite(path: Path, kind: str) -> None:
    tensors, _ = read_tensors(path, kind)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values() if tensor.is_floating_point())


class TestOneStep:
    @staticmethod
    def gradients(chunk: Chunk, gradient: str) -> Gradients:
        step, seen = TestOneStep.step(gradient), []
        step.optimiser.apply = seen.append  # type: ignore[method-assign]
        step(chunk, 1.0, 0)
        return seen[0]

    @staticmethod
    def step(gradient: str) -> TrainingStep:
        training = {"batch_size": 4, "num_steps": 6, "precision": "float32"}
        config = small_config(optimiser={"gradient": gradient}, training=training)
        return TrainingStep(small_model("ffnn", loss="softmax"), config, World(), CPU)

    def test_streams_average_over_streams_and_sum_over_time(self) -> None:
        model = small_model("ffnn", loss="softmax")
        chunk = Streams(random_ids(24), batch_size=4, num_steps=6, num_context=model.num_context).chunk(0)
        streams, tokens = self.gradients(chunk, "streams"), self.gradients(chunk, "tokens")
        assert float(streams.norm / tokens.norm) == pytest.approx(6.0, rel=1e-5)
        loss, _ = model.loss_sum(chunk.input_LB, chunk.target_TB, ())
        (expected,) = torch.autograd.grad(loss / 4, model.output.bias)
        torch.testing.assert_close(streams.dense["output.bias"], expected)

    def test_a_short_last_chunk_counts_its_own_steps(self) -> None:
        chunk = Streams(random_ids(32), batch_size=4, num_steps=6, num_context=1).chunk(1)
        assert chunk.target_TB.shape == (2, 4)
        streams, tokens = self.gradients(chunk, "streams"), self.gradients(chunk, "tokens")
        assert float(streams.norm / tokens.norm) == pytest.approx(2.0, rel=1e-5)

    def test_the_loss_is_a_sum_over_tokens(self) -> None:
        model = small_model("ffnn", loss="softmax")
        chunk = Streams(random_ids(24), batch_size=4, num_steps=6, num_context=model.num_context).chunk(0)
        step = self.step("tokens")
        step.optimiser.apply = lambda gradients: None  # type: ignore[method-assign]
        step(chunk, 1.0, 0)
        with torch.no_grad():
            hidden_TBD, _ = model(chunk.input_LB, ())
            log_probs = model.output.log_probs(hidden_TBD, chunk.target_TB)
        assert float(step.loss_total) == pytest.approx(-float(log_probs.sum()), rel=1e-6)


class TestNumbers:
    def test_the_same_seed_gives_the_same_numbers(self, corpus: Corpus, make_trainer: MakeTrainer) -> None:
        sections = {"model": {"dropout": 0.2}, "loss": {"name": "snce", "num_noise": 4}}
        first, second = (make_trainer(**sections) for _ in range(2))
        assert first.train()
        # Whatever else used random numbers in between.
        torch.rand(7)
        second = Trainer(second.run, corpus, CPU, Watcher())
        assert second.train()
        assert learned(first) == learned(second)
        ours, theirs = first.model.state_dict(), second.model.state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        third = make_trainer(**sections, training={"seed": 2})
        assert third.train()
        assert learned(third) != learned(first)

    def test_saving_and_measuring_change_no_number(self, corpus: Corpus, make_trainer: MakeTrainer) -> None:
        sections = {"model": {"dropout": 0.2}, "loss": {"name": "snce", "num_noise": 4}}
        often_saved = {"checkpoint_seconds": 1e-9, "evaluations_per_epoch": 5, "max_train_tokens": 400}
        rare = make_trainer(**sections, training={"max_train_tokens": 400})
        often = make_trainer(**sections, training=often_saved)
        rare = Trainer(rare.run, corpus, CPU, Watcher())
        assert rare.train()
        often = Trainer(often.run, corpus, CPU, Watcher())
        assert often.train()
        assert read_metrics(rare.run.path).records[-1]["ppl_f"] == read_metrics(often.run.path).records[-1]["ppl_f"]

    @pytest.mark.parametrize("optimiser", [{"name": "rowwise"}, {"name": "rowwise-adam", "learning_rate": 0.02}])
    @pytest.mark.parametrize("loss", ["bnce", "softmax", "nce"])
    def test_it_learns(self, corpus: Corpus, make_trainer: MakeTrainer, optimiser: dict[str, Any], loss: str) -> None:
        trainer = make_trainer(optimiser=optimiser, loss={"name": loss, "num_noise": 3 * (loss == "nce")})
        before = evaluate(trainer.model, corpus.split("valid")).ppl_f
        assert trainer.train()
        assert read_metrics(trainer.run.path).records[-1]["ppl_f"] < 0.9 * before

    @pytest.mark.parametrize("loss", ["bnce", "softmax"])
    def test_row_wise_adam_steps_alike_by_streams_and_by_tokens(self, make_trainer: MakeTrainer, loss: str) -> None:
        """It divides the size of the gradient out."""
        models = []
        for gradient in ("streams", "tokens"):
            optimiser = {"name": "rowwise-adam", "gradient": gradient, "eps": 1e-20, "learning_rate": 0.01}
            optimiser |= {"body_learning_rate": 1e-30}  # Adam's own epsilon would show
            trainer = make_trainer(
                optimiser=optimiser, loss={"name": loss}, training={"max_train_tokens": 81, "epochs": 1}
            )
            assert trainer.train()
            models.append(trainer.model)
        for found, expected in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class TestStreamsAndState:
    def test_the_state_goes_on_within_an_epoch_and_starts_anew_with_it(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given, returned = [], []

        run = TrainingStep._run

        def spy(step: TrainingStep, *arguments: Any) -> None:
            given.append(step.state[0].clone())
            run(step, *arguments)
            returned.append(step.state[0].clone())

        monkeypatch.setattr(TrainingStep, "_run", spy)
        assert make_trainer().train()
        assert len(given) == 2 * STEPS_AN_EPOCH
        for index, state in enumerate(given):
            if index % STEPS_AN_EPOCH == 0:
                assert not state.any()
            else:
                assert torch.equal(state, returned[index - 1])

    def test_every_token_of_every_epoch(self, make_trainer: MakeTrainer) -> None:
        trainer = make_trainer()
        assert trainer.total_steps == 2 * STEPS_AN_EPOCH
        trainer.train()
        assert trainer.progress.tokens == 4000
        assert trainer.observer.tokens == list(range(40, 4001, 40))

    def test_limits_on_the_text(self, corpus: Corpus, make_trainer: MakeTrainer) -> None:
        trainer = make_trainer(training={"max_train_tokens": 400, "max_valid_tokens": 33})
        assert trainer.config.training.epochs * trainer.streams.num_tokens == 800
        assert trainer.valid_ids.tolist() == corpus.split("valid")[:33].tolist()

    def test_a_corpus_with_other_words_is_refused(self, tmp_path: Path, make_trainer: MakeTrainer) -> None:
        run = make_trainer().run
        other = write_corpus(tmp_path / "other", {"train": random_ids(500, 29), "valid": random_ids(9, 29)}, 29)
        with pytest.raises(UserError, match="has another vocabulary"):
            Trainer(run, other, CPU, Watcher())


class TestEvaluations:
    @pytest.mark.parametrize(
        ("per_epoch", "steps"), [(1, [10, 20]), (3, [4, 7, 10, 14, 17, 20]), (1000, [*range(1, 21)])]
    )
    def test_as_often_as_asked(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, per_epoch: int, steps: list[int]
    ) -> None:
        script_perplexities(monkeypatch, [10.0] * len(steps))
        trainer = make_trainer(training={"evaluations_per_epoch": per_epoch, "max_train_tokens": 400})
        assert trainer.train()
        assert [record["step"] for record in read_metrics(trainer.run.path).records] == steps

    def test_metrics_have_these_keys_in_this_order(self, make_trainer: MakeTrainer) -> None:
        trainer = make_trainer(training={"evaluations_per_epoch": 2})
        assert trainer.train()
        records = read_metrics(trainer.run.path).records
        assert [" ".join(record) for record in records] == [METRICS] * 4
        assert [record["epoch"] for record in records] == [0.5, 1.0, 1.5, 2.0]
        assert [record["tokens"] for record in records] == [1000, 2000, 3000, 4000]
        assert trainer.observer.records == records
        assert all(record["peak_memory_bytes"] > 10_000_000 for record in records)

    def test_loss_and_norm_are_those_since_the_last_evaluation(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        losses, norms = [], []

        run = TrainingStep._run

        def spy(step: TrainingStep, *arguments: Any) -> None:
            before = float(step.loss_total)
            run(step, *arguments)
            losses.append(float(step.loss_total) - before)
            norms.append(float(step.norm))

        monkeypatch.setattr(TrainingStep, "_run", spy)
        trainer = make_trainer()
        assert trainer.train()
        first, second = read_metrics(trainer.run.path).records
        assert first["loss"] == pytest.approx(sum(losses[:50]) / 2000, rel=1e-9)
        assert second["loss"] == pytest.approx(sum(losses[50:]) / 2000, rel=1e-9)
        assert (first["grad_norm"], second["grad_norm"]) == (norms[49], norms[99])

    def test_figures_are_those_of_the_evaluation(self, corpus: Corpus, make_trainer: MakeTrainer) -> None:
        trainer = make_trainer()
        assert trainer.train()
        record, result = read_metrics(trainer.run.path).records[-1], evaluate(trainer.model, corpus.split("valid"))
        for key in ("ppl_n", "ppl_f", "log_z_mean", "log_z_std"):
            assert record[key] == getattr(result, key)

    @pytest.mark.parametrize("optimiser", ["sgd", "rowwise", "rowwise-adam"])
    def test_a_run_that_goes_astray_is_told_once(
        self, corpus: Corpus, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, optimiser: str
    ) -> None:
        trainer = make_trainer(optimiser={"name": optimiser}, training={"evaluations_per_epoch": 4})
        start = evaluate(trainer.model, corpus.split("valid")).ppl_f  # near the unigram model: its weights are small
        script_perplexities(monkeypatch, [0.9 * start, 1.05 * start, 1.2 * start, 1.3 * start] * 2)
        assert trainer.train()
        (sentence,) = trainer.observer.sentences  # type: ignore[attr-defined]
        told = re.fullmatch(
            r"Validation PPLf has become worse than at the start of training \((\S+)\): lower "
            r"optimiser.learning_rate \(\S+\)( or optimiser.body_learning_rate \(\S+\))?\.",
            sentence,
        )
        assert told
        assert float(told[1]) == pytest.approx(start, rel=0.01)
        assert (told[2] is not None) == (optimiser != "sgd")

        resumed = Trainer(trainer.run, corpus, CPU, Watcher())
        resumed.resume()
        assert resumed.progress.warnings == [sentence]

    def test_the_best_model_is_kept(self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
        script_perplexities(monkeypatch, [5.0, 3.0, 4.0, 3.0])
        trainer = make_trainer(training={"evaluations_per_epoch": 2})
        kept = {}

        def spy(run: Run, tensors: Mapping[str, Tensor], step: int) -> None:
            kept[step] = {name: tensor.clone() for name, tensor in tensors.items()}
            save_weights(run, tensors, step)

        monkeypatch.setattr("bnce.training.trainer.save_weights", spy)
        assert trainer.train()
        assert list(kept) == [25, 50]
        tensors, metadata = read_tensors(trainer.run.path / MODEL_FILE, MODEL_FORMAT)
        assert metadata["step"] == "50"
        assert all(torch.equal(tensors[name], tensor) for name, tensor in kept[50].items())
        assert not torch.equal(tensors["embedding"], trainer.model.embedding)


class TestEarlyStopping:
    def test_ends_where_validation_does_not_become_better(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script_perplexities(monkeypatch, [5.0, 6.0, 4.0, 4.0, 4.5, 1.0])
        trainer = make_trainer(training={"epochs": 6, "stop_after": 2})
        assert trainer.train()
        assert (trainer.progress.step, trainer.progress.best_step, trainer.stops_early) == (250, 150, True)
        assert (
            "Training stops early at step 250 of 300: 2 evaluations in a row found no validation PPLf below 4 (step "
            "150), and training.stop_after is 2."
        ) in trainer.observer.sentences  # type: ignore[attr-defined]

    def test_counts_on_over_a_resume(
        self, corpus: Corpus, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script_perplexities(monkeypatch, [5.0, 6.0, 7.0, 8.0])
        trainer = make_trainer(training={"epochs": 6, "stop_after": 2})
        assert not trainer.train(lambda: trainer.progress.step == 120)
        resumed = Trainer(trainer.run, corpus, CPU, Watcher())
        resumed.resume()
        assert resumed.train()
        assert resumed.progress.step == 150
        # Killed after its last evaluation, it is not trained further, and evaluates nothing again.
        again = Trainer(trainer.run, corpus, CPU, Watcher())
        again.resume()
        assert again.train()
        assert (again.progress.step, again.progress.best_step, again.stops_early) == (150, 50, True)

    def test_is_off_by_default(self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
        script_perplexities(monkeypatch, [5.0, 6.0, 7.0, 8.0])
        trainer = make_trainer(training={"epochs": 4})
        assert trainer.train()
        assert (trainer.progress.step, trainer.stops_early) == (200, False)


class TestSchedule:
    def test_the_rate_is_halved_after_patience(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Two evaluations an epoch, of which only the one at its end counts.
        ends = [9.0, 8.0, 8.0, 8.5, 7.0, 7.0]
        script_perplexities(monkeypatch, [value for end in ends for value in (1.0, end)])
        trainer = make_trainer(
            optimiser={"name": "sgd", "learning_rate": 0.4, "schedule": "halve", "patience": 2},
            training={"epochs": 6, "evaluations_per_epoch": 2, "max_train_tokens": 80},
        )
        assert trainer.train()
        rates = [record["lr"] for record in read_metrics(trainer.run.path).records][1::2]
        assert rates == [0.4, 0.4, 0.4, 0.4, 0.2, 0.2]

    def test_the_rate_falls_linearly(self, make_trainer: MakeTrainer) -> None:
        trainer = make_trainer(optimiser={"learning_rate": 0.1, "warmup_steps": 4})
        used = []
        set_factor = trainer.optimiser.set_factor
        trainer.optimiser.set_factor = lambda factor: (used.append(factor), set_factor(factor))  # type: ignore
        assert trainer.train()
        assert used[50] == pytest.approx(0.5)
        # The rate that is told is the one that the last step was made with.
        assert [record["lr"] for record in read_metrics(trainer.run.path).records] == pytest.approx(
            [0.1 * used[49], 0.1 * used[99]]
        )


class TestClock:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        clock = SimpleNamespace(now=100.0)
        for module in (trainer_module, progress_module):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

        call = TrainingStep.__call__

        def step(*arguments: Any) -> None:
            clock.now += 1.0
            call(*arguments)

        def measure(model: LanguageModel, ids: np.ndarray, **_: Any) -> Evaluation:
            clock.now += 1000.0
            return evaluate(model, ids)

        monkeypatch.setattr(TrainingStep, "__call__", step)
        monkeypatch.setattr(trainer_module, "evaluate", measure)
        return clock

    def test_only_training_is_timed(self, make_trainer: MakeTrainer, clock: SimpleNamespace) -> None:
        trainer = make_trainer()
        assert trainer.train()
        assert clock.now == 100.0 + 100 + 2000
        records = read_metrics(trainer.run.path).records
        assert [record["seconds"] for record in records] == [50.0, 100.0]
        assert [record["words_per_second"] for record in records] == [40.0, 40.0]
        assert trainer.progress.seconds == 100.0

    def test_the_time_left_is_that_of_the_pace_so_far(self, make_trainer: MakeTrainer, clock: SimpleNamespace) -> None:
        trainer = make_trainer()
        assert trainer.train()
        left = trainer.observer.seconds_left  # type: ignore[attr-defined]
        assert (left[10], left[99]) == (89, 0)
        assert left[60] == pytest.approx(39 * (1000 + 61) / 61), "with an evaluation"

    def test_start_up_is_timed_apart(
        self, make_trainer: MakeTrainer, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trainer = make_trainer()
        # As on a GPU: the first three steps compile and capture.
        monkeypatch.setattr(TrainingStep, "starts_up", property(lambda _: trainer.progress.step < 3))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
        assert trainer.train()
        records = read_metrics(trainer.run.path).records
        assert (trainer.progress.startup_seconds, trainer.progress.seconds) == (3.0, 97.0)
        assert [record["seconds"] for record in records] == [47.0, 97.0]
        # Neither its seconds nor its words count, in the run and since an evaluation.
        assert trainer.progress.words_per_second == 40.0
        assert [record["words_per_second"] for record in records] == [40.0, 40.0]
        assert trainer.progress.tokens == 100 * 40

    def test_a_run_to_be_repeated_is_saved_only_when_it_is_stopped(
        self, make_trainer: MakeTrainer, clock: SimpleNamespace
    ) -> None:
        trainer = make_trainer(training={"checkpoint_seconds": math.inf})
        assert not trainer.train(lambda: trainer.progress.step == 60)
        assert [path.name for path in state_files(trainer.run.path)] == ["state-000000000060.safetensors"]

    def test_states_are_saved_by_the_clock(
        self, make_trainer: MakeTrainer, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saved = []
        save_state = trainer_module.save_state

        def spy(directory: Path, step: int, *arguments: Any) -> Path:
            saved.append(step)
            return save_state(directory, step, *arguments)

        monkeypatch.setattr(trainer_module, "save_state", spy)
        trainer = make_trainer(training={"checkpoint_seconds": 20.0})
        assert trainer.train()
        # After an evaluation, which saves, the twenty seconds begin anew.
        assert saved == [20, 40, 50, 70, 90, 100]
        assert [path.name for path in state_files(trainer.run.path)] == [
            "state-000000000090.safetensors",
            "state-000000000100.safetensors",
        ]


class TestNotFinite:
    def test_a_loss_that_is_no_number_stops_the_run(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blow_up_after(monkeypatch, num_steps=60)
        trainer = make_trainer(optimiser={"schedule": "halve"})
        with pytest.raises(UserError) as caught:
            trainer.train()
        state = trainer.run.path / "state-000000000050.safetensors"
        assert str(caught.value) == (
            f"The loss is no longer finite at step 61 (learning rate 0.1): the last good checkpoint is '{state}'. "
            f"Continue from it with lower rates:  bnce train --out {trainer.run.path} --resume "
            "--set optimiser.learning_rate=0.05 --set optimiser.body_learning_rate=0.002"
        )
        assert state_files(trainer.run.path) == [state]
        assert_all_finite(state, STATE_FORMAT)
        assert_all_finite(trainer.run.path / MODEL_FILE, MODEL_FORMAT)

    def test_the_output_layer_may_know_the_reason(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = LanguageModel.loss_sum

        def loss_sum(self: LanguageModel, *arguments: Any) -> tuple[Tensor, Any]:
            loss, state = plain(self, *arguments)
            self.output._latest = torch.tensor([[3, 777]]), None  # as on a GPU, where nobody has looked at them
            return loss * torch.nan, state

        monkeypatch.setattr(LanguageModel, "loss_sum", loss_sum)
        trainer = make_trainer()
        with pytest.raises(UserError, match=r"targets hold 777, but the layer has"):
            trainer.train()

    def test_before_the_first_checkpoint(self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
        blow_up_after(monkeypatch, num_steps=0)
        trainer = make_trainer()
        with pytest.raises(UserError, match=r"at step 1 \(learning rate 0.1\): there is no checkpoint yet"):
            trainer.train()
        assert state_files(trainer.run.path) == []

    def test_where_the_loss_is_looked_at_rarely(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # As on a GPU: by the time the run looks, the parameters are lost, and must not be saved.
        monkeypatch.setitem(trainer_module.CHECK_EVERY_STEPS, "cpu", 1000)
        blow_up_after(monkeypatch, num_steps=60)
        trainer = make_trainer()
        with pytest.raises(UserError, match=r"The loss is no longer finite at step 100 .*state-000000000050"):
            trainer.train()
        (state,) = state_files(trainer.run.path)
        assert_all_finite(state, STATE_FORMAT)

    # The loss of the first step is fine, but it makes a model whose scores overflow, or one that is not finite itself.
    @pytest.mark.parametrize("optimiser", ["sgd", "rowwise", "rowwise-adam"])
    @pytest.mark.parametrize("checkpoint_seconds", [1e-9, 1e9])
    @pytest.mark.parametrize("evaluations_per_epoch", [1, 50])
    def test_a_step_that_is_too_long_is_not_saved(
        self, make_trainer: MakeTrainer, optimiser: str, checkpoint_seconds: float, evaluations_per_epoch: int
    ) -> None:
        trainer = make_trainer(
            optimiser={"name": optimiser, "learning_rate": 1e38, "clip_norm": 1e6, "schedule": "halve"},
            training={"checkpoint_seconds": checkpoint_seconds, "evaluations_per_epoch": evaluations_per_epoch},
        )
        told = r"is no longer finite at step [12] \(learning rate 1e\+38\)"
        with pytest.raises(UserError, match=told):
            trainer.train()
        for state in state_files(trainer.run.path):
            assert_all_finite(state, STATE_FORMAT)
        assert not (trainer.run.path / MODEL_FILE).exists()

    def test_a_perplexity_that_is_not_finite_stops_the_run(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script_perplexities(monkeypatch, [7.0, math.inf])
        trainer = make_trainer(optimiser={"schedule": "halve"})
        with pytest.raises(
            UserError, match=r"The validation perplexity .* at step 100 \(learning rate 0.1\): .*-0*50\."
        ):
            trainer.train()
        assert [record["step"] for record in read_metrics(trainer.run.path).records] == [50]

    def test_a_perplexity_worse_than_guessing_stops_the_run(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script_perplexities(monkeypatch, [7.0, 1e235])
        trainer = make_trainer(optimiser={"schedule": "halve"})
        with pytest.raises(DivergedError) as caught:
            trainer.train()
        state = trainer.run.path / "state-000000000050.safetensors"
        assert str(caught.value) == (
            "Training has diverged, with a validation PPLf of 1e+235 where guessing has 30, at step 100 (learning rate "
            f"0.1): the last good checkpoint is '{state}'. Continue from it with lower rates:  bnce train --out "
            f"{trainer.run.path} --resume --set optimiser.learning_rate=0.05 --set optimiser.body_learning_rate=0.002"
        )
        assert state_files(trainer.run.path) == [state], "the one of step 100 is none to go on from"
        assert [record["step"] for record in read_metrics(trainer.run.path).records] == [50]

    def test_a_model_from_another_run_may_begin_worse_than_guessing(
        self, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script_perplexities(monkeypatch, [500.0, 90.0, 20.0])
        trainer = make_trainer()
        trainer.progress.evaluated_step = -1
        assert trainer.train()
        assert [record["step"] for record in read_metrics(trainer.run.path).records] == [0, 50, 100]


@pytest.mark.parametrize(("batch_size", "is_told"), [(65, True), (64, False)])
def test_few_steps_of_a_large_batch_are_told(
    corpus: Corpus, make_trainer: MakeTrainer, batch_size: int, is_told: bool
) -> None:
    trainer = make_trainer(training={"batch_size": batch_size, "epochs": 1})
    assert not trainer.train(should_stop=lambda: trainer.progress.step == 2)
    told = r"has only (\d+) steps: lower training.batch_size"
    found = re.findall(told, " ".join(trainer.progress.warnings))
    assert found == ([str(trainer.total_steps)] if is_told else [])
    resumed = Trainer(trainer.run, corpus, CPU, Watcher())
    resumed.resume()
    assert resumed.train()
    assert resumed.progress.warnings == trainer.progress.warnings


def test_resets_are_those_of_the_epoch_and_the_chunk(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Chunk] = []

    def watch(step: TrainingStep, chunk: Chunk, *rest: Any) -> None:
        seen.append(chunk)
        step_itself(step, chunk, *rest)

    step_itself = TrainingStep.__call__
    monkeypatch.setattr(TrainingStep, "__call__", watch)
    trainer = make_trainer(training={"reset_rate": 0.5})
    trainer.train()
    resets = Resets(trainer.streams, 0.5, trainer.config.training.seed)
    for step, chunk in enumerate(seen):
        epoch, index = divmod(step, STEPS_AN_EPOCH)
        expected = resets.choose(trainer.streams.chunk(index), index, epoch).reset_LB
        assert expected is not None
        assert chunk.reset_LB is not None
        assert torch.equal(chunk.reset_LB, expected)
    assert len(seen) == 2 * STEPS_AN_EPOCH
    with_resets = trainer.model.embedding.detach().clone()

    seen.clear()
    trainer = make_trainer()
    trainer.train()
    assert all(chunk.reset_LB is None for chunk in seen), "without them nothing is computed"
    assert not torch.equal(trainer.model.embedding.detach().clone(), with_resets)


def test_a_wish_to_stop_at_the_last_step_is_the_end(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    assert trainer.train(should_stop=lambda: trainer.progress.step == trainer.total_steps)


def test_the_peak_of_memory_is_the_runs_own(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    reset: list[torch.device] = []
    monkeypatch.setattr(trainer_module, "reset_peak_memory", reset.append)
    assert make_trainer().train()
    assert reset == [CPU]


def test_the_time_of_a_budget_is_counted_by_the_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    other = World()
    monkeypatch.setattr(other, "share", lambda value: 7.0)
    progress = Progress(step=70)
    progress.use_budget(other)
    progress.use_budget(other)
    assert progress.budget_used_seconds == 7.0
    assert progress.steps_in_budget(10.0, unmeasured=5) == 100
    assert Progress().steps_in_budget(10.0, unmeasured=5) == 5
