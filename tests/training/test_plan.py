"""What is refused before anything of a run is on disk, and which recipe a text gets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_corpus import Watcher, small_config, small_corpus, write_corpus

from bnce import BODIES, Corpus, UserError, train
from bnce.training.plan import advise_noise, choose_recipe, create_run, find_unused
from bnce.training.run import run_training

CPU = torch.device("cpu")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a directory for runs alone, so that whatever is left behind shows."""
    directory = tmp_path / "place"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
@pytest.mark.parametrize("noise", [{"noise": "uniform"}, {"noise": "log-uniform"}, {"noise_power": 0.75}])
def test_noise_that_the_batch_does_not_have_is_refused(
    place: Path, corpus: Corpus, loss: str, noise: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match=rf"The loss {loss} takes the other targets of the batch as noise"):
        create_run(place / "run", small_config(corpus, loss={"name": loss, **noise}), corpus)
    assert not list(place.iterdir())
    create_run(place / "drawn", small_config(corpus, loss={"name": "snce", "num_noise": 5, **noise}), corpus)


class TestRefusals:
    def test_more_parts_than_words(self, place: Path, corpus: Corpus) -> None:
        loss = {"name": "adaptive-softmax", "cutoffs": (5, 30)}
        with pytest.raises(UserError, match=r"loss\.cutoffs is \[5, 30\], but .* from 1 to 29"):
            create_run(place / "run", small_config(corpus, loss=loss), corpus)
        assert list(place.iterdir()) == []

    @pytest.mark.parametrize("loss", ["softmax", "sampled-softmax"])
    def test_a_learned_z_that_nothing_uses(self, place: Path, corpus: Corpus, loss: str) -> None:
        config = small_config(corpus, loss={"name": loss, "num_noise": 5, "learn_log_z": True})
        with pytest.raises(UserError, match=f"learn_log_z is on, but the loss {loss} has no constant Z: leave it out"):
            create_run(place / "run", config, corpus)
        assert list(place.iterdir()) == []

    def test_resets_in_a_text_without_sentence_ends(self, place: Path, tmp_path: Path) -> None:
        splits = {name: np.full(300, 5) for name in ("train", "valid")}
        endless = write_corpus(tmp_path / "endless", splits)
        config = small_config(endless, training={"reset_rate": 0.25})
        with pytest.raises(UserError, match=r"reset_rate is 0.25, but the training text has no sentence ends: leave"):
            create_run(place / "run", config, endless)
        assert list(place.iterdir()) == []

    def test_resets_in_a_body_that_has_none(self, place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = dataclasses.replace(BODIES.find("lstm"), resets=False)
        monkeypatch.setattr(BODIES, "find", lambda name: plain)
        config = small_config(corpus, model={"name": "lstm"}, training={"reset_rate": 0.25})
        with pytest.raises(
            UserError, match=r"reset_rate is 0.25, but LSTM cannot start without context inside a chunk:"
        ):
            create_run(place / "run", config, corpus)

    def test_too_little_text(self, place: Path, corpus: Corpus) -> None:
        config = small_config(corpus, training={"batch_size": 100, "num_steps": 21})
        with pytest.raises(UserError, match="The text has 2003 tokens, but one batch of 100 streams and 21 steps"):
            create_run(place / "run", config, corpus)
        config = small_config(corpus, training={"max_train_tokens": 39})
        with pytest.raises(UserError, match="The text has 39 tokens, but one batch of 8 streams and 5 steps needs 40"):
            create_run(place / "run", config, corpus)
        assert list(place.iterdir()) == []

    def test_one_stream_has_no_noise(self, place: Path, corpus: Corpus) -> None:
        training = {"batch_size": 1, "max_train_tokens": 30, "epochs": 1}
        with pytest.raises(UserError, match=r"raise training\.batch_size or loss\.num_noise"):
            create_run(place / "run", small_config(corpus, training=training), corpus)
        assert list(place.iterdir()) == []
        config = small_config(corpus, training=training, loss={"num_noise": 3})
        run = create_run(place / "run", config, corpus)
        assert run_training(run, corpus, CPU, Watcher())["status"] == "finished"

    def test_a_softmax_that_cannot_run_here(self, place: Path, corpus: Corpus) -> None:
        config = small_config(corpus, loss={"name": "softmax", "softmax": "cce"})
        with pytest.raises(UserError, match="The softmax 'cce' cannot run on cpu with the installed packages: use"):
            create_run(place / "run", config, corpus, CPU)
        assert list(place.iterdir()) == []

    def test_an_existing_directory(self, place: Path, corpus: Corpus) -> None:
        (place / "run").mkdir()
        (place / "run" / "notes.txt").write_text("mine", encoding="utf-8")
        with pytest.raises(UserError, match="already exists"):
            create_run(place / "run", small_config(corpus), corpus)
        assert [path.name for path in (place / "run").iterdir()] == ["notes.txt"]


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
def test_a_recipe_goes_by_size_and_device(corpus: Corpus, device: str, num_tokens: int, recipe: str) -> None:
    statistics = {"train": dataclasses.replace(corpus.statistics["train"], num_tokens=num_tokens)}
    sized = SimpleNamespace(statistics=statistics)
    name, reason = choose_recipe(sized, torch.device(device))  # type: ignore[arg-type]
    assert name == recipe
    assert (
        f"'{recipe}' was chosen for {num_tokens:,} training tokens on a {device.replace('cuda', 'gpu').upper()};"
        in reason
    )


@pytest.mark.parametrize(
    ("loss", "num_streams", "advised"),
    [
        ({"name": "bnce"}, 64, "63 noise words per position: loss='chunk-bnce' usually"),
        ({"name": "bnce"}, 32, "31 noise words per position: loss='bnce' with loss.num_noise=1000 usually"),
        ({"name": "chunk-bnce"}, 32, "with 32 long streams: loss='bnce' with loss.num_noise=1000 usually"),
        ({"name": "chunk-bnce"}, 64, None),
        ({"name": "bnce"}, 256, None),
        ({"name": "bnce", "num_noise": 5}, 16, None),
        ({"name": "softmax"}, 16, None),
    ],
)
def test_noise_is_advised_where_streams_are_few(loss: dict[str, Any], num_streams: int, advised: str | None) -> None:
    config = small_config(model={"name": "transformer"}, loss=loss, training={"batch_size": num_streams})
    found = advise_noise(config)
    assert found == advised or (found is not None and advised is not None and advised in found)
    recurrent = small_config(model={"name": "lstm"}, loss=loss, training={"batch_size": num_streams})
    assert advise_noise(recurrent) is None, "measured with Transformers alone"


@pytest.mark.parametrize(
    ("models", "names", "told"),
    [
        ("lstm", "num_heads", "LSTM has no use for model.num_heads: the setting changes nothing."),
        ("rnn lstm", "context", "RNN and LSTM have no use for model.context: the setting changes nothing."),
        (
            "transformer",
            "order num_heads bottleneck_size",
            "Transformer has no use for model.order and model.bottleneck_size: the settings change nothing.",
        ),
        ("lstm transformer", "num_heads context num_layers", None),
        ("ffnn", "order hidden_size dropout embedding_range", None),
    ],
)
def test_settings_that_change_nothing_are_found(models: str, names: str, told: str | None) -> None:
    settings = [*(f"model.{name}=4" for name in names.split()), "training.batch_size=8"]
    assert find_unused(settings, models.split()) == told


def test_advice_is_told_where_training_starts(place: Path, corpus: Corpus) -> None:
    sizes = {"model.embedding_size": 8, "model.hidden_size": 8, "model.num_layers": 1, "training.batch_size": 4}
    watcher = Watcher()
    train(
        "transformer",
        corpus=corpus,
        out=place / "run",
        loss="bnce",
        settings={**sizes, "training.num_steps": 5, "model.order": 3},
        device="cpu",
        observer=watcher,
    )
    assert "Transformer has no use for model.order: the setting changes nothing." in watcher.sentences
    assert any("3 noise words per position" in notice for notice in watcher.sentences)
