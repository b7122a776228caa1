"""The adapter against the interface that pyctcdecode calls; the package itself need not be there."""

from __future__ import annotations

import math
from typing import Any

import pytest
from small_corpus import END, UNK, small_model

from bnce import DecoderLanguageModel, Model, UserError
from tests.scoring.models import HEARD, Unigram, mixture, run_model
from tests.scoring.plain import plain_log_probs


def make_model(body: str = "lstm") -> Model:
    return run_model(small_model(body, order=4), HEARD)


@pytest.mark.parametrize("mode", ["unnormalised", "normalised"])
@pytest.mark.parametrize("body", ["ffnn", "lstm"])
def test_a_sentence_in_steps_is_the_sentence(body: str, mode: Any) -> None:
    """As a decoder does: word by word, the last with the sentence's end, alpha and beta as in shallow fusion."""
    model = make_model(body)
    adapter = DecoderLanguageModel(model, alpha=0.7, beta=0.3, mode=mode)
    state, total = adapter.get_start_state(), 0.0
    for word, is_last in (("HELLO", False), ("world", False), ("zebra", False), ("help", True)):
        score, state = adapter.score(state, word, is_last_word=is_last)
        total += score
    log_prob = plain_log_probs(model.network, [2, 4, UNK, 3, END], mode == "normalised").sum()
    # One word is unknown: its offset is a log10.
    assert total == pytest.approx(0.7 * (log_prob - 10.0 * math.log(10)) + 4 * 0.3, abs=1e-4)


def test_the_state_goes_on_from_the_last_word() -> None:
    """The end is scored but not walked through: a decoder may go on, as it does with a stream."""
    adapter = DecoderLanguageModel(make_model())
    start = adapter.get_start_state()
    _, after_last = adapter.score(start, "hello", is_last_word=True)
    _, after = adapter.score(start, "hello")
    assert adapter.score(after_last, "world")[0] == pytest.approx(adapter.score(after, "world")[0], abs=1e-6)


def test_boundaries_can_be_left_out() -> None:
    adapter = DecoderLanguageModel(make_model(), score_boundary=False)
    start = adapter.get_start_state()
    assert adapter.score(start, "hello", True)[0] == pytest.approx(adapter.score(start, "hello", False)[0])


def test_no_word_is_only_the_end() -> None:
    """A decoder that ends after a blank asks for the empty word."""
    model = make_model()
    adapter = DecoderLanguageModel(model, alpha=1.0, beta=0.0)
    _, state = adapter.score(adapter.get_start_state(), "hello")
    score, _ = adapter.score(state, "", is_last_word=True)
    assert score == pytest.approx(plain_log_probs(model.network, [2, END])[1], abs=1e-5)


def test_partial_words() -> None:
    adapter = DecoderLanguageModel(make_model())
    for begun in ("h", "hel", "HELP", "wor", "w2", ""):
        assert adapter.score_partial_token(begun) == 0.0, begun
    assert adapter.score_partial_token("hex") == -10.0
    assert adapter.score_partial_token("zebrafishes!") == pytest.approx(-20.0)
    # The special words are not spelled by anyone.
    assert adapter.score_partial_token("</") == -10.0


def test_it_has_what_the_decoder_asks_for() -> None:
    adapter = DecoderLanguageModel(make_model("ffnn"))
    assert adapter.order == 4
    assert DecoderLanguageModel(make_model("lstm")).order == 10
    for name in ("alpha", "beta", "unk_score_offset", "score_boundary"):
        setattr(adapter, name, getattr(adapter, name))


def test_a_state_that_is_none() -> None:
    with pytest.raises(UserError, match=r"^The state is None: give one from get_start_state or score\.$"):
        DecoderLanguageModel(make_model()).score(None, "hello")  # type: ignore[arg-type]


def test_a_decoder_takes_any_model() -> None:
    alone = DecoderLanguageModel(Unigram({"a": 0.5, "</s>": 0.25}), alpha=1.0, beta=0.0)
    score, state = alone.score(alone.get_start_state(), "a")
    assert score == pytest.approx(math.log(0.5))
    assert alone.score(state, "zebra")[0] == pytest.approx(math.log(0.25) - 10 * math.log(10))
    run = make_model()
    mixed = mixture([run, Unigram({"hello": 0.5}, run.normaliser)], [0.5, 0.5])
    adapter = DecoderLanguageModel(mixed, alpha=1.0, beta=0.0)
    score, _ = adapter.score(adapter.get_start_state(), "HELLO")
    assert score == pytest.approx(mixed.score_words([["hello"]])[0].log_probs[0], abs=1e-5)
    assert adapter.score_partial_token("hel") == 0.0
