"""An n-gram model (ARPA or KenLM binary), read by `kenlm` and scored as a run is.

It remembers nothing between sentences: after `</s>` comes the start of the next. Logarithms are natural, KenLM's to the
base 10.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnce.corpus.cutter import Tokens
from bnce.corpus.vocabulary import Vocabulary
from bnce.engine.network import Mode
from bnce.errors import UserError
from bnce.machine.packages import need
from bnce.ngrams.arpa import AS_IT_STANDS, read_words, stored_normaliser
from bnce.scoring.model import Model, State, Words
from bnce.scoring.results import LN_10, Floats, Sums, WordScores, add_up
from bnce.text.normalise import END_WORD, UNKNOWN_WORD, Normaliser

_THREE = np.dtype([("log10_prob", np.float64), ("length", np.int64), ("oov", np.bool_)])


class NgramModel(Model):
    """A model that KenLM has loaded; it is normalised by itself, so a mode changes nothing."""

    kind = "n-gram"

    def __init__(self, model: Any, name: str, normaliser: Normaliser | None = None) -> None:
        self.model, self.name, self.normaliser = model, name, normaliser or AS_IT_STANDS
        if normaliser is None:
            self.notice = (
                f"'{name}' does not say how its text was cut into words, so text is cut at blanks, and case is kept. "
                "('bnce ngram' writes it into an ARPA file; let that file lie beside a KenLM binary of the same name.)"
            )
        self.max_context = model.order - 1
        self._start = self._new_state()
        self.model.BeginSentenceWrite(self._start)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of an ARPA file, as it lists them."""
        return read_words(Path(self.name))

    def is_known(self, word: str) -> bool:
        """Whether the model lists a word."""
        return word in self.model and word != UNKNOWN_WORD

    def log_probs(
        self,
        text: Tokens,
        *,
        mode: Mode | None = None,
        share: bool = False,
        spell: bool = False,
        after: Sequence[State] | None = None,
        keep_states: bool = False,
    ) -> WordScores:
        """Compute ln p of every word, sentences whole: KenLM's words cost so little that sharing gains nothing."""
        if spell:
            self.refuse_spelling()
        after = after or [self._start] * len(text)
        if all(state is self._start for state in after) and all(words[-1:] == [END_WORD] for words in text):
            # One flat pass, as every call from Python takes longer than KenLM does; after `</s>` comes the start again.
            flat = itertools.chain.from_iterable(map(self.model.full_scores, _lines(text)))
            found_N = np.fromiter(flat, _THREE, len(text.words))
        else:
            found: list[tuple[float, int, bool]] = []
            pairs = zip(after, text, strict=True)
            after = [self._read(state, words, found) for state, words in pairs]
            found_N = np.array(found, _THREE)
        values = found_N["log10_prob"] * LN_10, found_N["oov"], found_N["length"]
        return WordScores(text, *values, self.choose_mode(mode), list(after) if keep_states else None)

    def sums(self, text: Tokens, *, mode: Mode | None = None) -> Sums:
        """Score sentences by KenLM's own totals, which take half the time of its words."""
        unknown = {word for word in set(text.words) if word not in self.model}
        oov_N = np.fromiter(map(unknown.__contains__, text.words), np.bool_, len(text.words))
        log_prob_S = np.array([self.model.score(" ".join(words[:-1])) for words in text], dtype=np.float64) * LN_10
        begin_N = np.repeat(np.cumsum(text.num_words_S) - text.num_words_S, text.num_words_S)
        places = zip(begin_N[oov_N].tolist(), np.flatnonzero(oov_N).tolist(), strict=True)
        log_prob_oov = math.fsum(self._log_prob(text.words, begin, place) for begin, place in places)
        num_oov_S = add_up(oov_N.astype(np.int64), text.num_words_S)
        return Sums(text, log_prob_S, num_oov_S, float(log_prob_S.sum()) - log_prob_oov)

    def _log_prob(self, words: Words, begin: int, place: int) -> float:
        """Score one word of the sentence that begins there, after as many words as count."""
        first = max(begin, place - self.model.order + 1)
        before, is_start = " ".join(words[first:place]), first == begin
        with_it = self.model.score(f"{before} {words[place]}", is_start, False)
        return float(with_it - self.model.score(before, is_start, False)) * LN_10

    def start(self) -> State:
        """Give KenLM's state at the start of a sentence."""
        return self._start

    def advance_all(self, states: Sequence[State], text: Tokens) -> list[State]:
        """Give the states after a sequence of words each."""
        return [self._read(state, words, []) for state, words in zip(states, text, strict=True)]

    def distribution(self, state: State, *, mode: Mode | None = None) -> Floats:
        """Compute ln p of every word that an ARPA file lists."""
        return self.next_log_probs(state, self.vocabulary.words)

    def next_log_probs(self, state: State, words: Words, *, mode: Mode | None = None) -> Floats:
        """Compute ln p of each of these words, which KenLM is asked for one by one."""
        score, after = self.model.BaseScore, self._new_state()
        return np.fromiter((score(state, word, after) for word in words), np.float64, len(words)) * LN_10

    def _read(self, state: State, words: Sequence[str], found: list[tuple[float, int, bool]]) -> State:
        """Go through words one by one, and note what each is worth."""
        for word in words:
            after = self._new_state()
            score = self.model.BaseFullScore(state, word, after)
            found.append((score.log_prob, score.ngram_length, score.oov))
            state = self._start if word == END_WORD else after
        return state

    @staticmethod
    def _new_state() -> Any:
        import kenlm

        return kenlm.State()


def _lines(text: Tokens) -> Iterator[str]:
    """Give sentences as KenLM takes them, which puts `</s>` there by itself; a sequence may have several."""
    ends = [place for place, word in enumerate(text.words) if word == END_WORD]
    return (" ".join(text.words[last + 1 : end]) for last, end in itertools.pairwise([-1, *ends]))


def open_ngram(path: str | Path) -> NgramModel:
    """Load an n-gram model; the file's content says whether it is ARPA or binary."""
    path = Path(path)
    if path.suffix == ".safetensors":
        raise UserError(f"'{path}' is a file of a run: give the directory '{path.parent}'.")
    kenlm = need("kenlm", "An n-gram model")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        return NgramModel(kenlm.Model(str(path), config), str(path), stored_normaliser(path))
    except (OSError, RuntimeError, UnicodeError) as error:
        # KenLM names its own source file and function first, and then what is wrong.
        reason = str(error).strip().splitlines()[-1].rpartition("Exception")[2].lstrip(". ").rstrip(").\n")
        raise UserError(
            f"'{path}' is not an n-gram model that KenLM can read ({reason}): give an ARPA file or a KenLM binary."
        ) from error
