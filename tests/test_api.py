"""Training and measuring from Python: the same run as from the command line, and messages that name arguments."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from run_files import settings_of
from small_corpus import Watcher, small_corpus

import bnce
from bnce import api
from bnce.api import Wanted, plan_training
from bnce.machine.processes import World

SMALL = {
    "model.embedding_size": 6,
    "model.hidden_size": 8,
    "optimiser.warmup_steps": 5,
    "training.batch_size": 8,
    "training.num_steps": 5,
    "training.epochs": 1,
    "training.evaluations_per_epoch": 2,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> bnce.Corpus:
    return small_corpus(tmp_path_factory.mktemp("api") / "corpus")


@pytest.fixture(scope="module")
def trained(corpus: bnce.Corpus) -> Path:
    out = corpus.directory.parent / "run"
    bnce.train("wiki", corpus=corpus, out=out, settings=SMALL, device="cpu")
    return out


def test_the_summary_has_what_the_command_prints(corpus: bnce.Corpus, tmp_path: Path) -> None:
    watcher = Watcher()
    summary = bnce.train(
        corpus=str(corpus.directory),
        out=str(tmp_path / "run"),
        model="lstm",
        loss="snce",
        settings={**SMALL, "loss.num_noise": 3, "loss.noise": "uniform", "training.deterministic": True},
        device="cpu",
        observer=watcher,
    )
    assert (summary["run"], summary["recipe"], summary["status"]) == (str(tmp_path / "run"), "small", "finished")
    assert "The recipe 'small' was chosen" in watcher.sentences[0]
    settings = (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    assert 'noise = "uniform"' in settings
    assert "deterministic = true" in settings
    result = bnce.evaluate(tmp_path / "run", corpus=corpus, device="cpu", by_sentence=False)
    figures = {"split": "test", **result.to_dict()}
    assert summary["test"] == {name: figures[name] for name in summary["test"]}
    assert set(figures) - set(summary["test"]) == {"log_z_histogram", "detail"}


def test_it_goes_on_and_it_starts_from_another(corpus: bnce.Corpus, trained: Path, tmp_path: Path) -> None:
    whole = bnce.train("wiki", corpus=corpus, out=tmp_path / "whole", settings={**SMALL, "training.epochs": 2})
    part = bnce.train("wiki", corpus=corpus, out=tmp_path / "part", settings=SMALL)
    more = bnce.train(out=tmp_path / "part", resume=True, settings={"training.epochs": 2})
    assert part["step"] < more["step"] == whole["step"]
    watcher = Watcher()
    # The corpus, the network and its sizes are those of the run it starts from.
    adapted = bnce.train(
        init=trained,
        out=tmp_path / "adapted",
        settings={name: value for name, value in SMALL.items() if not name.startswith("model.")},
        observer=watcher,
    )
    assert adapted["init"]["run"] == str(trained)
    assert any("words keep their weights" in notice for notice in watcher.sentences)


def test_what_torchrun_starts_again_goes_on_from_its_own_weights(
    corpus: bnce.Corpus, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [(name, value) for name, value in SMALL.items() if not name.startswith("model.")]
    wanted = Wanted("small", corpus, tmp_path / "run", None, None, settings, False, trained, "cpu")
    begun = plan_training(wanted)
    begun.train()
    monkeypatch.setattr(api, "started_many", lambda: True)
    monkeypatch.setattr(api, "num_restarts", lambda: 1)
    monkeypatch.setattr(api, "open_world", lambda device: World())
    again = plan_training(wanted)
    assert (again.resume, again.start, again.run.config) == (True, None, begun.run.config)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, r"Neither a recipe nor a corpus was given: give corpus='DIR'"),
        ({"resume": True}, r"resume=True needs the run to continue: give it as out='RUN'"),
        ({"recipe": "wiki"}, r"needs a corpus: .* give it as corpus='DIR'"),
        ({"out": "run", "resume": True, "loss": "nce"}, r"leave out model and loss"),
        ({"out": "run", "resume": True, "init": "run"}, r"leave out init, or give another out"),
        ({"recipe": "demo", "settings": {"training.epoch": 3}}, r"epochs"),
    ],
)
def test_refusals_name_arguments(
    arguments: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(bnce.UserError, match=told):
        bnce.train(**arguments)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_measured(trained: Path) -> None:
    for arguments, told in (
        ({"text": "a.txt", "split": "valid"}, "text replaces the corpus: leave out split and corpus"),
        ({"split": "dev"}, "has no split 'dev'"),
    ):
        with pytest.raises(bnce.UserError, match=told):
            bnce.evaluate(trained, device="cpu", **arguments)
    with pytest.raises(bnce.UserError, match="The run directory is a RunModel: give its path, a string or a Path"):
        bnce.evaluate(bnce.load(trained))


def test_a_setting_may_be_without_bound(corpus: bnce.Corpus, tmp_path: Path) -> None:
    """JSON has no infinity, and TOML, which settings are written in, has."""
    settings = {**SMALL, "training.checkpoint_seconds": math.inf, "training.max_train_tokens": 200}
    settings["model.bottleneck_size"] = 7
    bnce.train("wiki", corpus=corpus, out=tmp_path / "run", settings=settings, device="cpu")
    assert settings_of(tmp_path / "run")["training"]["checkpoint_seconds"] == math.inf


def test_a_process_that_follows_waits_until_the_first_one_has_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended at once, it would have the launcher stop the first one before its sentence."""

    class LeftError(Exception):
        pass

    def leave() -> None:
        raise LeftError

    follower = SimpleNamespace(is_first=False, share=lambda given: None)
    monkeypatch.setattr("bnce.api.started_many", lambda: True)
    monkeypatch.setattr("bnce.api.open_world", lambda *given: follower)
    monkeypatch.setattr("bnce.api.leave_after_the_first", leave)
    with pytest.raises(LeftError):
        bnce.train("demo", device="cpu")


@pytest.mark.parametrize(
    ("device", "num_tokens", "recipe"),
    [
        ("cpu", 1_000_000, "small"),
        ("cpu", 500_000_000, "small"),
        ("cuda", 20_000_000, "small"),
        ("cuda", 20_000_001, "wiki"),
        ("cuda", 300_000_001, "news"),
    ],
)
def test_a_recipe_goes_by_size_and_device(
    corpus: bnce.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, num_tokens: int, recipe: str
) -> None:
    """What is chosen is told before the first step, and there this training ends."""

    statistics = {**corpus.statistics, "train": dataclasses.replace(corpus.statistics["train"], num_tokens=num_tokens)}

    class Sized(bnce.Corpus):
        """A corpus that says it has so many tokens, and has fewer."""

        statistics = property(lambda _: statistics)
        split = corpus.split

    class ToldError(Exception):
        pass

    class Listener(Watcher):
        def noticed(self, sentence: str) -> None:
            raise ToldError(sentence)

    sized = Sized(**{field.name: getattr(corpus, field.name) for field in dataclasses.fields(corpus)})
    monkeypatch.setattr(bnce.Corpus, "open", lambda directory: sized)
    monkeypatch.setattr("bnce.api.choose_device", lambda name: torch.device(name))
    with pytest.raises(ToldError) as told:
        bnce.train(corpus=corpus, out=tmp_path / "run", device=device, settings=SMALL, observer=Listener())
    where = device.replace("cuda", "gpu").upper()
    assert f"The recipe '{recipe}' was chosen for {num_tokens:,} training tokens on a {where};" in str(told.value)
