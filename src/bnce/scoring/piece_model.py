"""A run over pieces as a model of words, like any other: ln p of a word is the sum over its pieces.

Whether a word ends after a piece is part of what the next piece says, for that one begins a word or does not. Sums over
texts are therefore right as they are. The probability that a word comes next and ends there, which `next_words` gives,
needs one factor more: how likely the piece after it begins a word.

Legend: V pieces, B beginnings of words side by side.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END, UNK
from bnce.scoring.engine import Ints
from bnce.scoring.model import Words
from bnce.scoring.prefixes import score_prefixes
from bnce.scoring.run_model import RunModel, share
from bnce.scoring.scored import Floats, NextWord
from bnce.scoring.scorer import State, gather
from bnce.text.normalise import END_WORD

# Beginnings of words that go through the network side by side, and after how many rounds a search is ended: words of
# many unlikely pieces are left out then.
SEARCH_WIDTH = 32
MAX_ROUNDS = 200


class PieceModel(RunModel):
    """A network over pieces, and how words are cut into them."""

    step = "piece"
    other_spelling = ""  # 'bnce vocab' is for runs over words

    def count_steps(self, words: Words, most: int) -> int:
        """Count the pieces of words."""
        return self.vocabulary.count_ids(words, most)

    def shown_ids(self, ids: NDArray[np.int64]) -> list[int]:
        """Give the id of the first piece of every word."""
        first: list[int] = ids[self.vocabulary.starts_word[ids]].tolist()
        return first

    def refuse_spelling(self) -> None:
        """Refuse to spell if words are unknown and the run has no spelling model; without such words pieces do it."""
        if self.vocabulary.listed_words is not None:
            super().refuse_spelling()

    def log10_frequency(self, word: str) -> float | None:
        """Give nothing: a run over pieces has counted pieces."""
        return None

    def next_log_probs(self, state: State, words: Words, *, normalised: bool = False) -> Floats:
        """Compute ln p of all pieces of each of these words; what words have in common is computed once."""
        cut = [self.vocabulary.encode([word]) for word in words]
        found = score_prefixes(self.scorer(), cut, normalised, [state] * len(cut))
        log_probs = np.array([float(one.sum()) for one in found])
        first = np.array([pieces[0] for pieces in cut], dtype=np.int64)
        return share(words, first, log_probs, self.log_share)[0]

    def _likeliest(self, prompts: Sequence[Words], k: int, normalised: bool) -> list[list[NextWord]]:
        """Find the most likely words that come next, and end there. `<unk>` is none."""
        return [_Search(self, normalised).find(state, k) for state in self._after_each(prompts)]

    def join(self, words: Words, made: Sequence[int]) -> str:
        """Write new pieces behind the words of a prompt; the first one may go on with the last word."""
        spelt = self.vocabulary.spell(made)
        if spelt and words and not self.vocabulary.starts_word[made[0]]:
            return " ".join([*words[:-1], words[-1] + spelt[0], *spelt[1:]])
        return " ".join([*words, *spelt])

    def sum_words(self, word_N: Ints, log_prob_N: Floats, length_S: Ints) -> tuple[Ints, Floats, Ints]:
        """Sum up the pieces of every word; its id is that of the first."""
        starts_N = self.vocabulary.starts_word[word_N]
        (start,) = np.nonzero(starts_N)
        if not len(start):
            return word_N, log_prob_N, length_S
        num_words_S = np.add.reduceat(starts_N, np.cumsum(length_S) - length_S, dtype=np.int64)
        return word_N[start], np.add.reduceat(log_prob_N, start), num_words_S

    def ngram_lengths(self, ids: Sequence[Ints], length_S: Ints) -> list[list[int]]:
        """Count the words whose pieces the first piece of a word is predicted from, those seen in part among them."""
        found = []
        for own in ids:
            (start,) = np.nonzero(self.vocabulary.starts_word[own])
            most = len(own) if self.max_context is None else self.max_context
            # The word of the earliest piece that is seen; -1 for the start of the sentence.
            first = np.searchsorted(start, start - most, side="right") - 1
            found.append((np.arange(len(start)) - first + 1).tolist())
        return found

    def ngram_length(self, state: State, history: Words, word: str) -> int:
        """Do so for one word after others, from the pieces of all of them."""
        words = [*history, word]
        return self.ngram_lengths([self.vocabulary.encode(words)], np.array([len(words)], dtype=np.int64))[0][-1]


class _Open(NamedTuple):
    """A way on: one more piece after a beginning, and the rank of it among all that could come there."""

    negative_log_prob: float
    order: int  # of two equals the earlier one
    node: _Node
    rank: int


@dataclass(frozen=True, eq=False)
class _Node:
    """The beginning of a word, and what may come after it, the likeliest first."""

    pieces: tuple[int, ...]
    state: State
    next_pieces: NDArray[np.int64]
    log_probs: Floats


class _Search:
    """Looks for the likeliest words, the likeliest beginnings first: no word is likelier than its beginning."""

    def __init__(self, model: PieceModel, normalised: bool) -> None:
        self.model, self.normalised = model, normalised
        self.scorer = model.scorer()
        self._open: list[_Open] = []
        self._order = 0

    def find(self, state: State, k: int) -> list[NextWord]:
        """Find the k likeliest words after a state."""
        found: list[tuple[float, str]] = []
        self._expand([((), 0.0)], [state], found)
        for _ in range(MAX_ROUNDS):
            found = heapq.nlargest(k, found)
            least = found[-1][0] if len(found) == k else -np.inf
            beginnings: list[tuple[tuple[int, ...], float]] = []
            states: list[State] = []
            pieces: list[int] = []
            while self._open and len(states) < SEARCH_WIDTH and -self._open[0].negative_log_prob > least:
                way = heapq.heappop(self._open)
                self._push(way.node, way.rank + 1)
                piece = int(way.node.next_pieces[way.rank])
                if piece == END:
                    found.append((-way.negative_log_prob, END_WORD))
                    continue
                if piece == UNK:  # it stands for other words, and is none to propose
                    continue
                beginnings.append(((*way.node.pieces, piece), -way.negative_log_prob))
                states.append(way.node.state)
                pieces.append(piece)
            if states:
                self._expand(beginnings, self.scorer.advance(states, pieces), found)
            elif not self._open or -self._open[0].negative_log_prob <= least:
                break
        return [NextWord.of(word, log_prob) for log_prob, word in heapq.nlargest(k, found)]

    def _expand(
        self,
        beginnings: Sequence[tuple[tuple[int, ...], float]],
        states: Sequence[State],
        found: list[tuple[float, str]],
    ) -> None:
        """Find what may come after beginnings of words, and the words that they are."""
        engine, starts_V = self.model.engine, self.model.vocabulary.starts_word
        score_BV = engine.numpy(engine.all_scores(gather(states).hidden_BD)).astype(np.float64)
        constant = np.logaddexp.reduce(score_BV, axis=1, keepdims=True) if self.normalised else engine.log_z
        log_prob_BV = score_BV - constant
        for (pieces, log_prob), state, log_prob_V in zip(beginnings, states, log_prob_BV, strict=True):
            log_begins = float(np.logaddexp.reduce(log_prob_V[starts_V]))
            if pieces:
                (word,) = self.model.vocabulary.spell(pieces)
                # One word can be cut in several ways; text is cut in one.
                if self.model.vocabulary.encode([word]).tolist() == list(pieces):
                    found.append((log_prob + log_begins, word))
                (allowed,) = np.nonzero(~starts_V)
                next_log_probs = log_prob + log_prob_V[allowed]
            else:
                (allowed,) = np.nonzero(starts_V)
                # The words before are whole.
                next_log_probs = log_prob_V[allowed] - log_begins
            order = np.argsort(-next_log_probs, kind="stable")
            self._push(_Node(pieces, state, allowed[order], next_log_probs[order]), 0)

    def _push(self, node: _Node, rank: int) -> None:
        if rank < len(node.next_pieces):
            self._order += 1
            heapq.heappush(self._open, _Open(-float(node.log_probs[rank]), self._order, node, rank))
