"""How hypotheses came into the model's form: how many changed on the way, and how many of their words it knows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bnce.rescoring.rescore import Scores
from bnce.scoring.model import Model

_MAX_SHOWN = 60  # letters of an example


@dataclass(frozen=True)
class Form:
    """What the model's normaliser did to lists; words and OOV words are counted as the model reads them."""

    num_changed: int
    num_hypotheses: int
    num_words: int
    num_oov: int
    example: tuple[str, str] | None  # a hypothesis before and after

    def to_dict(self) -> dict[str, Any]:
        """Give everything as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        share = 100 * self.num_oov / max(1, self.num_words)
        unknown = f"{self.num_oov:,} of {self.num_words:,} words ({share:.2f}%) are unknown to the model"
        if self.example is None:
            return f"All hypotheses are in the form of the training text; {unknown}."
        before, after = self.example
        return (
            f"{self.num_changed:,} of {self.num_hypotheses:,} hypotheses were brought into the form of the training "
            f"text, such as '{before}' to '{after}'; {unknown}."
        )


def find_form(model: Model, scores: Scores) -> Form:
    """Compare all hypotheses with what the model reads."""
    num_changed = num_words = 0
    example = None
    for utterance in scores.nbest.utterances:
        for text in utterance.texts:
            words = model.words(text)
            num_words += len(words)
            if words != text.split():
                num_changed += 1
                example = example or _show(text.split(), words)
    return Form(num_changed, scores.nbest.num_hypotheses, num_words, int(scores.num_oov_N.sum()), example)


def _show(before: list[str], after: list[str]) -> tuple[str, str]:
    """Give two texts from their first difference, and a little before it."""
    pairs = zip(before, after, strict=False)
    first = next((place for place, (old, new) in enumerate(pairs) if old != new), min(len(before), len(after)))
    begin = max(0, first - 1)
    shown = (" ".join(words[begin:]) for words in (before, after))
    old, new = (text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…" for text in shown)
    return old, new
