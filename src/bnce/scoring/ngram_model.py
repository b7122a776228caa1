"""An n-gram model (ARPA or KenLM binary), read by `kenlm` and scored as a run is.

It remembers nothing between sentences: after `</s>` comes the start of the next. Logarithms are natural, KenLM's to the
base 10.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnce.corpus.cutter import Tokens
from bnce.corpus.vocabulary import SPECIALS, Vocabulary
from bnce.engine.network import Mode
from bnce.errors import UserError
from bnce.machine.packages import need
from bnce.ngrams.arpa import AS_IT_STANDS, read_words, stored_normaliser
from bnce.scoring.model import Model, State, Words
from bnce.scoring.results import LN_10, Floats, Sums, WordScores
from bnce.text.normalise import END_WORD, Normaliser

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

    @property
    def vocab_size(self) -> int | None:
        """How many words there are; None for a KenLM binary, which does not list them."""
        try:
            return len(self.vocabulary)
        except UserError:
            return None

    @property
    def numbering(self) -> Vocabulary | None:
        """None, because KenLM does not tell its numbers."""
        return None

    def is_known(self, word: str) -> bool:
        """Whether the model lists a word."""
        return word in self.model and word not in SPECIALS

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
        return WordScores(*values, text.num_words_S, "normalised", list(after) if keep_states else None)

    def sums(self, text: Tokens, *, mode: Mode | None = None) -> Sums:
        """Score sentences by KenLM's own totals, and word by word only those with unknown words."""
        unknown = {word for word in set(text.words) if word not in self.model}
        log10_S, num_oov_S, log10_oov = [], [], 0.0
        for words in text:
            line, num_oov = " ".join(words[:-1]), 0
            if unknown.isdisjoint(words):
                log10_S.append(self.model.score(line))
            else:
                values = [log10_prob for log10_prob, _, _ in self.model.full_scores(line)]
                oov = [value for value, word in zip(values, words, strict=True) if word in unknown]
                log10_S.append(sum(values))
                log10_oov, num_oov = log10_oov + sum(oov), len(oov)
            num_oov_S.append(num_oov)
        log_prob_S = np.array(log10_S, dtype=np.float64) * LN_10
        return Sums(log_prob_S, np.array(num_oov_S), float(log_prob_S.sum()) - log10_oov * LN_10, 0)

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
