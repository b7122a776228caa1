"""What is refused before anything of a run is on disk, and which recipe a text gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from small_corpus import Watcher, write_corpus
from small_training import train_small

from bnce import MODELS, Corpus, UserError


class TestRefusals:
    def test_more_parts_than_words(self, place: Path, corpus: Corpus) -> None:
        loss = {"name": "adaptive-softmax", "cutoffs": [5, 30]}
        with pytest.raises(UserError, match=r"cutoffs are \[5, 30\]: give rising numbers from 1 to 29"):
            train_small(place / "run", corpus, loss=loss)
        assert list(place.iterdir()) == []

    def test_resets_in_a_text_without_sentence_ends(self, place: Path, tmp_path: Path) -> None:
        splits = {name: np.full(300, 5) for name in ("train", "valid")}
        endless = write_corpus(tmp_path / "endless", splits)
        with pytest.raises(UserError, match=r"reset_rate is 0.25, but the training text has no sentence ends: leave"):
            train_small(place / "run", endless, training={"reset_rate": 0.25})
        assert list(place.iterdir()) == []

    def test_resets_in_a_body_that_has_none(self, place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(MODELS["lstm"], "resets", False)
        with pytest.raises(
            UserError, match=r"reset_rate is 0.25, but LSTM cannot start without context inside a chunk:"
        ):
            train_small(place / "run", corpus, model={"name": "lstm"}, training={"reset_rate": 0.25})

    def test_too_little_text(self, place: Path, corpus: Corpus) -> None:
        with pytest.raises(UserError, match="The text has 2003 tokens, but one batch of 100 streams and 21 steps"):
            train_small(place / "run", corpus, training={"batch_size": 100, "num_steps": 21})
        with pytest.raises(UserError, match="The text has 39 tokens, but one batch of 8 streams and 5 steps needs 40"):
            train_small(place / "run", corpus, training={"max_train_tokens": 39})
        assert list(place.iterdir()) == []

    def test_one_stream_has_no_noise(self, place: Path, corpus: Corpus) -> None:
        training = {"batch_size": 1, "max_train_tokens": 30, "epochs": 1}
        with pytest.raises(UserError, match=r"raise training\.batch_size or loss\.num_noise"):
            train_small(place / "run", corpus, training=training)
        assert list(place.iterdir()) == []
        summary = train_small(place / "run", corpus, training=training, loss={"num_noise": 3})
        assert summary["status"] == "finished"


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
def test_noise_is_advised_where_streams_are_few(
    place: Path, corpus: Corpus, loss: dict[str, Any], num_streams: int, advised: str | None
) -> None:
    training = {"batch_size": num_streams, "epochs": 0.01}
    for model in ("transformer", "lstm"):
        watcher = Watcher()
        sizes = {"name": model, "num_layers": 1}
        train_small(place / model, corpus, observer=watcher, model=sizes, loss=loss, training=training)
        told = [sentence for sentence in watcher.sentences if "usually gives a lower perplexity" in sentence]
        if advised is None or model == "lstm":  # measured with Transformers alone
            assert told == []
        else:
            assert len(told) == 1
            assert advised in told[0]


def test_a_row_takes_the_settings_that_its_model_has(bnce: Command, place: Path, corpus: Corpus) -> None:
    sizes = ["--set", "model.hidden_size=4", "--set", "model.bottleneck_size=4", "--set", "training.max_train_tokens=0"]
    outcome = bnce("experiment", "ltcb", "--corpus", corpus.directory, "--out", place, "--rows", "rnn,ffnn", *sizes)
    assert outcome.status == 2
    assert "one batch of 400 streams" in outcome.stderr, "there is not that much text"


def test_advice_is_told_where_training_starts(place: Path, corpus: Corpus) -> None:
    watcher = Watcher()
    model = {"name": "transformer", "num_layers": 1}
    train_small(place / "run", corpus, observer=watcher, model=model, training={"batch_size": 4, "epochs": 0.01})
    assert any("3 noise words per position" in notice for notice in watcher.sentences)
