"""`bnce train`: the run it makes, what it prints where, and everything it refuses."""

from __future__ import annotations

import errno
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Command, Refused, ctrl_c_after_step, settings
from run_files import held, metrics_of, num_parameters_of, settings_of

import bnce as package
from bnce import LOSSES, Corpus

NO_TARGETS = "words of the vocabulary are no targets in the training text. Together they start with"


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a place for the run that tests have copies of; the first of them trains it."""
    return tmp_path_factory.mktemp("stopped") / "run"


@pytest.fixture
def stopped(bnce: Command, corpus: Path, place: Path, stopped_once: Path) -> Path:
    """Give a run of 80 steps that was stopped after its first evaluation, at step 40, and before its second."""
    if not stopped_once.exists():
        with ctrl_c_after_step(50):
            outcome = bnce("train", "wiki", "--corpus", corpus, "--out", stopped_once, *settings())
        assert outcome.status == 130
    shutil.copytree(stopped_once, place / "run")
    return place / "run"


def test_from_text_to_model_in_two_commands(bnce: Command, texts: Path, place: Path) -> None:
    corpus, run = place / "corpus", place / "run"
    options = ["--valid", texts / "valid.txt", "--test", texts / "test.txt"]
    prepared = bnce("prepare", texts / "train.txt", "--out", corpus, "--vocab-size", 30, *options)
    assert prepared.status == 0, prepared.stderr
    options = ["--corpus", corpus, "--model", "relu-lstm", "--loss", "bnce", "--out", run, "--json"]
    record = bnce("train", "wiki", *options, *settings()).json
    assert record["run"] == str(run)
    assert record["status"] == "finished"
    assert (record["vocab_size"], record["threads"]) == (30, 1)
    assert record["command"].startswith("bnce train wiki --corpus ")
    assert record["num_parameters"] == num_parameters_of(run)
    assert record["test"]["split"] == "test"
    assert 1 < record["test"]["ppl_f"] < 30
    # The rest of it is in the run's evaluation.json.
    assert not {"log_z_histogram", "detail"} & set(record["test"])
    config = settings_of(run)
    assert (config["recipe"], config["corpus"], config["model"]["name"], config["loss"]["name"]) == (
        "wiki", str(corpus), "relu-lstm", "bnce",
    )  # fmt: skip
    assert (config["model"]["hidden_size"], config["training"]["epochs"], config["loss"]["log_z"]) == (8, 1, 9.0)


def test_prints_figures_with_their_conditions(bnce: Command, corpus: Path, place: Path) -> None:
    """Without a terminal, as in `bnce train > log 2>&1`, there is a line per evaluation."""
    outcome = bnce("train", "wiki", "--corpus", corpus, "--out", place / "a[/b]", *settings())
    assert outcome.status == 0, outcome.stderr
    first, *rest = outcome.stdout.splitlines()
    assert first.startswith(f"{place / 'a[/b]'}: ")
    assert re.search(r"[\d,]+ words in [\d.]+ s of training, [\d,]+ words/s on CPU, 1 thread; [\d,]+ parameters", first)
    assert rest[0].startswith("test: ")
    assert any(line.strip().startswith("PPLn") and "ln Z = 9.000" in line for line in rest)
    assert any(line.strip().startswith("PPLf") and "softmax" in line for line in rest)
    assert "Training on CPU, 1 thread; OMP_NUM_THREADS sets the number of threads.\n" in outcome.stderr
    assert NO_TARGETS not in outcome.stderr
    told = [line.partition(", epoch")[0] for line in outcome.stderr.splitlines() if ", validation PPLn " in line]
    assert told == [f"relu-lstm chunk-bnce step {record['step']}" for record in metrics_of(place / "a[/b]")]


def test_a_part_of_the_text_is_told_and_the_run_has_a_name_by_default(
    bnce: Command, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    changes = settings("training.max_train_tokens=200")
    told = bnce("train", "wiki", "--corpus", corpus, "--loss", "snce", "--model", "rnn", *changes).stderr
    assert [path.name for path in (place / "runs").iterdir()] == ["wiki-rnn-snce"]
    num_tokens = Corpus.open(corpus).statistics["train"].num_tokens
    assert f"Training uses the first 200 of the corpus's {num_tokens:,} training tokens (" in told
    assert "as training.max_train_tokens says: set it to 0 to use all of them." in told
    assert NO_TARGETS in told


def test_a_softmax_run_prints_one_perplexity(bnce: Command, corpus: Path, place: Path) -> None:
    options = ["--corpus", corpus, "--loss", "softmax", "--model", "ffnn", "--out", place / "run"]
    outcome = bnce("train", "wiki", *options, *settings("training.max_train_tokens=200", "model.bottleneck_size=7"))
    assert outcome.status == 0, outcome.stderr
    assert "PPLn" not in outcome.stdout + outcome.stderr
    assert "PPLf" in outcome.stdout


def test_figures_that_are_undefined_are_printed_as_such(bnce: Command, texts: Path, place: Path) -> None:
    (place / "unknown.txt").write_text("xyzzy\n", encoding="utf-8")
    splits = ["--valid", texts / "valid.txt", "--test", place / "unknown.txt"]
    assert bnce("prepare", texts / "train.txt", "--out", place / "corpus", "--workers", 1, *splits).status == 0
    limit = settings("training.max_test_tokens=1")
    outcome = bnce("train", "wiki", "--corpus", place / "corpus", "--out", place / "run", "--device", "cpu", *limit)
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.count("without <unk> undefined") == 2


class TestStopAndResume:
    def test_ctrl_c_with_json(self, bnce: Command, corpus: Path, place: Path) -> None:
        with ctrl_c_after_step(3):
            outcome = bnce("train", "wiki", "--corpus", corpus, "--out", place / "run", "--json", *settings())
        assert outcome.status == 130
        record = json.loads(outcome.stdout)
        assert (record["status"], record["step"]) == ("stopped", 3)
        assert f"Continue with  bnce train --out {place / 'run'} --resume" in outcome.stderr

    def test_a_finished_run_is_told_to_be_finished(self, bnce: Command, stopped: Path) -> None:
        assert "is already finished" not in bnce("train", "--out", stopped, "--resume").stdout
        outcome = bnce("train", "--out", stopped, "--resume")
        assert "Training on" not in outcome.stderr
        again = outcome.stdout.splitlines()
        assert again[0] == f"{stopped} is already finished (1 epoch); nothing was trained."
        assert again[1].startswith("test: ")
        further = bnce("train", "--out", stopped, "--resume", "--set", "training.epochs=2").stdout
        assert "is already finished" not in further

    @pytest.mark.parametrize("whole", [False, True], ids=["by out alone", "by the whole command"])
    def test_resumes_with_a_corpus_that_was_moved(
        self, bnce: Command, refused: Refused, stopped: Path, corpus: Path, texts: Path, tmp_path: Path, whole: bool
    ) -> None:
        """It is known by its texts; a text of the same words in other numbers is another."""
        words = ["--vocab", stopped / "vocab.txt", "--valid", texts / "test.txt", "--test", texts / "test.txt"]
        assert bnce("prepare", texts / "valid.txt", "--out", tmp_path / "other", *words).status == 0
        told = refused("train", "--out", stopped, "--resume", "--corpus", tmp_path / "other")
        assert "has another training and validation text than the run" in told
        shutil.copytree(corpus, tmp_path / "moved")
        more = ["wiki", *settings()] if whole else []
        assert bnce("train", *more, "--out", stopped, "--resume", "--corpus", tmp_path / "moved").status == 0
        # The next command finds it without being told.
        assert settings_of(stopped)["corpus"] == str(tmp_path / "moved")
        assert bnce("evaluate", stopped).status == 0

    def test_a_corpus_that_is_gone(
        self, refused: Refused, bnce: Command, stopped: Path, corpus: Path, place: Path
    ) -> None:
        config = (stopped / "config.toml").read_text(encoding="utf-8")
        (stopped / "config.toml").write_text(config.replace(str(corpus), "/nowhere"), encoding="utf-8")
        told = refused("train", "--out", stopped, "--resume")
        assert told.endswith("corpus '/nowhere', which is no longer there: give its new location with --corpus.")
        told = refused("train", "--init", stopped, "--out", place / "new")
        assert told.endswith("give its new location with --corpus.")
        assert bnce("train", "--out", stopped, "--resume", "--corpus", corpus).status == 0

    @pytest.mark.parametrize(("split", "name"), [("train", "training"), ("valid", "validation")])
    def test_not_with_another_text(
        self,
        bnce: Command,
        refused: Refused,
        stopped: Path,
        texts: Path,
        prepared_anew: Callable[..., Path],
        split: str,
        name: str,
    ) -> None:
        """The same words as often as before, in another order, are another text."""
        lines = (texts / f"{split}.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        (texts / "backwards.txt").write_text("".join(reversed(lines)), encoding="utf-8")
        before = contents(stopped)
        other = prepared_anew(**{split: "backwards"})
        told = refused("train", "--out", stopped, "--resume", "--corpus", other)
        assert f"The corpus '{other}' has another {name} text than the run '{stopped}' was begun with" in told
        assert contents(stopped) == before

    def test_a_start_on_text_that_was_cut_otherwise_is_told(
        self, bnce: Command, trained: Path, place: Path, prepared_anew: Callable[..., Path]
    ) -> None:
        options = ["--init", trained, "--out", place / "run", *settings()]
        outcome = bnce("train", "wiki", *options, "--corpus", prepared_anew("--cased"))
        assert outcome.status == 0, outcome.stderr
        assert (
            f"was cut into words in another way than the text of '{trained}' (lowercase is false, not true)"
            in outcome.stderr
        )

    def test_another_test_text_does_not_matter(
        self, bnce: Command, stopped: Path, prepared_anew: Callable[..., Path]
    ) -> None:
        assert bnce("train", "--out", stopped, "--resume", "--corpus", prepared_anew(test="valid")).status == 0

    def test_not_while_another_process_trains_it(self, refused: Refused, bnce: Command, stopped: Path) -> None:
        before = contents(stopped)
        with held(stopped):
            told = refused("train", "--out", stopped, "--resume")
        assert told == f"bnce: The run '{stopped}' is being trained by another process: wait for it, or stop it."
        assert contents(stopped) == before
        assert bnce("train", "--out", stopped, "--resume").status == 0

    @pytest.mark.parametrize(
        "change",
        [["--set", "training.num_steps=6"], ["--model", "lstm"], ["--loss", "softmax"]],
        ids=["setting", "model", "loss"],
    )
    def test_not_with_other_settings(self, refused: Refused, stopped: Path, corpus: Path, change: list[str]) -> None:
        before = contents(stopped)
        told = refused("train", "wiki", "--corpus", corpus, "--out", stopped, *settings(), *change, "--resume")
        named = {"--set": "training.num_steps 5, not 6", "--model": "model.name relu-lstm, not lstm"}
        assert f"The run '{stopped}' was started with other settings (" in told
        assert named.get(change[0], "loss.name chunk-bnce, not softmax") in told
        told = refused("train", "--out", stopped, *change, "--resume")
        assert ("keeps its model and its loss" if change[0] != "--set" else "training.num_steps 5, not 6") in told
        assert contents(stopped) == before

    def test_not_with_other_settings_under_the_default_name(
        self, refused: Refused, stopped: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(stopped.parent)
        (stopped.parent / "runs").mkdir()
        stopped.rename(stopped.parent / "runs" / "wiki-relu-lstm-chunk-bnce")
        options = ["wiki", "--corpus", corpus, *settings("training.seed=2"), "--resume"]
        assert "was started with other settings (training.seed 1, not 2)" in refused("train", *options)

    @pytest.mark.parametrize("whole", [False, True], ids=["by out alone", "by the whole command"])
    def test_with_settings_that_may_change(self, bnce: Command, stopped: Path, corpus: Path, whole: bool) -> None:
        change = ["--set", "optimiser.learning_rate=0.05", "--set", "training.epochs=2"]
        more = ["wiki", "--corpus", corpus, *settings()] if whole else []
        record = bnce("train", *more, "--out", stopped, "--resume", *change, "--json").json
        assert (record["status"], record["step"]) == ("finished", 160)
        assert [each["setting"] for each in record["changes"]] == ["optimiser.learning_rate", "training.epochs"]
        assert settings_of(stopped)["optimiser"]["learning_rate"] == 0.05

    def test_a_recipe_that_has_changed_since_changes_nothing(
        self, refused: Refused, stopped: Path, corpus: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "wiki.toml").write_text('base = "wiki"\n[optimiser]\nlearning_rate = 0.3\n', encoding="utf-8")
        options = ["--corpus", corpus, "--out", stopped, *settings(), "--resume"]
        told = refused("train", tmp_path / "wiki.toml", *options)
        assert "(optimiser.learning_rate 0.04, not 0.3): resume it with  bnce train --out" in told

    def test_not_without_a_run(self, refused: Refused, corpus: Path, place: Path) -> None:
        assert "nothing to resume" in refused("train", "--out", place / "run", "--resume")
        options = ["wiki", "--corpus", corpus, "--out", place / "run"]
        assert "nothing to resume" in refused("train", *options, "--resume")
        assert "give it as --out RUN" in refused("train", "--resume")
        assert list(place.iterdir()) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["wik"], "choose one of demo, ltcb, news, obwb, small, transformer, wiki. Did you mean 'wiki'?"),
            (["wiki", "--model", "relu-lsm"], "Did you mean 'relu-lstm'?"),
            (["wiki", "--loss", "bcne"], f"Unknown loss 'bcne': choose one of {', '.join(LOSSES)}. Did you mean"),
            (["missing.toml"], "The recipe file 'missing.toml' does not exist"),
            (["wiki", "--set", "training.epoch=1"], "Did you mean 'epochs'?"),
            (["wiki", "--set", "trainin.epochs=1"], "Did you mean 'training'?"),
            (["wiki", "--set", "epochs"], "write it as section.key=value, such as training.epochs=3."),
            (["wiki", "--set", "training.epochs=many"], "training.epochs is 'many': it must be a number."),
            (["wiki", "--set", "training.epochs=0"], "epochs is 0: it must be a number > 0.0."),
            (
                ["wiki", "--set", "optimiser.learning_rate=-1"],
                "learning_rate is -1: it must be a number > 0.0.",
            ),
            (["wiki", "--device", "gpu"], "Unknown device 'gpu': use auto, cpu, cuda or cuda:N."),
        ],
    )
    def test_arguments(self, refused: Refused, corpus: Path, place: Path, arguments: list[str], told: str) -> None:
        assert told in refused("train", *arguments, "--corpus", corpus, "--out", place / "run")
        assert list(place.iterdir()) == []

    def test_no_corpus(self, refused: Refused, place: Path) -> None:
        told = refused("train", "wiki", "--out", place / "run")
        assert told.endswith("make one with 'bnce prepare' and give it as --corpus DIR.")
        told = refused("train", "wiki", "--corpus", place / "missing", "--out", place / "run")
        assert f"'{place / 'missing'}' does not exist: check the path" in told
        assert list(place.iterdir()) == []

    def test_an_existing_run(self, refused: Refused, corpus: Path, trained: Path) -> None:
        before = contents(trained)
        told = refused("train", "wiki", "--corpus", corpus, "--out", trained, *settings())
        assert told.endswith("already exists: continue it with --resume, give another --out, or remove it.")
        assert contents(trained) == before

    def test_a_loss_that_is_no_number(self, bnce: Command, corpus: Path, place: Path) -> None:
        changes = ["optimiser.name=sgd", "optimiser.learning_rate=1e38", "optimiser.clip_norm=1e6"]
        outcome = bnce("train", "wiki", "--corpus", corpus, "--out", place / "run", *settings(*changes))
        assert outcome.status == 1
        assert outcome.stdout == ""
        assert "Traceback" not in outcome.stderr
        assert re.fullmatch(
            r"bnce: The (loss|gradient|model) is no longer finite at step \d+ \(learning rate .*\): there is no "
            r"checkpoint yet\. Start it again with lower rates:  bnce train --out .* --resume --set .*=1e\+37",
            outcome.stderr.splitlines()[-1],
        )

    def test_a_model_worse_than_guessing(self, bnce: Command, corpus: Path, place: Path) -> None:
        """Its numbers are finite, and mean nothing: no figures of it, and the rates are told to be much lower."""
        rates = ["optimiser.learning_rate=10", "optimiser.body_learning_rate=10", "optimiser.clip_norm=1e6"]
        changes = [*rates, "optimiser.name=rowwise-adam", "optimiser.schedule=halve", "model.bottleneck_size=7"]
        outcome = bnce("train", "wiki", "--corpus", corpus, "--out", place / "run", *settings(*changes))
        assert outcome.status == 1
        assert outcome.stdout == ""
        told = outcome.stderr.splitlines()[-1]
        assert told.startswith("bnce: Training has diverged, with a validation PPLf of ")
        assert "=1 --set optimiser.body_learning_rate=1" in told
        assert json.loads((place / "run" / "summary.json").read_text())["status"] == "diverged"
        assert max(map(len, outcome.stderr.split())) < 200

    def test_a_penalty_that_is_too_high_is_named(self, bnce: Command, corpus: Path, place: Path) -> None:
        options = ["--corpus", corpus, "--out", place / "run", "--loss", "chunk-softmax"]
        outcome = bnce("train", "wiki", *options, *settings("loss.penalty=1e38"))
        assert outcome.status == 1
        assert "; loss.penalty is 1e+38, usually 0.1, and a new run may need a lower one): there" in outcome.stderr

    def test_what_is_said_after_a_loss_that_is_no_number_works(
        self, bnce: Command, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps, plain = iter(range(1000)), package.OutputLayer.loss_sum

        def loss_sum(*arguments: Any, **keywords: Any) -> torch.Tensor:
            loss = plain(*arguments, **keywords)
            return loss * torch.nan if next(steps) >= 60 else loss

        with monkeypatch.context() as patched:
            patched.setattr(package.OutputLayer, "loss_sum", loss_sum)
            outcome = bnce("train", "wiki", "--corpus", corpus, "--out", place / "run", *settings())
        assert outcome.status == 1
        assert "state-000000000040.safetensors'. Continue from it with lower rates:  bnce train " in outcome.stderr
        said = shlex.split(outcome.stderr.splitlines()[-1].rpartition(":  bnce ")[2])
        record = bnce(*said, "--json").json
        assert (record["status"], record["step"]) == ("finished", 80)
        assert [(each["step"], each["from"], each["to"]) for each in record["changes"]] == [
            (40, 0.04, 0.02),
            (40, 0.004, 0.002),
        ]

    def test_a_full_disk(self, bnce: Command, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(tensors: Any, path: Path, metadata: Any) -> None:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("safetensors.torch.serialize_file", full)
        run = place / "run"
        outcome = bnce("train", "wiki", "--corpus", corpus, "--out", run, *settings())
        assert outcome.status == 2
        assert outcome.stdout == ""
        assert "Traceback" not in outcome.stderr
        assert outcome.stderr.splitlines()[-1] == (
            f"bnce: The disk is full: '{run / 'state-000000000040.safetensors'}' could not be written and was "
            f"not changed; free some space, then continue with  bnce train --out {run} --resume"
        )
        assert [path.name for path in run.glob("*.safetensors")] == ["spelling.safetensors"]  # from the corpus
        assert list(run.glob(".*")) == []
        monkeypatch.undo()
        advice = outcome.stderr.splitlines()[-1].partition("continue with  bnce ")[2]
        resumed = bnce(*shlex.split(advice))
        assert resumed.status == 0, resumed.stderr


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_a_recipe_is_chosen_by_size_and_told(bnce: Command, corpus: Path, place: Path) -> None:
    outcome = bnce("train", "--corpus", corpus, "--out", place / "run", "--json", *settings())
    num_tokens = Corpus.open(corpus).statistics["train"].num_tokens
    assert outcome.json["recipe"] == "small"
    assert (
        f"The recipe 'small' was chosen for {num_tokens:,} training tokens on a CPU; name a recipe to use another "
        "one.\n" in outcome.stderr
    )


def test_demo_trains_on_the_whole_of_another_text(bnce: Command, corpus: Path, place: Path) -> None:
    outcome = bnce("train", "demo", "--corpus", corpus, "--out", place / "run", "--json", *settings())
    assert outcome.json["tokens"] == Corpus.open(corpus).statistics["train"].num_tokens // 8 * 8
    assert settings_of(place / "run")["training"]["max_train_tokens"] == 0
    assert "of the corpus's" not in outcome.stderr


def test_only_the_first_of_the_test_text_is_read_and_told(bnce: Command, corpus: Path, place: Path) -> None:
    num_tokens = Corpus.open(corpus).statistics["test"].num_tokens
    outcome = bnce(
        "train", "wiki", "--corpus", corpus, "--out", place / "run", *settings("training.max_test_tokens=100")
    )
    assert f"These are the first 100 of {num_tokens} tokens of test (training.max_test_tokens)." in outcome.stdout


def test_a_recipe_or_a_corpus_is_wanted(refused: Refused, place: Path) -> None:
    told = refused("train", "--out", place / "run")
    assert "Neither a recipe nor a corpus was given: give --corpus DIR" in told
    assert "or one of demo, ltcb, news, obwb, small, transformer, wiki." in told


class TestInit:
    def test_a_run_starts_from_another(self, bnce: Command, trained: Path, place: Path) -> None:
        # The network's sizes come from the run: only how it is trained is given here.
        training = ["--set", "training.batch_size=8", "--set", "training.num_steps=5", "--set", "training.epochs=1"]
        outcome = bnce("train", "--init", trained, "--out", place / "more", "--json", *training)
        record = outcome.json
        assert record["init"]["run"] == str(trained.resolve())
        assert record["init"]["num_words_new"] == record["init"]["num_words_dropped"] == 0
        assert f"Starting from '{trained.resolve()}' (step " in outcome.stderr
        adapted = settings_of(place / "more")
        assert adapted["model"] == settings_of(trained)["model"]
        assert adapted["init"] == str(trained.resolve())
        assert metrics_of(place / "more")[0]["step"] == 0
        assert "relu-lstm bnce before the first step: validation PPLn " in outcome.stderr
        assert "nan" not in outcome.stderr

    def test_a_resume_that_names_the_recipe_keeps_it(
        self, bnce: Command, corpus: Path, trained: Path, place: Path
    ) -> None:
        options = ["train", "wiki", "--loss", "bnce", "--corpus", corpus, "--json"]
        first = bnce(*options, "--init", trained, "--out", place / "more", *settings()).json
        before = settings_of(place / "more")["init"]
        assert before == str(trained.resolve())
        more = [*settings(), "--set", "training.epochs=2"]
        record = bnce(*options, "--out", place / "more", "--resume", *more).json
        assert record["step"] == 2 * first["step"]
        assert record["init"] == first["init"]
        assert settings_of(place / "more")["init"] == before

    def test_it_refuses_another_network(self, refused: Refused, trained: Path, place: Path) -> None:
        init = ["train", "--init", trained, "--out", place / "more"]
        assert "--model is lstm, not relu-lstm" in refused(*init, "--model", "lstm")
        assert "model.hidden_size is 9, not 8" in refused(*init, "--set", "model.hidden_size=9")
        assert "A resumed run continues from its own weights" in refused(*init, "--resume")
        assert "is not a run directory" in refused("train", "--init", place, "--out", place / "more")
        assert not (place / "more").exists()
