"""Words of a decoder, one at a time: each is as many as the model reads."""

from __future__ import annotations

import math

import pytest

from bnce import DecoderLanguageModel, Normaliser, kenlm
from tests.scoring.models import Unigram

MODEL = Unigram({"</s>": 0.25, "mister": 0.5, "five": 0.125}, Normaliser(tokens="spoken"))


@pytest.mark.parametrize(
    ("word", "prob", "num_oov"),
    [
        ("MR.", 0.5, 0),
        ("mister-5", 0.5 * 0.125, 0),
        ("zebra", 0.125, 1),
        ("zebra-mister", 0.125 * 0.5, 1),
        ("zebra-yak", 0.125 * 0.125, 2),
        ("--", 0.125, 1),  # the training text has no such word
        ("", 1.0, 0),
        ("</s>", 0.25, 0),
        ("<unk>", 0.125, 1),
    ],
)
def test_a_word_is_as_many_as_the_model_reads(word: str, prob: float, num_oov: int) -> None:
    adapter = DecoderLanguageModel(MODEL, alpha=1.0, beta=0.0)
    _, state = adapter.score(adapter.get_start_state(), word)
    # A word that the model does not know costs ten powers of ten.
    assert adapter.score(state, word)[0] == pytest.approx(math.log(prob) - 10 * num_oov * math.log(10))


def test_the_words_of_a_word_are_passed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []

    def advance(model: Unigram, state: object, word: str) -> None:
        passed.append(word)

    monkeypatch.setattr(Unigram, "advance", advance)
    adapter = DecoderLanguageModel(MODEL)
    adapter.score(adapter.get_start_state(), "mister-5-zebra", is_last_word=True)
    assert passed == ["mister", "five", "zebra"]
    model = kenlm.Model(MODEL)
    state = kenlm.State()
    model.BeginSentenceWrite(state)
    passed.clear()
    model.BaseFullScore(state, "mister-5", kenlm.State())
    assert passed == ["mister", "five"]
