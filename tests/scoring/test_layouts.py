"""Our layouts beside KenLM itself: the same text, the same model, the same totals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import Command

from .arpa import LINES, write_arpa

kenlm = pytest.importorskip("kenlm")


@pytest.fixture(scope="module")
def arpa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arpa(tmp_path_factory.mktemp("arpa"))


@pytest.fixture(scope="module")
def ngram(arpa: Path) -> Any:
    return kenlm.Model(str(arpa))


def printed(bnce: Command, arpa: Path, place: Path, lines: list[str], *options: str) -> str:
    """Let `bnce score` print a text."""
    (place / "news.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    outcome = bnce("score", arpa, place / "news.txt", *options)
    assert outcome.status == 0, outcome.stderr
    return outcome.stdout


def numbers(pattern: str, text: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, text)]


def test_kenlm_lines_total_what_kenlm_says(bnce: Command, arpa: Path, ngram: Any, tmp_path: Path) -> None:
    totals = numbers(r"(?m)^Total: (\S+) OOV: \d+$", printed(bnce, arpa, tmp_path, LINES))
    for line, total in zip(LINES, totals, strict=True):
        assert total == pytest.approx(ngram.score(line), abs=1e-5)
        assert 10 ** (-total / (len(line.split()) + 1)) == pytest.approx(ngram.perplexity(line), rel=1e-5)


def test_kenlm_words_are_what_kenlm_says(bnce: Command, arpa: Path, ngram: Any, tmp_path: Path) -> None:
    lines = printed(bnce, arpa, tmp_path, LINES, "--per-word").splitlines()[: len(LINES)]
    for line, shown in zip(LINES, lines, strict=True):
        *words, total = shown.split("\t")
        assert total.startswith("Total: ")
        for column, word, (value, length, _) in zip(
            words, [*line.split(), "</s>"], ngram.full_scores(line), strict=True
        ):
            assert column.startswith(f"{word}=0 {length} ")
            assert float(column.split(" ")[2]) == pytest.approx(value, abs=1e-6)


def test_kenlm_summary_is_of_the_whole_text(bnce: Command, arpa: Path, ngram: Any, tmp_path: Path) -> None:
    """By KenLM's own definition: its lm/ngram_query.hh, computed here from its scores."""
    total = sum(ngram.score(line) for line in LINES)
    found = [item for line in LINES for item in ngram.full_scores(line)]
    oov = [value for value, _, is_oov in found if is_oov]
    shown = printed(bnce, arpa, tmp_path, LINES)
    (including,) = numbers(r"\nPerplexity including OOVs:\t(\S+)\n", shown)
    (excluding,) = numbers(r"\nPerplexity excluding OOVs:\t(\S+)\n", shown)
    assert including == pytest.approx(10 ** (-total / len(found)), rel=1e-6)
    assert excluding == pytest.approx(10 ** (-(total - sum(oov)) / (len(found) - len(oov))), rel=1e-6)
    assert shown.endswith(f"OOVs:\t{len(oov)}\nTokens:\t{len(found)}\n")
    assert len(oov) == 4


def test_srilm_leaves_unknown_words_out(bnce: Command, arpa: Path, ngram: Any, tmp_path: Path) -> None:
    known = [value for line in LINES for value, _, is_oov in ngram.full_scores(line) if not is_oov]
    num_words = sum(len(line.split()) for line in LINES)
    *_, first, second = printed(bnce, arpa, tmp_path, LINES, "--layout", "srilm").splitlines()
    assert first == f"file {tmp_path / 'news.txt'}: {len(LINES)} sentences, {num_words} words, 4 OOVs"
    (total, ppl, ppl1) = re.fullmatch(r"0 zeroprobs, logprob= (\S+) ppl= (\S+) ppl1= (\S+)", second).groups()  # type: ignore[union-attr]
    assert float(total) == pytest.approx(sum(known), abs=1e-5)
    assert float(ppl) == pytest.approx(10 ** (-sum(known) / (num_words - 4 + len(LINES))), rel=1e-5)
    assert float(ppl1) == pytest.approx(10 ** (-sum(known) / (num_words - 4)), rel=1e-5)


def test_srilm_words_look_as_its_own(bnce: Command, arpa: Path, tmp_path: Path) -> None:
    shown = printed(bnce, arpa, tmp_path, ["a model zebra was"], "--layout", "srilm", "--per-word")
    lines = shown.split("\n")
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
    assert lines[8] == ""
    # Its own scripts add up the lines of words: they must come to the total below them.
    values = numbers(r"\[ (-[\d.]+) \]", shown)
    assert sum(values) == pytest.approx(numbers(r"logprob= (\S+)", shown)[0], abs=1e-5)


def test_totals_without_words_are_undefined_as_srilm_says(
    bnce: Command, arpa: Path, ngram: Any, tmp_path: Path
) -> None:
    shown = printed(bnce, arpa, tmp_path, ["", "a"], "--layout", "srilm", "--per-word")
    counts = r"1 sentences, 0 words, 0 OOVs\n0 zeroprobs, "
    (total,) = numbers(rf"^\n\tp\( </s> \| <s> \) .*\n{counts}logprob= (\S+) ppl= \S+ ppl1= undefined\n", shown)
    assert total == pytest.approx(ngram.score(""), abs=1e-5)


def test_every_perplexity_has_its_own_count(bnce: Command, arpa: Path, ngram: Any, tmp_path: Path) -> None:
    found = json.loads(printed(bnce, arpa, tmp_path, LINES, "--json"))
    scored = [item for line in LINES for item in ngram.full_scores(line)]
    total, known = sum(one[0] for one in scored), sum(one[0] for one in scored if not one[2])
    num_words, num_tokens = len(scored) - len(LINES), len(scored)
    assert (found["num_sentences"], found["num_words"], found["num_oov"]) == (len(LINES), num_words, 4)
    assert (found["log10_prob"], found["log10_prob_no_oov"]) == pytest.approx((total, known), abs=1e-4)
    assert found["ppl"] == pytest.approx(10 ** (-total / num_tokens), rel=1e-5)
    assert found["ppl1"] == pytest.approx(10 ** (-total / num_words), rel=1e-5)
    assert found["ppl_no_oov"] == pytest.approx(10 ** (-known / (num_tokens - 4)), rel=1e-5)
    assert found["ppl1_no_oov"] == pytest.approx(10 ** (-known / (num_words - 4)), rel=1e-5)
