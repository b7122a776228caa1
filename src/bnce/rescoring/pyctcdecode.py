"""A model as pyctcdecode's decoder wants its language model, for shallow fusion in a CTC beam search.

    from pyctcdecode.alphabet import Alphabet
    from pyctcdecode.decoder import BeamSearchDecoderCTC
    decoder = BeamSearchDecoderCTC(Alphabet.build_alphabet(labels), DecoderLanguageModel(bnce.load(RUN)))

The class has every member of pyctcdecode's AbstractLanguageModel (0.5: `order`, `get_start_state`,
`score_partial_token`, `score`, and the four attributes that `reset_params` sets), and needs no part of the package,
which asks for an older NumPy than other tools do: install it by itself with `pip install pyctcdecode`. Scores are
natural logarithms times `alpha`, plus `beta` a word, as its own n-gram model gives them.
"""

from __future__ import annotations

import bisect
import contextlib
import math

from bnce.corpus.vocabulary import SPECIALS
from bnce.errors import UserError
from bnce.rescoring.word_steps import WordSteps
from bnce.scoring.model import Model, State
from bnce.text.normalise import END_WORD

# pyctcdecode's own defaults, so that a decoder behaves alike with either kind of model.
ALPHA = 0.5
BETA = 1.5
UNKNOWN_OFFSET = -10.0
AVERAGE_TOKEN_LENGTH = 6


class DecoderLanguageModel:
    """Scores words that a decoder spells, one at a time, with a state between them.

    `unk_score_offset` is a log10 value that an unknown word gets on top of the probability of `<unk>`, which alone is
    far too high for any single unknown spelling.
    """

    def __init__(
        self,
        model: Model,
        alpha: float = ALPHA,
        beta: float = BETA,
        unk_score_offset: float = UNKNOWN_OFFSET,
        score_boundary: bool = True,
        *,
        normalised: bool = False,
    ) -> None:
        self.model = model
        self.alpha, self.beta = alpha, beta
        self.unk_score_offset, self.score_boundary = unk_score_offset, score_boundary
        self._steps = WordSteps(model, normalised)
        self._state_type = type(model.start())
        self._spellings: list[str] | None = None
        with contextlib.suppress(UserError):  # a KenLM binary does not list its words
            self._spellings = sorted(word for word in model.vocabulary.words if word not in SPECIALS)

    @property
    def order(self) -> int:
        """Number of last words that decide whether two histories are equal for the model."""
        return self._steps.order

    def get_start_state(self) -> State:
        """Give the state before the first word."""
        return self.model.start()

    def score_partial_token(self, partial_token: str) -> float:
        """Score the beginning of a word: 0, or a penalty if no word of the vocabulary begins with it."""
        # A decoder spells as its alphabet does; the vocabulary has words as the training text had.
        if self._spellings is None:
            return 0.0
        spelling = "".join(self.model.words(partial_token))
        place = bisect.bisect_left(self._spellings, spelling)
        if place < len(self._spellings) and self._spellings[place].startswith(spelling):
            return 0.0
        return self.unk_score_offset * max(1.0, len(partial_token) / AVERAGE_TOKEN_LENGTH)

    def score(self, prev_state: State, word: str, is_last_word: bool = False) -> tuple[float, State]:
        """Score a word after a state, and give the state after it; `</s>` is scored with the last word."""
        if not isinstance(prev_state, self._state_type):
            raise UserError(f"The state is {prev_state!r:.60}: give one from get_start_state or score.")
        step, state = self._steps.score(prev_state, word), self._steps.advance(prev_state, word)
        log_prob = step.log_prob + step.num_oov * self.unk_score_offset * math.log(10)
        if is_last_word and self.score_boundary:
            log_prob += self._steps.score(state, END_WORD).log_prob
        return self.alpha * log_prob + self.beta, state
