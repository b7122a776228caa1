"""What models say of text: probabilities of words, of sentences and of all, and how other tools print them.

Logarithms are natural; layouts print log10: KenLM's `query`, SRILM's `ngram -ppl`, one JSON object per sentence. OOV
words are those outside the vocabulary; they are scored as `<unk>`, and figures come with and without them. `ppl` counts
sentence ends as words, `ppl1` leaves them out of the count but not out of the sum: that is SRILM's definition. Sources:
KenLM's lm/ngram_query.hh; SRILM's manual page ngram(1) and its output.

Legend: S sequences, N words of all of them with every `</s>`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce import files
from bnce.corpus.cutter import Tokens
from bnce.engine.network import Mode
from bnce.errors import unknown_name
from bnce.evaluation.breakdown import perplexity
from bnce.text.normalise import END_WORD

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LN_10 = math.log(10)
# What stands before the first word in SRILM's output; a model of ours reads </s> there.
START_WORD = "<s>"


class SequenceScores(NamedTuple):
    """A sequence's words: ln p, which of them are unknown, and how many words each ln p is about."""

    log_probs: Floats
    oov: Bools
    ngram_lengths: Ints


class Sums(NamedTuple):
    """What is left of every sequence where no single word is asked for."""

    log_prob_S: Floats
    num_oov_S: Ints
    log_prob_known: float  # of all words that are known and have a probability
    num_zero_probs: int  # words of the vocabulary with no probability at all


@dataclass(frozen=True, eq=False)
class WordScores:
    """The words of many sequences, flat; iterating gives the sequences. `states` are those after them, where kept."""

    log_prob_N: Floats
    oov_N: Bools
    ngram_length_N: Ints  # how many words a probability is about: the start of the sentence is one, and itself
    num_words_S: Ints
    mode: Mode
    states: list[Any] | None = None
    log_z_N: NDArray[np.floating[Any]] | None = None  # ln Z(context), where one network was asked for it

    def __len__(self) -> int:
        return len(self.num_words_S)

    def __getitem__(self, number: int) -> SequenceScores:
        return list(self)[number]

    def __iter__(self) -> Iterator[SequenceScores]:
        ends = np.cumsum(self.num_words_S).tolist()
        for begin, end in itertools.pairwise([0, *ends]):
            part = slice(begin, end)
            yield SequenceScores(self.log_prob_N[part], self.oov_N[part], self.ngram_length_N[part])

    @property
    def totals(self) -> Floats:
        """ln p of every sequence (S,)."""
        return add_up(self.log_prob_N, self.num_words_S)

    @property
    def num_oov(self) -> Ints:
        """How many words of every sequence are unknown (S,)."""
        return add_up(self.oov_N.astype(np.int64), self.num_words_S)

    def sums(self) -> Sums:
        """Add up every sequence."""
        counted_N = ~self.oov_N & (self.log_prob_N > -np.inf)
        num_zero_probs = int((~self.oov_N & ~counted_N).sum())
        return Sums(self.totals, self.num_oov, float(self.log_prob_N[counted_N].sum()), num_zero_probs)


def add_up(value_N: NDArray[Any], num_words_S: Ints) -> NDArray[Any]:
    """Sum values by sequence; a sequence may be empty."""
    # With one 0 more, because a sequence without words may begin at the end of all; reduceat gives one value there.
    begin_S = np.cumsum(num_words_S) - num_words_S
    sum_S = np.add.reduceat(np.append(value_N, value_N.dtype.type(0)), begin_S) if len(begin_S) else value_N[:0]
    return np.where(num_words_S > 0, sum_S, value_N.dtype.type(0))


@dataclass(frozen=True, eq=False)
class ScoredSentence:
    """One sentence; `</s>` is the last of its words."""

    words: list[str]
    ids: list[int]
    log_probs: Floats
    oov: Bools
    ngram_lengths: Ints

    @classmethod
    def of(cls, words: Sequence[str], scores: SequenceScores, ids: Sequence[int] = ()) -> ScoredSentence:
        """Put words beside their scores, and `</s>` after them."""
        return cls([*words, END_WORD], list(ids), *scores)

    @property
    def log_prob(self) -> float:
        """The sentence's total, OOV words included."""
        return float(self.log_probs.sum())

    @property
    def num_oov(self) -> int:
        """How many of the words are not in the vocabulary."""
        return int(self.oov.sum())

    def to_dict(self) -> dict[str, Any]:
        """Give the sentence as one JSON object has it: logarithms to the base 10, as those of the other layouts."""
        return {
            "words": self.words,
            "log10_probs": (self.log_probs / LN_10).tolist(),
            "oov": self.oov.tolist(),
            "log10_prob": self.log_prob / LN_10,
            "num_oov": self.num_oov,
            **Totals.of([self]).perplexities(),
        }


def scored_sentences(text: Tokens, scores: WordScores) -> Iterator[ScoredSentence]:
    """Put the words of a text beside their scores, sentence by sentence; words without numbers have the id 0."""
    ids = np.zeros(len(text.words), dtype=np.int64) if text.ids is None else text.ids
    begin = 0
    for own in scores:
        end = begin + len(own.log_probs)
        yield ScoredSentence(text.words[begin:end], ids[begin:end].tolist(), *own)
        begin = end


@dataclass
class Totals:
    """Sums over sentences, and the perplexities that follow from them."""

    num_sentences: int = 0
    num_words: int = 0  # sentence ends not counted
    num_oov: int = 0
    num_zero_probs: int = 0  # words of the vocabulary with no probability at all
    log_prob: float = 0.0  # of all words and sentence ends
    log_prob_no_oov: float = 0.0  # less OOV words and those of no probability
    num_bytes: int = 0  # of the text that the words are: UTF-8, a blank between words, a newline after a sentence

    @classmethod
    def of(cls, sentences: Iterable[ScoredSentence]) -> Totals:
        """Sum up some sentences."""
        totals, given = cls(), list(sentences)
        if given:
            words = list(itertools.chain.from_iterable(one.words for one in given))
            length_S = np.array([len(one.words) for one in given])
            columns = zip(*((one.log_probs, one.oov, one.ngram_lengths) for one in given), strict=True)
            log_prob_N, oov_N, ngram_length_N = map(np.concatenate, columns)
            scores = WordScores(log_prob_N, oov_N, ngram_length_N, length_S, "normalised")
            totals.add(Tokens(words, length_S), scores.sums())
        return totals

    def add(self, text: Tokens, sums: Sums) -> None:
        """Count the sentences of a text."""
        self.num_sentences += len(text)
        self.num_words += len(text.words) - len(text)
        self.num_oov += int(sums.num_oov_S.sum())
        self.num_zero_probs += sums.num_zero_probs
        self.log_prob += float(sums.log_prob_S.sum())
        self.log_prob_no_oov += sums.log_prob_known
        self.num_bytes += count_bytes(text)

    @property
    def num_tokens(self) -> int:
        """Words and sentence ends."""
        return self.num_words + self.num_sentences

    def perplexities(self) -> dict[str, float | None]:
        """Compute perplexities, with OOV words and without; None where there is nothing to divide by."""
        num_left = self.num_tokens - self.num_oov - self.num_zero_probs
        return {
            "ppl": perplexity(self.log_prob, self.num_tokens),
            "ppl1": perplexity(self.log_prob, self.num_words),
            "ppl_no_oov": perplexity(self.log_prob_no_oov, num_left),
            "ppl1_no_oov": perplexity(self.log_prob_no_oov, num_left - self.num_sentences),
        }

    @property
    def bits_per_byte(self) -> float | None:
        """The bits that a byte of the text takes; None where some word counts as `<unk>`, whose bytes nobody knows."""
        if self.num_oov or not self.num_bytes:
            return None
        return -self.log_prob / math.log(2) / self.num_bytes

    def to_dict(self) -> dict[str, Any]:
        """Give sums and perplexities as JSON has them, logarithms to the base 10."""
        found = {name.replace("log_", "log10_"): value for name, value in asdict(self).items()}
        found |= {name: value / LN_10 for name, value in found.items() if name.startswith("log10_")}
        return {**found, "bits_per_byte": self.bits_per_byte, **self.perplexities()}


def count_bytes(text: Tokens) -> int:
    """Count the bytes of sentences: words in UTF-8, a blank between two, a newline at the end of each."""
    num_letters = len("".join(text.words).encode("utf-8", "surrogatepass")) - len(END_WORD) * len(text)
    # A sentence of n words has n - 1 blanks and a newline, and one without words its newline.
    return num_letters + int(np.maximum(text.num_words_S - 1, 1).sum())


@dataclass(frozen=True)
class NextWord:
    """A word that may come next; probabilities sum to one over the vocabulary when they are normalised."""

    word: str
    prob: float
    log_prob: float

    @classmethod
    def of(cls, word: str, log_prob: float) -> NextWord:
        """Give a word of this ln p."""
        return cls(word, math.exp(log_prob), log_prob)


@dataclass(frozen=True)
class RescoredHypothesis:
    """A hypothesis with its scores; `place` is its place in the given list."""

    text: str
    total: float
    score: float  # the one it came with
    log_prob: float  # of all its words and </s>
    place: int


def _kenlm_total(log10_prob: float, num_oov: int) -> str:
    return f"Total: {log10_prob:.7g} OOV: {num_oov}\n"


def _kenlm_sentence(scored: ScoredSentence) -> str:
    """Write `word=id ngram_length log10_prob` and a tab for each word, then the total, which OOV words are part of."""
    values = (scored.log_probs / LN_10).tolist()
    columns = zip(scored.words, scored.ids, scored.ngram_lengths.tolist(), values, strict=True)
    words = "".join(f"{word}={number} {length} {value:.7g}\t" for word, number, length, value in columns)
    return words + _kenlm_total(scored.log_prob / LN_10, scored.num_oov)


def _kenlm_summary(totals: Totals, name: str) -> str:
    perplexities = totals.perplexities()
    return (
        f"Perplexity including OOVs:\t{_number(perplexities['ppl'])}\n"
        f"Perplexity excluding OOVs:\t{_number(perplexities['ppl_no_oov'])}\n"
        f"OOVs:\t{totals.num_oov}\n"
        f"Tokens:\t{totals.num_tokens}\n"
    )


def _srilm_sentence(scored: ScoredSentence, per_word: bool) -> str:
    """Write the sentence, a line for each word if they are asked for, and the sentence's own totals.

    SRILM counts a word that is not in the vocabulary and leaves it out of every sum.
    """
    lines = [" ".join(scored.words[:-1])]
    columns = zip(scored.words, scored.ngram_lengths, (scored.log_probs / LN_10).tolist(), scored.oov, strict=True)
    before = START_WORD
    for word, length, value, is_oov in columns if per_word else ():
        context = f"{before} " if before == START_WORD else f"{before} ..."
        found = "[OOV] 0 [ -inf ]" if is_oov else f"[{length}gram] {10**value:.7g} [ {value:.7g} ]"
        lines.append(f"\tp( {word} | {context}) \t= {found}")
        before = word
    return "\n".join(lines) + f"\n{_srilm_totals(Totals.of([scored]))}\n"


def _srilm_totals(totals: Totals) -> str:
    perplexities = totals.perplexities()
    return (
        f"{totals.num_sentences} sentences, {totals.num_words} words, {totals.num_oov} OOVs\n"
        f"{totals.num_zero_probs} zeroprobs, logprob= {totals.log_prob_no_oov / LN_10:.7g} "
        f"ppl= {_number(perplexities['ppl_no_oov'])} ppl1= {_number(perplexities['ppl1_no_oov'])}\n"
    )


def _srilm_summary(totals: Totals, name: str) -> str:
    return f"file {name}: {_srilm_totals(totals)}"


def _json_sentence(scored: ScoredSentence) -> str:
    return files.to_json(scored.to_dict()) + "\n"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.7g}"


class Layout(NamedTuple):
    """How sentences and totals are written; `sentence` is None where the sums of each are enough."""

    sentence: Callable[[ScoredSentence], str] | None
    summary: Callable[[Totals, str], str]
    # What perplexities are of: people compare those of different tools. Where words are spelt, there are no OOVs.
    counted: str
    counted_spelt: str

    def write_sums(self, sums: Sums) -> str:
        """Write sentences of which no single word is asked for."""
        pairs = zip((sums.log_prob_S / LN_10).tolist(), sums.num_oov_S.tolist(), strict=True)
        return "".join(itertools.starmap(_kenlm_total, pairs))


JSON_LINES = "jsonl"
LAYOUTS = ("kenlm", "srilm", JSON_LINES)


def get_layout(name: str, per_word: bool = False) -> Layout:
    """Find a layout by its name; `per_word` asks for every word's probability, which JSON lines always have."""
    if name not in LAYOUTS:
        raise unknown_name("layout", name, LAYOUTS)
    if name == "srilm":
        counted = "ppl counts words and one </s> per sentence, ppl1 only words"
        sentence = functools.partial(_srilm_sentence, per_word=per_word)
        return Layout(sentence, _srilm_summary, f"per token, OOVs left out: {counted}", f"per token: {counted}")
    counted = "per token: words and one </s> per sentence"
    including = f"{counted}; including OOVs, each counts as <unk>"
    by_name = {JSON_LINES: _json_sentence, "kenlm": _kenlm_sentence if per_word else None}
    return Layout(by_name[name], _kenlm_summary, including, counted)
