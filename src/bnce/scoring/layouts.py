"""Scored sentences as KenLM's `query` and SRILM's `ngram -ppl` print them, so that tools for those can read them.

Both print log10 probabilities. They differ in what they do with a word that is not in the vocabulary: KenLM scores it
as `<unk>` and gives a perplexity with and one without such words; SRILM counts it and leaves it out of every sum, as it
does with words of no probability. Sources: KenLM's lm/ngram_query.hh; SRILM's manual page ngram(1) and its output.
A third layout is one JSON object per sentence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from bnce import files
from bnce.errors import unknown_name
from bnce.scoring.scored import ScoredSentence, Totals

# What stands before the first word in SRILM's output; a model of ours reads </s> there.
START_WORD = "<s>"


class Layout(ABC):
    """How sentences and totals are written; `per_word` asks for every word's probability."""

    # What perplexities are of: people compare those of different tools. Where words are spelt, there are no OOVs.
    counted: str
    counted_spelt: str

    def __init__(self, per_word: bool = False) -> None:
        self.per_word = per_word

    @abstractmethod
    def sentence(self, scored: ScoredSentence) -> str:
        """Write one sentence."""

    @abstractmethod
    def summary(self, totals: Totals, name: str) -> str:
        """Write the totals of the text `name`."""


class KenlmLayout(Layout):
    """`word=id ngram_length log10_prob` and a tab for each word, then the line's total, which OOV words are part of."""

    counted = "per token: words and one </s> per sentence; including OOVs, each counts as <unk>"
    counted_spelt = "per token: words and one </s> per sentence"

    def sentence(self, scored: ScoredSentence) -> str:
        """Write one line."""
        total = f"Total: {scored.log10_prob:.7g} OOV: {scored.num_oov}\n"
        if not self.per_word:
            return total
        columns = zip(scored.words, scored.ids, scored.ngram_lengths, scored.log10_probs.tolist(), strict=True)
        return "".join(f"{word}={number} {length} {value:.7g}\t" for word, number, length, value in columns) + total

    def summary(self, totals: Totals, name: str) -> str:
        """Write both perplexities, which count the sentence ends."""
        perplexities = totals.perplexities()
        return (
            f"Perplexity including OOVs:\t{_number(perplexities['ppl'])}\n"
            f"Perplexity excluding OOVs:\t{_number(perplexities['ppl_no_oov'])}\n"
            f"OOVs:\t{totals.num_oov}\n"
            f"Tokens:\t{totals.num_tokens}\n"
        )


class SrilmLayout(Layout):
    """The sentence, a line for each word, then the sentence's own totals; `per_word` is SRILM's -debug 2, else 1."""

    counted = "per token, OOVs left out: ppl counts words and one </s> per sentence, ppl1 only words"
    counted_spelt = "per token: ppl counts words and one </s> per sentence, ppl1 only words"

    def sentence(self, scored: ScoredSentence) -> str:
        """Write a few lines and an empty one."""
        lines = [" ".join(scored.words[:-1])]
        if self.per_word:
            before = START_WORD
            columns = zip(scored.words, scored.ngram_lengths, scored.log10_probs.tolist(), scored.oov, strict=True)
            for word, length, value, is_oov in columns:
                context = f"{before} " if before == START_WORD else f"{before} ..."
                found = "[OOV] 0 [ -inf ]" if is_oov else f"[{length}gram] {10**value:.7g} [ {value:.7g} ]"
                lines.append(f"\tp( {word} | {context}) \t= {found}")
                before = word
        return "\n".join(lines) + f"\n{_srilm_totals(Totals.of([scored]))}\n"

    def summary(self, totals: Totals, name: str) -> str:
        """Write the same totals of the whole text."""
        return f"file {name}: {_srilm_totals(totals)}"


class JsonLayout(KenlmLayout):
    """One JSON object per sentence, with every word; totals as KenLM's."""

    def sentence(self, scored: ScoredSentence) -> str:
        """Write one line."""
        return files.to_json(scored.to_dict()) + "\n"


JSON_LINES = "jsonl"
LAYOUTS: dict[str, type[Layout]] = {"kenlm": KenlmLayout, "srilm": SrilmLayout, JSON_LINES: JsonLayout}


def get_layout(name: str, per_word: bool = False) -> Layout:
    """Find a layout by its name."""
    if name not in LAYOUTS:
        raise unknown_name("layout", name, LAYOUTS)
    return LAYOUTS[name](per_word)


def _srilm_totals(totals: Totals) -> str:
    perplexities = totals.perplexities()
    return (
        f"{totals.num_sentences} sentences, {totals.num_words} words, {totals.num_oov} OOVs\n"
        f"{totals.num_zero_probs} zeroprobs, logprob= {totals.log10_prob_no_oov:.7g} "
        f"ppl= {_number(perplexities['ppl_no_oov'])} ppl1= {_number(perplexities['ppl1_no_oov'])}\n"
    )


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.7g}"
