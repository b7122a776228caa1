"""The words of a sentence stay words in TensorBoard's Markdown."""

from __future__ import annotations

from bnce.evaluation.detail import Sentence
from bnce.evaluation.events import _markdown


def test_words_are_not_markup() -> None:
    sentence = Sentence(0, 7, 2.5, ["a|b", "<b>", "*", "_x_", "#", "</s>"], [1.0, 2.0, 3.0, 4.0, 5.0, 0.04])
    *_, line = _markdown([sentence]).splitlines()
    assert line == r"| 2.50 | a\|b *1.0* &lt;b&gt; *2.0* \* *3.0* \_x\_ *4.0* \# *5.0* &lt;/s&gt; *0.0* … |"
