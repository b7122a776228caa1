"""What models say of text: probabilities of words, of sentences and of all, and how other tools print them.

Logarithms are natural; JSON and layouts have log10: KenLM's `query`, SRILM's `ngram -ppl`, one JSON object per
sentence. OOV words are those outside the vocabulary; they are scored as `<unk>`, and figures come with and without
them. `ppl` counts sentence ends as words, `ppl1` leaves them out of the count but not out of the sum: that is SRILM's
definition. Sources: KenLM's lm/ngram_query.hh; SRILM's manual page ngram(1) and its output.

Legend: S sequences, N words of all of them with every `</s>`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
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


@dataclass(frozen=True, eq=False)
class ScoredSentence:
    """One sentence; `</s>` is the last of its words. Words without numbers have the id 0."""

    words: list[str]
    ids: list[int]
    log_probs: Floats
    oov: Bools
    ngram_lengths: Ints  # how many words each probability is about: the start of the sentence is one, and itself

    @property
    def log_prob(self) -> float:
        """The sentence's total, OOV words included."""
        return float(self.log_probs.sum())

    @property
    def num_oov(self) -> int:
        """How many of the words are not in the vocabulary."""
        return int(self.oov.sum())

    def to_dict(self) -> dict[str, Any]:
        """Give the sentence as one JSON object has it: logarithms to the base 10, as those of the layouts."""
        return {
            "words": self.words,
            "log10_probs": (self.log_probs / LN_10).tolist(),
            "oov": self.oov.tolist(),
            "log10_prob": self.log_prob / LN_10,
            "num_oov": self.num_oov,
            **Totals.of([self]).perplexities(),
        }


class Sums(NamedTuple):
    """What is left of every sequence of a text where no single word is asked for."""

    text: Tokens
    log_prob_S: Floats
    num_oov_S: Ints
    log_prob_known: float  # of all words that are known and have a probability
    num_zero_probs: int = 0  # words of the vocabulary with no probability at all


@dataclass(frozen=True, eq=False)
class WordScores:
    """The words of a text, flat; iterating gives the sentences. `states` are those after its sequences, where kept."""

    text: Tokens
    log_prob_N: Floats
    oov_N: Bools
    ngram_length_N: Ints
    mode: Mode
    states: list[Any] | None = None
    log_z_N: NDArray[np.floating[Any]] | None = None  # ln Z(context), where one network was asked for it

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, number: int) -> ScoredSentence:
        return list(self)[number]

    def __iter__(self) -> Iterator[ScoredSentence]:
        words = self.text.words
        ids = [0] * len(words) if self.text.ids is None else self.text.ids.tolist()
        for begin, end in itertools.pairwise([0, *np.cumsum(self.text.num_words_S).tolist()]):
            own = slice(begin, end)
            yield ScoredSentence(words[own], ids[own], self.log_prob_N[own], self.oov_N[own], self.ngram_length_N[own])

    @property
    def totals(self) -> Floats:
        """ln p of every sequence (S,)."""
        return add_up(self.log_prob_N, self.text.num_words_S)

    @property
    def num_oov(self) -> Ints:
        """How many words of every sequence are unknown (S,)."""
        return add_up(self.oov_N.astype(np.int64), self.text.num_words_S)

    def sums(self) -> Sums:
        """Add up every sequence."""
        counted_N = ~self.oov_N & (self.log_prob_N > -np.inf)
        num_zero_probs = int((~self.oov_N & ~counted_N).sum())
        return Sums(self.text, self.totals, self.num_oov, float(self.log_prob_N[counted_N].sum()), num_zero_probs)


def add_up(value_N: NDArray[Any], num_words_S: Ints) -> NDArray[Any]:
    """Sum values by sequence; a sequence may be empty."""
    # With one 0 more, because a sequence without words may begin at the end of all; reduceat gives one value there.
    begin_S = np.cumsum(num_words_S) - num_words_S
    sum_S = np.add.reduceat(np.append(value_N, value_N.dtype.type(0)), begin_S) if len(begin_S) else value_N[:0]
    return np.where(num_words_S > 0, sum_S, value_N.dtype.type(0))


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
            text = Tokens([word for one in given for word in one.words], np.array([len(one.words) for one in given]))
            columns = zip(*((one.log_probs, one.oov, one.ngram_lengths) for one in given), strict=True)
            log_prob_N, oov_N, ngram_length_N = map(np.concatenate, columns)
            totals.add(WordScores(text, log_prob_N, oov_N, ngram_length_N, "normalised").sums())
        return totals

    def add(self, sums: Sums) -> None:
        """Count the sentences of a text."""
        text = sums.text
        self.num_sentences += len(text)
        self.num_words += len(text.words) - len(text)
        self.num_oov += int(sums.num_oov_S.sum())
        self.num_zero_probs += sums.num_zero_probs
        self.log_prob += float(sums.log_prob_S.sum())
        self.log_prob_no_oov += sums.log_prob_known
        num_letters = len("".join(text.words).encode("utf-8", "surrogatepass")) - len(END_WORD) * len(text)
        # A sentence of n words has n - 1 blanks and a newline, and one without words its newline.
        self.num_bytes += num_letters + int(np.maximum(text.num_words_S - 1, 1).sum())

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


class NextWord(NamedTuple):
    """A word that may come next; probabilities sum to one over the vocabulary when they are normalised."""

    word: str
    log_prob: float

    @property
    def prob(self) -> float:
        """The probability."""
        return math.exp(self.log_prob)


class RescoredHypothesis(NamedTuple):
    """A hypothesis with its scores; `place` is its place in the given list."""

    text: str
    total: float
    score: float  # the one it came with
    log_prob: float  # of all its words and </s>
    place: int


class Layout(NamedTuple):
    """How sentences and totals are written; `sentence` is None where the sums of each are enough."""

    sentence: Callable[[ScoredSentence], str] | None
    summary: Callable[[Totals, str], str]
    counted: str = "per token: words and one </s> per sentence; including OOVs, each counts as <unk>"  # by perplexities


def kenlm_sums(sums: Sums) -> str:
    """Write the total of each sentence, which OOV words are part of."""
    pairs = zip((sums.log_prob_S / LN_10).tolist(), sums.num_oov_S.tolist(), strict=True)
    return "".join([f"Total: {log10_prob:.7g} OOV: {num_oov}\n" for log10_prob, num_oov in pairs])


def kenlm_words(scored: ScoredSentence) -> str:
    """Write `word=id ngram_length log10_prob` and a tab for each word, then the total."""
    values = (scored.log_probs / LN_10).tolist()
    columns = zip(scored.words, scored.ids, scored.ngram_lengths.tolist(), values, strict=True)
    words = "".join(f"{word}={number} {length} {value:.7g}\t" for word, number, length, value in columns)
    return f"{words}Total: {scored.log_prob / LN_10:.7g} OOV: {scored.num_oov}\n"


def kenlm_summary(totals: Totals, name: str) -> str:
    """Write perplexities and counts of the whole text."""
    perplexities = totals.perplexities()
    return (
        f"Perplexity including OOVs:\t{_number(perplexities['ppl'])}\n"
        f"Perplexity excluding OOVs:\t{_number(perplexities['ppl_no_oov'])}\n"
        f"OOVs:\t{totals.num_oov}\n"
        f"Tokens:\t{totals.num_tokens}\n"
    )


def srilm_sentence(scored: ScoredSentence) -> str:
    """Write the sentence and its totals; SRILM counts a word outside the vocabulary and leaves it out of every sum."""
    return _srilm(scored, [])


def srilm_words(scored: ScoredSentence) -> str:
    """Write the sentence, a line for each word, and its totals."""
    lines, before = [], START_WORD
    columns = zip(scored.words, scored.ngram_lengths, (scored.log_probs / LN_10).tolist(), scored.oov, strict=True)
    for word, length, value, is_oov in columns:
        context = f"{before} " if before == START_WORD else f"{before} ..."
        found = "[OOV] 0 [ -inf ]" if is_oov else f"[{length}gram] {10**value:.7g} [ {value:.7g} ]"
        lines.append(f"\tp( {word} | {context}) \t= {found}")
        before = word
    return _srilm(scored, lines)


def _srilm(scored: ScoredSentence, lines: list[str]) -> str:
    return "\n".join([" ".join(scored.words[:-1]), *lines, _srilm_totals(Totals.of([scored])), ""])


def _srilm_totals(totals: Totals) -> str:
    perplexities = totals.perplexities()
    return (
        f"{totals.num_sentences} sentences, {totals.num_words} words, {totals.num_oov} OOVs\n"
        f"{totals.num_zero_probs} zeroprobs, logprob= {totals.log_prob_no_oov / LN_10:.7g} "
        f"ppl= {_number(perplexities['ppl_no_oov'])} ppl1= {_number(perplexities['ppl1_no_oov'])}\n"
    )


def srilm_summary(totals: Totals, name: str) -> str:
    """Write counts and perplexities of the whole text."""
    return f"file {name}: {_srilm_totals(totals)}"


def json_line(scored: ScoredSentence) -> str:
    """Write a sentence with all its words as one JSON object."""
    return files.to_json(scored.to_dict()) + "\n"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.7g}"


JSON_LINES = "jsonl"
SRILM_COUNTS = "per token, OOVs left out: ppl counts words and one </s> per sentence, ppl1 only words"
# By name: the layout of sentences, and that with the probability of every word.
LAYOUTS = {
    "kenlm": (Layout(None, kenlm_summary), Layout(kenlm_words, kenlm_summary)),
    "srilm": tuple(Layout(write, srilm_summary, SRILM_COUNTS) for write in (srilm_sentence, srilm_words)),
    JSON_LINES: (Layout(json_line, kenlm_summary),) * 2,
}


def get_layout(name: str, per_word: bool = False) -> Layout:
    """Find a layout by its name; `per_word` asks for every word's probability, which JSON lines always have."""
    if name not in LAYOUTS:
        raise unknown_name("layout", name, tuple(LAYOUTS))
    return LAYOUTS[name][per_word]
