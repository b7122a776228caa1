"""What every component shares: one sentence a text, and blocks of bounded size."""

from __future__ import annotations

import pytest

from bnce.scoring import component
from bnce.scoring.component import one_sentence, sentence_blocks
from bnce.text.normalise import Normaliser


def test_a_text_is_one_sentence() -> None:
    assert one_sentence(Normaliser(), "One. Two!\nThree") == ["one", ".", "two", "!", "three"]
    assert one_sentence(Normaliser(), " \n") == []
    assert one_sentence(Normaliser(False, "whitespace", "split"), "A b. C") == ["A", "b.", "C"]


def test_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component, "BLOCK_SENTENCES", 3)
    monkeypatch.setattr(component, "BLOCK_WORDS", 5)
    sentences = [["a"] * length for length in (1, 1, 1, 0, 6, 2, 2)]
    assert [[len(one) for one in block] for block in sentence_blocks(sentences)] == [[1, 1, 1], [0, 6], [2, 2]]
    assert list(sentence_blocks([])) == []
