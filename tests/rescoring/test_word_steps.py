"""Words of a decoder, one at a time: each is as many as the model reads."""

from __future__ import annotations

import math

import pytest

from bnce import DecoderLanguageModel, Normaliser
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
        ("--", 1.0, 0),
        ("</s>", 0.25, 0),
        ("<unk>", 0.125, 1),
    ],
)
def test_a_word_is_as_many_as_the_model_reads(word: str, prob: float, num_oov: int) -> None:
    adapter = DecoderLanguageModel(MODEL, alpha=1.0, beta=0.0)
    _, state = adapter.score(adapter.get_start_state(), word)
    # A word that the model does not know costs ten powers of ten.
    assert adapter.score(state, word)[0] == pytest.approx(math.log(prob) - 10 * num_oov * math.log(10))
