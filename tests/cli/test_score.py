"""`bnce score`: text from a file or a pipe, in either layout, as totals or as JSON lines; and what is refused."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import Command, Refused
from small_corpus import small_run

from bnce import load
from bnce.corpus.spelling import ORDER
from tests.corpus.spelling_definition import by_definition, log_prob

TEXT = "Ba be bi .\n\nxyzzy ba? Bo!\nfu\n"
NUM_WORDS, NUM_TOKENS = 4 + 0 + 5 + 1, 4 + 0 + 5 + 1 + 4


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_a_line_a_sentence_then_the_totals(bnce: Command, trained: Path, text: Path) -> None:
    outcome = bnce("score", trained, text)
    lines = outcome.stdout.splitlines()
    expected = load(trained).score(TEXT.splitlines())
    for line, scored in zip(lines[:4], expected, strict=True):
        total, num_oov = re.fullmatch(r"Total: (\S+) OOV: (\d+)", line).groups()  # type: ignore[union-attr]
        assert float(total) == pytest.approx(scored.log_prob / math.log(10), abs=1e-5)
        assert int(num_oov) == scored.num_oov
    total = sum(scored.log_prob / math.log(10) for scored in expected)
    assert float(lines[4].split("\t")[1]) == pytest.approx(10 ** (-total / NUM_TOKENS), rel=1e-5)
    assert lines[6:] == [f"OOVs:\t{sum(scored.num_oov for scored in expected)}", f"Tokens:\t{NUM_TOKENS}"]
    assert outcome.stderr.startswith("log10 probabilities, with the constant ln Z = 9.000 (unnormalised: ")


@pytest.mark.parametrize("layout", ["kenlm", "srilm"])
def test_a_pipe_is_read_like_a_file(
    bnce: Command, trained: Path, text: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--per-word", "--layout", layout]
    expected = bnce("score", trained, text, *options).stdout.replace(str(text), "-")
    for place in ([], ["-"]):
        pipe(monkeypatch, TEXT.encode())
        assert bnce("score", trained, *place, *options).stdout == expected


def test_the_three_modes_agree(bnce: Command, trained: Path, text: Path) -> None:
    unnormalised, normalised, checked = (
        bnce("score", trained, text, "--mode", mode, "--json").json
        for mode in ("unnormalised", "normalised", "checked")
    )
    assert checked["log10_prob"] == unnormalised["log10_prob"]
    assert "check" not in unnormalised
    check = checked["check"]
    assert check["num_positions"] == NUM_TOKENS
    # Every position is checked: the difference of the totals is that of the logarithms.
    difference = (unnormalised["log10_prob"] - normalised["log10_prob"]) * math.log(10)
    assert check["mean_difference"] * NUM_TOKENS == pytest.approx(difference, abs=1e-3)
    assert check["log_z_mean"] - check["log_z"] == pytest.approx(check["mean_difference"], abs=1e-6)
    assert (unnormalised["log_z"], normalised["log_z"]) == (9.0, None)
    assert unnormalised["log_base"] == 10
    assert unnormalised["ppl"] == pytest.approx(10 ** (-unnormalised["log10_prob"] / NUM_TOKENS))
    assert unnormalised["ppl1"] == pytest.approx(10 ** (-unnormalised["log10_prob"] / NUM_WORDS))
    printed = bnce("score", trained, text, "--mode", "checked")
    assert printed.stdout.splitlines()[-1].startswith(f"Check:\t{NUM_TOKENS} words, unnormalised - exact ln p: mean ")
    assert "with the softmax" in bnce("score", trained, text, "--mode", "normalised").stderr


def test_json_lines(bnce: Command, trained: Path, text: Path) -> None:
    outcome = bnce("score", trained, text, "--layout", "jsonl")
    records = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert [record["words"] for record in records] == [
        ["ba", "be", "bi", ".", "</s>"],
        ["</s>"],
        ["xyzzy", "ba", "?", "bo", "!", "</s>"],
        ["fu", "</s>"],
    ]
    assert records[2]["oov"][0] is True
    total = bnce("score", trained, text, "--json").json["log10_prob"]
    assert sum(record["log10_prob"] for record in records) == pytest.approx(total)
    assert "Tokens:\t14" in outcome.stderr


def test_split_and_carried_over_is_what_evaluate_measures(bnce: Command, trained: Path, texts: Path) -> None:
    path = texts / "test.txt"
    evaluated = bnce("evaluate", trained, "--text", path, "--json").json
    scored = bnce("score", trained, path, "--split", "--carry", "text", "--json").json
    assert scored["num_words"] + scored["num_sentences"] == evaluated["num_tokens"]
    assert scored["ppl"] == pytest.approx(evaluated["ppl_n"], rel=1e-5)
    exact = bnce("score", trained, path, "--split", "--carry", "text", "--mode", "normalised", "--json").json
    assert exact["ppl"] == pytest.approx(evaluated["ppl_f"], rel=1e-5)
    reset = bnce("score", trained, path, "--split", "--json").json
    assert reset["num_sentences"] == scored["num_sentences"]
    assert reset["ppl"] != pytest.approx(scored["ppl"], rel=1e-7)


def test_says_why_perplexities_of_one_text_differ(bnce: Command, trained: Path, text: Path) -> None:
    """What a word was predicted from, what is counted, and whether it is normalised."""
    for options, context, seen in (
        ([], "line", "the words before it in its line, not from earlier lines (use --carry text for that)"),
        (
            ["--split"],
            "sentence",
            "the words before it in its sentence, not from earlier sentences (use --carry text for that)",
        ),
        (["--split", "--carry", "text"], "text", "all words before it in the text, across sentences"),
    ):
        plain = bnce("score", trained, text, *options)
        assert f"Each word is predicted from {seen}.\n" in plain.stderr
        assert "one of them can be above 1" in plain.stderr
        assert "per token: words and one </s> per sentence; including OOVs, each counts as <unk>" in plain.stderr
        several = "1 of 4 lines have several sentences; the training text had </s> between sentences. --split"
        assert (several in plain.stderr) == (options == [])
        record = bnce("score", trained, text, *options, "--json").json
        assert (record["context"], record["max_context"]) == (context, None)
        assert record["num_lines_of_several_sentences"] == (0 if options else 1)
    exact = bnce("score", trained, text, "--mode", "normalised", "--layout", "srilm").stderr
    assert "may be above 1" not in exact
    assert "OOVs left out: ppl counts words and one </s> per sentence, ppl1 only words" in exact


def test_carried_over_a_long_text_is_near_what_evaluate_measures(bnce: Command, trained: Path, texts: Path) -> None:
    """Beyond 576 tokens evaluate's words see less, and both say so; how they differ is tested with the scorer."""
    path = texts / "train.txt"
    scored = bnce("score", trained, path, "--split", "--carry", "text", "--json").json
    evaluated = bnce("evaluate", trained, "--text", path, "--json").json
    assert scored["num_words"] + scored["num_sentences"] == evaluated["num_tokens"] == 3200
    assert (scored["context"], scored["max_context"]) == ("text", None)
    assert (evaluated["min_context"], evaluated["max_context"]) == (65, 576)
    assert scored["ppl"] == pytest.approx(evaluated["ppl_n"], rel=1e-3)
    told = bnce("evaluate", trained, "--text", path).stdout
    assert "each word is predicted from the 65 to 576 words before it, across sentences" in told
    assert "one of them can be above 1" in told


def test_documents_end_at_blank_lines(bnce: Command, refused: Refused, trained: Path, tmp_path: Path) -> None:
    text, part = tmp_path / "text", tmp_path / "part"
    text.write_text("ba be\nfu bi\n\n \nfu bi\n", encoding="utf-8")
    part.write_text("ba be\nfu bi\n", encoding="utf-8")
    lines = bnce("score", trained, text, "--carry", "documents").stdout.splitlines()
    assert lines[:2] == bnce("score", trained, part, "--carry", "text").stdout.splitlines()[:2]
    assert lines[2] == bnce("score", trained, part).stdout.splitlines()[1]
    record = bnce("score", trained, text, "--carry", "documents", "--json").json
    assert (record["num_sentences"], record["context"]) == (3, "document")
    assert bnce("score", trained, text, "--carry", "text", "--json").json["num_sentences"] == 5
    assert "Unknown value of --carry 'lines'" in refused("score", trained, text, "--carry", "lines")


TOKENISED = "ba <unk> be @-@ bi .\nba &apos;s fu\n"


def test_tokenised_text_is_noticed(bnce: Command, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenised.txt"
    path.write_text(TOKENISED, encoding="utf-8")
    noticed = bnce("score", trained, path, "--layout", "jsonl")
    assert f"Warning: '{path}' looks tokenised: 3 of the 9 checked words are signs such as" in noticed.stderr
    assert "'@-@', '&apos;s', which would be cut into punctuation marks. Use the text from before" in noticed.stderr
    assert json.loads(noticed.stdout.splitlines()[0])["words"][:4] == ["ba", "<", "unk", ">"]
    assert "looks tokenised" in bnce("evaluate", trained, "--text", path, "--json").stderr
    path.write_text("ba be\n", encoding="utf-8")
    assert "looks tokenised" not in bnce("score", trained, "--json", path).stderr


def test_a_line_is_one_sentence_unless_split(bnce: Command, trained: Path, text: Path) -> None:
    assert bnce("score", trained, text, "--json").json["num_sentences"] == 4
    # xyzzy ba? | Bo!
    assert bnce("score", trained, text, "--split", "--json").json["num_sentences"] == 5


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "Standard input has no words"),
        (b"\n \n", "Standard input has no words"),
        (b"ba be\nb\xff\n", "Standard input, line 2 has invalid UTF-8 (byte 0xff) at byte offset 7"),
    ],
)
def test_bad_text_is_refused(
    refused: Refused, trained: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, told: str
) -> None:
    pipe(monkeypatch, data)
    assert told in refused("score", trained)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--mode", "exact"], "Unknown mode 'exact': choose one of unnormalised, normalised, checked."),
        (["--layout", "moses"], "Unknown layout 'moses': choose one of kenlm, srilm, jsonl."),
        (["--json", "--layout", "jsonl"], "--json prints the totals and --layout jsonl the sentences: give only"),
        (["--json", "--per-word"], "use --layout jsonl for the probability of every word."),
        (["--device", "abacus"], "Unknown device 'abacus'"),
    ],
)
def test_refusals(refused: Refused, trained: Path, text: Path, options: list[str], told: str) -> None:
    assert told in refused("score", trained, text, *options)


def test_what_is_not_there(refused: Refused, trained: Path, text: Path, tmp_path: Path) -> None:
    assert "There is no file" in refused("score", trained, tmp_path / "none.txt")
    assert "is a directory: give the files in it" in refused("score", trained, tmp_path)
    assert "is a run, but a text is needed here: check the order" in refused("score", text, trained)
    assert f"is a file of a run: give the directory '{trained}'" in refused(
        "score", trained / "model.safetensors", text
    )
    assert "is not a run directory" in refused("score", tmp_path, text)


def spelt_by_definition(texts: Path, vocabulary: list[str], word: str) -> float:
    """Compute log10 p(spelling) from the training text: the words outside, and those inside once, as they are few."""
    counts = Counter((texts / "train.txt").read_text(encoding="utf-8").split())
    inside = set(vocabulary)
    learnt = {seen: count if seen not in inside else 1 for seen, count in counts.items()}
    prob = by_definition(list(learnt), list(learnt.values()), ORDER)
    known = math.fsum(math.exp(log_prob(prob, other, ORDER)) for other in ("", *vocabulary))
    return (log_prob(prob, word, ORDER) - math.log1p(-known)) / math.log(10)


@pytest.mark.parametrize(
    "options", [[], ["--carry", "text"], ["--split", "--mode", "normalised"], ["--mode", "checked"]]
)
def test_unknown_words_are_spelt(bnce: Command, trained: Path, texts: Path, text: Path, options: list[str]) -> None:
    """p(word) = p(<unk> | context) · p(spelling), from the text to what is printed."""
    text.write_text("Ba zobi be .\n\nxyzzy\n", encoding="utf-8")
    before, after = (
        [
            json.loads(line)
            for line in bnce("score", trained, text, "--layout", "jsonl", *options, *spell).stdout.splitlines()
        ]
        for spell in ([], ["--spell"])
    )
    vocabulary = load(trained).vocabulary.words
    total = 0.0
    for one, other in zip(before, after, strict=True):
        for word, is_oov, log10, spelt in zip(
            one["words"], one["oov"], one["log10_probs"], other["log10_probs"], strict=True
        ):
            share = spelt_by_definition(texts, vocabulary, word) if is_oov else 0.0
            assert spelt == pytest.approx(log10 + share, abs=1e-5)
            total += spelt
        assert (other["num_oov"], any(other["oov"])) == (0, False)
    assert sum(one["num_oov"] for one in before) == 2
    totals = bnce("score", trained, text, "--json", *options, "--spell").json
    assert (totals["spell"], totals["num_spelt"], totals["num_oov"]) == (True, 2, 0)
    assert totals["log10_prob"] == pytest.approx(total, abs=1e-4)
    assert totals["num_bytes"] == len("ba zobi be .\n\nxyzzy\n")
    assert totals["bits_per_byte"] == pytest.approx(-total / math.log10(2) / totals["num_bytes"], rel=1e-5)
    assert totals["ppl"] == totals["ppl_no_oov"] == pytest.approx(10 ** (-total / (5 + 3)), rel=1e-4)


@pytest.mark.parametrize("layout", ["kenlm", "srilm"])
def test_says_what_spelling_counts(bnce: Command, trained: Path, text: Path, layout: str) -> None:
    totals = bnce("score", trained, text, "--json", "--spell").json
    spelt = bnce("score", trained, text, "--layout", layout, "--per-word", "--spell")
    expected = f"Spelt words:\t{totals['num_spelt']}\nBits per byte:\t{totals['bits_per_byte']:.5g}\nBytes:\t"
    assert spelt.stdout.endswith(f"{expected}{totals['num_bytes']}\n")
    assert "OOV] " not in spelt.stdout
    assert "has the probability p(<unk>) times that of its spelling" in spelt.stderr
    assert "OOVs" not in spelt.stderr
    assert "the UTF-8 bytes of all words, a blank between two words, and a newline after each sentence" in spelt.stderr
    plain = bnce("score", trained, text, "--layout", layout)
    assert "Spelt" not in plain.stdout + plain.stderr
    # Nobody knows the bytes of <unk>.
    record = bnce("score", trained, text, "--json").json
    assert (record["num_oov"] > 0, record["bits_per_byte"], "num_spelt" in record) == (True, None, False)


def test_a_run_without_a_spelling_model_says_how_to_spell(
    bnce: Command, refused: Refused, text: Path, tmp_path: Path
) -> None:
    run = small_run(tmp_path / "run", spelt=())
    assert bnce("score", run, text).status == 0
    assert "has no spelling model, because its corpus has none: prepare the corpus again and train with it" in (
        refused("score", run, text, "--spell")
    )


def test_a_softmax_run_must_be_normalised(
    bnce: Command, refused: Refused, trained: Path, text: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(trained, tmp_path / "softmax")
    config = (copy / "config.toml").read_text(encoding="utf-8")
    (copy / "config.toml").write_text(
        config.replace('name = "bnce"', 'name = "softmax"').replace("num_noise = 0\n", ""), encoding="utf-8"
    )
    told = refused("score", copy, text, "--mode", "unnormalised")
    assert "was trained with the loss softmax and has no constant" in told
    record = bnce("score", copy, text, "--json").json
    assert record["mode"] == "normalised"
    assert record["log10_prob"] < 0
