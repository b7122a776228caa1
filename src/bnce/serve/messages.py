"""What requests hold: FastAPI reads bodies with these, says what is wrong, and describes them in /openapi.json.

Probabilities of words are log10. Scores of hypotheses, and ln Z, are natural logarithms.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat

from bnce.engine.network import Mode

# Items of a list: a longer one is refused while it is read, so that nothing is built for each item.
MAX_ITEMS = 2000
MAX_NEXT = 100


def _refuse_what_is_no_text(text: str) -> str:
    # JSON can spell both; files that have them are refused, too.
    if "\0" in text:
        raise ValueError("the text has a NUL, which is not a character of a text")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("the text has half of a surrogate pair, which is not a character")
    return text


Text = Annotated[str, AfterValidator(_refuse_what_is_no_text)]
Texts = Annotated[list[Text], Field(max_length=MAX_ITEMS, fail_fast=True)]
ModeField = Annotated[
    Mode | None,
    Field(
        description="With the constant Z, or with the softmax. By default the constant if the model has one; the "
        "answer names the mode."
    ),
]


class _Strict(BaseModel):
    # JSON has types of its own: true is no number, and "5" is none either.
    model_config = ConfigDict(extra="forbid", strict=True)


class ScoreRequest(_Strict):
    """Give either `sentences` or `texts`."""

    sentences: Texts | None = Field(None, description="Each string is one sentence.")
    texts: Texts | None = Field(None, description="Each string is cut into sentences like the training text.")
    mode: ModeField = None
    spell: bool = Field(
        False, description="Give each unknown word its own probability: p(<unk>) times the probability of its spelling."
    )
    exact: bool = Field(False, description="With the constant Z: also return the softmax's values and ln Z(context).")


class Hypothesis(_Strict):
    """One hypothesis of a recogniser, and its scores (natural logarithms; higher is better)."""

    text: Text
    am: FiniteFloat = Field(0.0, description="The acoustic score.")
    lm: FiniteFloat = Field(0.0, description="The score of the old language model.")


class Utterance(_Strict):
    """The hypotheses of one utterance."""

    id: Text = ""
    hypotheses: list[Hypothesis] = Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)


class RescoreRequest(_Strict):
    """am_weight * am + old_lm_weight * lm + lm_weight * new_lm - word_penalty * num_words - oov_penalty * num_oov.

    With a rank_weight, - rank_weight * ln(place) is added. The place of an utterance's first hypothesis is 1.
    """

    utterances: list[Utterance] = Field(max_length=MAX_ITEMS, fail_fast=True)
    am_weight: FiniteFloat = 1.0
    old_lm_weight: FiniteFloat = 0.0
    lm_weight: FiniteFloat = 1.0
    word_penalty: FiniteFloat = Field(0.0, description="Subtracted for every word.")
    oov_penalty: FiniteFloat = Field(0.0, description="Subtracted for every word that the model does not know.")
    rank_weight: FiniteFloat = Field(
        0.0, description="For hypotheses without scores: the weight of their place in the list."
    )
    mode: ModeField = None


class NextRequest(_Strict):
    """Ask for the most likely words after a prompt."""

    prompt: Text = ""
    k: int = Field(10, ge=1, le=MAX_NEXT)
    mode: ModeField = None
