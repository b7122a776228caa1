"""Requests and answers as JSON has them: what the endpoints take, and what /openapi.json says about them.

Probabilities of words are log10. Scores of hypotheses, and ln Z, are natural logarithms.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat

Mode = Literal["unnormalised", "normalised"]


def _refuse_half_characters(text: str) -> str:
    # JSON can spell half of a surrogate pair, which is no character and cannot be written back.
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("the text has half of a surrogate pair, which is not a character")
    return text


Text = Annotated[str, AfterValidator(_refuse_half_characters)]


class _Strict(BaseModel):
    # JSON has types of its own: true is no number, and "5" is none either.
    model_config = ConfigDict(extra="forbid", strict=True)


class ScoreRequest(_Strict):
    """Give either `sentences` or `texts`."""

    sentences: list[Text] | None = Field(None, description="Each string is one sentence.")
    texts: list[Text] | None = Field(None, description="Each string is cut into sentences like the training text.")
    mode: Mode = Field("unnormalised", description="With the constant Z, or with the softmax.")
    spell: bool = Field(
        False, description="Give each unknown word its own probability: p(<unk>) times the probability of its spelling."
    )
    exact: bool = Field(False, description="With mode unnormalised: also return the softmax's values and ln Z.")


class Hypothesis(_Strict):
    """One hypothesis of a recogniser, and its scores (natural logarithms; higher is better)."""

    text: Text
    am: FiniteFloat = Field(0.0, description="The acoustic score.")
    lm: FiniteFloat = Field(0.0, description="The score of the old language model.")


class Utterance(_Strict):
    """The hypotheses of one utterance."""

    id: Text = ""
    hypotheses: list[Hypothesis] = Field(min_length=1, fail_fast=True)


class RescoreRequest(_Strict):
    """am_weight * am + old_lm_weight * lm + lm_weight * new_lm - word_penalty * num_words - oov_penalty * num_oov.

    With a rank_weight, - rank_weight * ln(place) is added. The place of an utterance's first hypothesis is 1.
    """

    utterances: list[Utterance] = Field(fail_fast=True)
    am_weight: FiniteFloat = 1.0
    old_lm_weight: FiniteFloat = 0.0
    lm_weight: FiniteFloat = 1.0
    word_penalty: FiniteFloat = Field(0.0, description="Subtracted for every word.")
    oov_penalty: FiniteFloat = Field(0.0, description="Subtracted for every word that the model does not know.")
    rank_weight: FiniteFloat = Field(
        0.0, description="For hypotheses without scores: the weight of their place in the list."
    )
    mode: Mode = "unnormalised"


class NextRequest(_Strict):
    """Ask for the most likely words after a prompt."""

    prompt: Text = ""
    k: int = Field(10, ge=1)
    normalised: bool = True


class TotalsAnswer(BaseModel):
    """Sums over sentences; a perplexity is null if there are no words for it."""

    num_sentences: int
    num_words: int
    num_oov: int
    num_zero_probs: int
    log10_prob: float
    log10_prob_no_oov: float
    num_bytes: int = Field(description="UTF-8 bytes of the words, with a blank between two and a newline per sentence.")
    bits_per_byte: float | None = Field(description="Null if a word counts as <unk>, which has no spelling.")
    ppl: float | None
    ppl1: float | None
    ppl_no_oov: float | None
    ppl1_no_oov: float | None


class SentenceAnswer(BaseModel):
    """One sentence; `</s>` is the last of its words."""

    text: int = Field(description="Index of the given text or sentence that it comes from, from 0.")
    words: list[str]
    log10_probs: list[float]
    oov: list[bool]
    log10_prob: float
    num_oov: int
    ppl: float | None
    ppl1: float | None
    ppl_no_oov: float | None
    ppl1_no_oov: float | None
    exact_log10_probs: list[float] | None = None
    exact_log10_prob: float | None = None
    log_z: list[float] | None = Field(None, description="ln Z(context) at every word; only with exact.")


class ScoreAnswer(BaseModel):
    """Sentences in the order they were given."""

    mode: Mode
    log_base: int
    log_z: float | None = Field(description="The constant ln Z; null if it is not used.")
    sentences: list[SentenceAnswer]
    totals: TotalsAnswer
    exact_totals: TotalsAnswer | None = None
    log_z_mean: float | None = Field(None, description="The mean of ln Z(context); only with exact.")


class HypothesisAnswer(BaseModel):
    """A hypothesis with its scores."""

    text: str
    am: float
    lm: float
    new_lm: float
    num_words: int
    num_oov: int
    total: float


class UtteranceAnswer(BaseModel):
    """The hypotheses in the order they were given; the best is the first one with the highest total."""

    id: str
    best: int
    hypotheses: list[HypothesisAnswer]


class RescoreAnswer(BaseModel):
    """Utterances in the order they were given."""

    mode: Mode
    utterances: list[UtteranceAnswer]


class NextWordAnswer(BaseModel):
    """A word that may come next."""

    word: str
    prob: float
    log10_prob: float


class NextAnswer(BaseModel):
    """The most likely words, the most likely first; `words` is the prompt as the model reads it."""

    words: list[str]
    normalised: bool
    next: list[NextWordAnswer]


class HealthAnswer(BaseModel):
    """What is served."""

    status: Literal["ok"]
    run: str
    kind: Literal["run", "mixture", "n-gram"]
    vocab_size: int | None = Field(description="Null if a file does not list its words.")
    self_normalised: bool = Field(description="Whether the model gives unnormalised probabilities.")
    log_z: float | None = Field(description="The constant ln Z; null if there is none or more than one.")
    device: str
    max_words: int
    max_exact_words: int
    max_sentence_words: int
    max_next: int


class ErrorAnswer(BaseModel):
    """Why a request is not answered."""

    detail: str
