"""A model as flashlight's and torchaudio's beam searches want their language model: a state in, a score out.

    from torchaudio.models.decoder import ctc_decoder
    decoder = ctc_decoder(lexicon, tokens, lm=bnce.ctc_decoder_lm(model, words), lm_dict=words_file, lm_weight=2.0)

The decoder names words by their places in its list of words, which has to be given: `lm_dict` of torchaudio, one word
per line, or the words of flashlight's Dictionary. Scores are log10, as those of the decoders' own n-gram models, so
that weights carry over. A word's probability is one dot product; the network moves on only from states that are asked
for again.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from typing import Any

from bnce.errors import UserError
from bnce.rescoring.word_steps import WordSteps
from bnce.scoring.model import Model
from bnce.text.normalise import END_WORD, UNKNOWN_WORD

# Where the classes are that a decoder's language model is made of.
_HOMES = (
    ("torchaudio.models.decoder", "CTCDecoderLM", "CTCDecoderLMState"),
    ("flashlight.lib.text.decoder", "LM", "LMState"),
)
_FINISH = -1


class _Node:
    """A history: its parent and last word, and the model's own state once that is needed."""

    __slots__ = ("own", "parent", "word")

    def __init__(self, parent: _Node | None, word: str, own: Any = None) -> None:
        self.parent, self.word, self.own = parent, word, own


def ctc_decoder_lm(model: Model, words: Iterable[str], *, unk_score: float = -10.0, normalised: bool = False) -> Any:
    """Make a CTCDecoderLM of a model; `words` is the decoder's list.

    `unk_score` (log10) is added for an unknown word.
    """
    base, make_state = _find_classes()
    spellings = [UNKNOWN_WORD if word in ("<unk>", "<UNK>") else word for word in words]
    if not spellings:
        raise UserError("The list of the decoder's words is empty: give those of its lexicon, in its order.")
    steps = WordSteps(model, normalised)

    class DecoderLM(base):  # type: ignore[misc,valid-type]
        """Scores a decoder's words; states of earlier utterances are forgotten at the start of the next."""

        def __init__(self) -> None:
            base.__init__(self)
            self.nodes: dict[Any, _Node] = {}

        def start(self, start_with_nothing: bool) -> Any:
            """Give the state of the start of a sentence."""
            self.nodes.clear()
            state = make_state()
            self.nodes[state] = _Node(None, "", model.start())
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
            node = self.nodes.get(state)
            if node is None:
                raise UserError(
                    f"The state is {state!r:.60}, which does not belong to this sentence: give a state that start or "
                    "score has returned since the last start."
                )
            if node.own is None:
                assert node.parent is not None
                node.own = steps.advance(node.parent.own, node.word)
            step = steps.score(node.own, word)
            after = state.child(number)
            if after not in self.nodes:
                self.nodes[after] = _Node(node, word)
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
