"""`bnce generate`: the same seed, the same sentences; and every way to choose words."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Command, Refused
from small_corpus import WORDS, small_run

from bnce import Normaliser


def test_a_seed_repeats_its_texts(bnce: Command, trained: Path) -> None:
    first, again, other = (bnce("generate", trained, "--seed", seed, "--json").json for seed in (7, 7, 8))
    assert first == again
    assert first["texts"] != other["texts"]
    assert len(first["texts"]) == 5
    assert set(first) == {"run", "prompt", "seed", "texts"}


def test_prints_a_sentence_a_line(bnce: Command, trained: Path) -> None:
    record = bnce("generate", trained, "-n", 3, "--json").json
    plain = bnce("generate", trained, "-n", 3)
    assert plain.stdout.splitlines() == record["texts"]
    assert plain.stderr == ""


def test_temperature_zero_has_one_answer(bnce: Command, trained: Path) -> None:
    options = ["--temperature", 0, "-n", 4, "--max-words", 12, "--json"]
    texts = [text for seed in (1, 2) for text in bnce("generate", trained, *options, "--seed", seed).json["texts"]]
    assert len(set(texts)) == 1
    # So have the two other ways to leave no choice.
    for option in (["--top-k", 1], ["--top-p", 1e-6]):
        assert bnce("generate", trained, *options[2:], *option).json["texts"][0] == texts[0]


def test_a_text_ends_by_itself_or_is_marked_as_cut(bnce: Command, trained: Path) -> None:
    options = ["-n", 50, "--max-words", 6, "--temperature", 1, "--json"]
    texts = bnce("generate", trained, *options).json["texts"]
    cut = [text for text in texts if text.endswith(" …")]
    assert 0 < len(cut) < len(texts)
    assert all(len(text.split()) == 7 for text in cut)
    assert all("</s>" not in text for text in texts)


def test_unknown_words_of_a_prompt_stay_and_none_is_made(bnce: Command, trained: Path) -> None:
    record = bnce("generate", trained, "--prompt", "Ba xyzzy", "-n", 20, "--temperature", 2, "--json").json
    assert record["prompt"] == "Ba xyzzy"
    assert all(text.startswith("ba xyzzy") for text in record["texts"])
    assert all("<unk>" not in text for text in record["texts"])


def test_words_are_not_markup(bnce: Command, tmp_path: Path) -> None:
    # Where words are cut at blanks only, a word can look like a tag.
    run = small_run(tmp_path / "run", words=[*WORDS, "--ba"], normaliser=Normaliser(True, "whitespace", "lines"))
    outcome = bnce("generate", run, "--prompt", "[red] [/b]", "-n", 1)
    assert outcome.status == 0
    assert outcome.stdout.startswith("[red] [/b]")
    assert bnce("generate", run, "--prompt=--ba", "-n", 1).stdout.startswith("--ba"), "as a message says it"


def test_the_likeliest_next_words(bnce: Command, trained: Path) -> None:
    record = bnce("generate", trained, "--prompt", "Ba be", "--next", 5, "--json").json
    assert set(record) == {"run", "prompt", "mode", "next"}
    assert record["mode"] == "normalised"
    assert len(record["next"]) == 5
    probs = [word["prob"] for word in record["next"]]
    assert probs == sorted(probs, reverse=True)
    every = bnce("generate", trained, "--prompt", "Ba be", "--next", 10**6, "--json").json["next"]
    assert sum(word["prob"] for word in every) == pytest.approx(1, abs=1e-5)
    assert every[:5] == record["next"]
    plain = bnce("generate", trained, "--prompt", "Ba be", "--next", 5)
    assert plain.stdout.splitlines() == [f"{word['prob']:.6f}  {word['word']}" for word in record["next"]]
    assert plain.stderr == "Probabilities are with the exact softmax, not with the constant Z.\n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--temperature", "-1"], "The temperature is -1.0: it must be 0 (always take the most likely word) or above."),
        (["--temperature", "nan"], "--temperature is nan: give a finite number."),
        (["--temperature", "inf"], "--temperature is inf: give a finite number."),
        (["--top-k", "-1"], "top-k is -1: it must be 0 (all words) or above."),
        (["--top-p", "0"], "top-p is 0.0: it must be above 0 and at most 1."),
        (["--top-p", "1.5"], "top-p is 1.5"),
        (["--device", "abacus"], "Unknown device 'abacus'"),
    ],
)
def test_refusals(refused: Refused, trained: Path, options: list[str], told: str) -> None:
    assert told in refused("generate", trained, *options)
