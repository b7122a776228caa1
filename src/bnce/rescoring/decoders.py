"""Models inside the beam search of a decoder: pyctcdecode's, flashlight's and torchaudio's.

    from pyctcdecode.alphabet import Alphabet
    from pyctcdecode.decoder import BeamSearchDecoderCTC
    decoder = BeamSearchDecoderCTC(Alphabet.build_alphabet(labels), DecoderLanguageModel(bnce.load(RUN)))

    from torchaudio.models.decoder import ctc_decoder
    decoder = ctc_decoder(lexicon, tokens, lm=bnce.ctc_decoder_lm(model, words), lm_dict=words_file, lm_weight=2.0)

A decoder spells words as its lexicon does, and the model has them as its training text had: a word may be several to
the model. A word's probability is one dot product; the network moves on only from states that are asked for again.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import importlib
import math
from collections.abc import Iterable
from typing import Any

from bnce.corpus.vocabulary import SPECIALS
from bnce.engine.network import Mode
from bnce.errors import UserError
from bnce.scoring.model import Model, State
from bnce.scoring.ngram_model import NgramModel
from bnce.text.normalise import END_WORD, UNKNOWN_WORD

_TOKEN_LENGTH = 6  # letters of a usual word, by pyctcdecode
_KEPT_WORDS = 2**16
# What an LSTM is told to remember, where a decoder asks for an order to decide which histories are the same.
_HISTORY_WORDS = 10

# Where the classes are that the language model of flashlight and torchaudio is made of.
_HOMES = (
    ("torchaudio.models.decoder", "CTCDecoderLM", "CTCDecoderLMState"),
    ("flashlight.lib.text.decoder", "LM", "LMState"),
)
_FINISH = -1


class Step:
    """A word after a state: ln p, how many of its words the model does not know, and the state after it."""

    def __init__(self, model: Model, state: State, words: tuple[str, ...], log_prob: float, num_oov: int) -> None:
        self.log_prob, self.num_oov = log_prob, num_oov
        self.words = words  # as the model reads it
        self.last_state = state  # before the last of its words
        self._model = model

    @functools.cached_property
    def after(self) -> State:
        """The state after the word, computed when it is first asked for."""
        return self._model.advance(self.last_state, self.words[-1]) if self.words else self.last_state


class WordSteps:
    """Steps through a model word by word, in natural logarithms."""

    def __init__(self, model: Model, mode: Mode | None = None) -> None:
        self.model = model
        self.mode = model.choose_mode(mode)
        self.read = functools.lru_cache(_KEPT_WORDS)(self._read_word)

    @property
    def order(self) -> int:
        """The words of a history that a decoder should compare, and one more."""
        if isinstance(self.model, NgramModel):
            return int(self.model.model.order)
        most = self.model.max_context
        return most + 1 if most is not None and most < _HISTORY_WORDS else _HISTORY_WORDS

    def step(self, state: State, word: str) -> Step:
        """Score a word after a state."""
        log_prob, num_oov = 0.0, 0
        words = self.read(word)
        for place, own in enumerate(words):
            if place:
                state = self.model.advance(state, words[place - 1])
            (log_p,) = self.model.next_log_probs(state, [own], mode=self.mode)
            log_prob += float(log_p)
            num_oov += own != END_WORD and not self.model.is_known(own)
        return Step(self.model, state, words, log_prob, num_oov)

    def _read_word(self, word: str) -> tuple[str, ...]:
        if word in (END_WORD, UNKNOWN_WORD) or not word.strip():
            return (word,) if word.strip() else ()
        # One that the training text would not have at all is unknown: for nothing, a search would take it everywhere.
        return tuple(self.model.words(word)) or (UNKNOWN_WORD,)


class DecoderLanguageModel:
    """A model as pyctcdecode's decoder wants its language model: scores words that it spells, one at a time.

    It has every member of pyctcdecode's AbstractLanguageModel (0.5), and needs no part of the package, which asks for
    an older NumPy than other tools do: install it by itself with `pip install pyctcdecode`. Scores are natural
    logarithms times `alpha`, plus `beta` per word, as its own n-gram model gives them. `unk_score_offset` is a log10
    value that an unknown word gets on top of the probability of `<unk>`, which alone is far too high for any single
    unknown spelling. Defaults are pyctcdecode's own, so that a decoder behaves alike with either kind of model.
    """

    def __init__(
        self,
        model: Model,
        alpha: float = 0.5,
        beta: float = 1.5,
        unk_score_offset: float = -10.0,
        score_boundary: bool = True,
        *,
        mode: Mode | None = None,
    ) -> None:
        self.model = model
        self.alpha, self.beta = alpha, beta
        self.unk_score_offset, self.score_boundary = unk_score_offset, score_boundary
        self._steps = WordSteps(model, mode)
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
        return self.unk_score_offset * max(1.0, len(partial_token) / _TOKEN_LENGTH)

    def score(self, prev_state: State, word: str, is_last_word: bool = False) -> tuple[float, State]:
        """Score a word after a state, and give the state after it; `</s>` is scored with the last word."""
        if not isinstance(prev_state, self._state_type):
            raise UserError(f"The state is {prev_state!r:.60}: give one from get_start_state or score.")
        step = self._steps.step(prev_state, word)
        log_prob = step.log_prob + step.num_oov * self.unk_score_offset * math.log(10)
        if is_last_word and self.score_boundary:
            log_prob += self._steps.step(step.after, END_WORD).log_prob
        return self.alpha * log_prob + self.beta, step.after


def ctc_decoder_lm(model: Model, words: Iterable[str], *, unk_score: float = -10.0, mode: Mode | None = None) -> Any:
    """Make a CTCDecoderLM of a model, for flashlight and torchaudio; `words` is the decoder's list.

    The decoder names words by their places in it: `lm_dict` of torchaudio, one word per line, or the words of
    flashlight's Dictionary. Scores are log10, as those of the decoders' own n-gram models, so that weights carry over.
    `unk_score` (log10) is added for an unknown word.
    """
    base, make_state = _find_classes()
    spellings = [UNKNOWN_WORD if word in ("<unk>", "<UNK>") else word for word in words]
    if not spellings:
        raise UserError("The list of the decoder's words is empty: give those of its lexicon, in its order.")
    steps = WordSteps(model, mode)

    class DecoderLM(base):  # type: ignore[misc,valid-type]
        """Scores a decoder's words; states of earlier utterances are forgotten at the start of the next."""

        def __init__(self) -> None:
            base.__init__(self)
            self.steps: dict[Any, Step] = {}  # by the state after each

        def start(self, start_with_nothing: bool) -> Any:
            """Give the state of the start of a sentence."""
            self.steps.clear()
            state = make_state()
            self.steps[state] = Step(model, model.start(), (), 0.0, 0)
            return state

        def score(self, state: Any, usr_token_idx: int) -> tuple[Any, float]:
            """Score a word by its place in the list, and give the state after it."""
            if not 0 <= usr_token_idx < len(spellings):
                raise UserError(
                    f"The decoder asked for word {usr_token_idx}, but its list has {len(spellings)}: give the words of "
                    "its lexicon."
                )
            return self._step(state, usr_token_idx, spellings[usr_token_idx])

        def finish(self, state: Any) -> tuple[Any, float]:
            """Score the end of the sentence."""
            return self._step(state, _FINISH, END_WORD)

        def _step(self, state: Any, number: int, word: str) -> tuple[Any, float]:
            before = self.steps.get(state)
            if before is None:
                raise UserError(
                    f"The state is {state!r:.60}, which does not belong to this sentence: give a state that start or "
                    "score has returned since the last start."
                )
            after = state.child(number)
            step = self.steps.get(after)
            if step is None:
                step = self.steps[after] = steps.step(before.after, word)
            return after, step.log_prob / math.log(10) + (unk_score if step.num_oov else 0.0)

    return DecoderLM()


def _find_classes() -> tuple[Any, Any]:
    for home, language_model, state in _HOMES:
        try:
            module = importlib.import_module(home)
            return getattr(module, language_model), getattr(module, state)
        except (ImportError, AttributeError):
            continue
    raise UserError(
        "A decoder's language model needs flashlight-text, or a torchaudio that has ctc_decoder: install one with "
        "'pip install flashlight-text'."
    )
