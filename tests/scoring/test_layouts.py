"""Our layouts beside KenLM itself: the same text, the same model, the same totals."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from bnce import UserError
from bnce.scoring.layouts import get_layout
from bnce.scoring.scored import ScoredSentence, Totals

from .arpa import LINES, write_arpa

kenlm = pytest.importorskip("kenlm")


@pytest.fixture(scope="module")
def ngram(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return kenlm.Model(str(write_arpa(tmp_path_factory.mktemp("arpa"))))


def score(ngram: Any, line: str) -> ScoredSentence:
    """Score a line with a KenLM model; its Python package does not tell ids, which matter to nobody."""
    words = line.split()
    found = list(ngram.full_scores(line))
    return ScoredSentence(
        words=[*words, "</s>"],
        ids=[0] * len(found),
        log10_probs=np.array([value for value, _, _ in found]),
        oov=np.array([is_oov for _, _, is_oov in found]),
        ngram_lengths=[length for _, length, _ in found],
    )


def numbers(pattern: str, text: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, text)]


def test_kenlm_lines_total_what_kenlm_says(ngram: Any) -> None:
    layout = get_layout("kenlm")
    for line in LINES:
        (printed,) = numbers(r"^Total: (\S+) OOV: \d+\n$", layout.sentence(score(ngram, line)))
        assert printed == pytest.approx(ngram.score(line), abs=1e-5)
        assert 10 ** (-printed / (len(line.split()) + 1)) == pytest.approx(ngram.perplexity(line), rel=1e-5)


def test_kenlm_words_are_what_kenlm_says(ngram: Any) -> None:
    layout = get_layout("kenlm", per_word=True)
    for line in LINES:
        printed = layout.sentence(score(ngram, line))
        *words, total = printed.split("\t")
        assert total.startswith("Total: ")
        for column, word, (value, length, _) in zip(
            words, [*line.split(), "</s>"], ngram.full_scores(line), strict=True
        ):
            assert column.startswith(f"{word}=0 {length} ")
            assert float(column.split(" ")[2]) == pytest.approx(value, abs=1e-6)


def test_kenlm_summary_is_of_the_whole_text(ngram: Any) -> None:
    """By KenLM's own definition: its lm/ngram_query.hh, computed here from its scores."""
    total = sum(ngram.score(line) for line in LINES)
    found = [item for line in LINES for item in ngram.full_scores(line)]
    oov = [value for value, _, is_oov in found if is_oov]
    printed = get_layout("kenlm").summary(Totals.of(score(ngram, line) for line in LINES), "text")
    (including,) = numbers(r"^Perplexity including OOVs:\t(\S+)\n", printed)
    (excluding,) = numbers(r"\nPerplexity excluding OOVs:\t(\S+)\n", printed)
    assert including == pytest.approx(10 ** (-total / len(found)), rel=1e-6)
    assert excluding == pytest.approx(10 ** (-(total - sum(oov)) / (len(found) - len(oov))), rel=1e-6)
    assert printed.endswith(f"OOVs:\t{len(oov)}\nTokens:\t{len(found)}\n")
    assert len(oov) == 4


def test_srilm_leaves_unknown_words_out(ngram: Any) -> None:
    sentences = [score(ngram, line) for line in LINES]
    printed = get_layout("srilm").summary(Totals.of(sentences), "news.txt")
    known = [value for line in LINES for value, _, is_oov in ngram.full_scores(line) if not is_oov]
    num_words = sum(len(line.split()) for line in LINES)
    first, second = printed.splitlines()
    assert first == f"file news.txt: {len(LINES)} sentences, {num_words} words, 4 OOVs"
    (total, ppl, ppl1) = re.fullmatch(r"0 zeroprobs, logprob= (\S+) ppl= (\S+) ppl1= (\S+)", second).groups()  # type: ignore[union-attr]
    assert float(total) == pytest.approx(sum(known), abs=1e-5)
    assert float(ppl) == pytest.approx(10 ** (-sum(known) / (num_words - 4 + len(LINES))), rel=1e-5)
    assert float(ppl1) == pytest.approx(10 ** (-sum(known) / (num_words - 4)), rel=1e-5)


def test_srilm_words_look_as_its_own(ngram: Any) -> None:
    printed = get_layout("srilm", per_word=True).sentence(score(ngram, "a model zebra was"))
    lines = printed.split("\n")
    assert lines[:3] == [
        "a model zebra was",
        "\tp( a | <s> ) \t= [2gram] 0.4 [ -0.39794 ]",
        "\tp( model | a ...) \t= [2gram] 0.5 [ -0.30103 ]",
    ]
    assert lines[3] == "\tp( zebra | model ...) \t= [OOV] 0 [ -inf ]"
    assert lines[4].startswith("\tp( was | zebra ...) \t= [1gram] 0.12")
    assert lines[5].startswith("\tp( </s> | was ...) \t= [2gram] ")
    assert lines[6] == "1 sentences, 4 words, 1 OOVs"
    # An empty line stands between sentences.
    assert lines[8:] == ["", ""]
    # Its own scripts add up the lines of words: they must come to the total below them.
    values = numbers(r"\[ (-[\d.]+) \]", printed)
    assert sum(values) == pytest.approx(numbers(r"logprob= (\S+)", printed)[0], abs=1e-5)


def test_totals_without_words_are_undefined_as_srilm_says() -> None:
    empty = ScoredSentence(["</s>"], [0], np.array([-1.0]), np.array([False]), [2])
    printed = get_layout("srilm").sentence(empty)
    assert printed == "\n1 sentences, 0 words, 0 OOVs\n0 zeroprobs, logprob= -1 ppl= 10 ppl1= undefined\n\n"
    assert "ppl= undefined ppl1= undefined" in get_layout("srilm").summary(Totals(), "nothing")


def test_words_of_no_probability_are_counted_apart() -> None:
    values = np.array([-1.0, -math.inf, -2.0])
    sentence = ScoredSentence(["a", "b", "</s>"], [2, 3, 0], values, np.array([False] * 3), [2, 3, 4])
    printed = get_layout("srilm").sentence(sentence)
    assert "1 zeroprobs, logprob= -3 ppl= 31.62278 ppl1= 1000" in printed
    assert "Total: -inf OOV: 0" in get_layout("kenlm").sentence(sentence)
    assert "including OOVs:\tinf\nPerplexity excluding OOVs:\t31.62278" in get_layout("kenlm").summary(
        Totals.of([sentence]), ""
    )


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(UserError, match=r"Unknown layout 'kenml': choose one of kenlm, srilm\. Did you mean 'kenlm'\?"):
        get_layout("kenml")
