"""How other tools print scores: KenLM's `query`, SRILM's `ngram -ppl`, and one JSON object per sentence.

Logarithms are to the base 10. Sources: KenLM's lm/ngram_query.hh; SRILM's manual page ngram(1) and its output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bnce import files
from bnce.errors import unknown_name
from bnce.scoring.results import LN_10, ScoredSentence, Sums, Totals

# What stands before the first word in SRILM's output; a model of ours reads </s> there.
START_WORD = "<s>"


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
