"""Which words make a vocabulary, where all of them would leave `<unk>` without a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from bnce import Normaliser, prepare

TOKENISED = Normaliser(False, "whitespace", "lines")


def make(tmp_path: Path, train: str, **settings: object) -> tuple[list[str], int | None, list[str]]:
    for name, text in (("train", train), ("valid", "a z\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    notices: list[str] = []
    paths = [str(tmp_path / f"{name}.txt") for name in ("train", "valid")]
    options = {"valid": paths[1], "fraction": 0, "normaliser": TOKENISED, "notice": notices.append, **settings}
    corpus = prepare([paths[0]], tmp_path / "corpus", **options)  # type: ignore[arg-type]
    return corpus.vocabulary.words[2:], corpus.manifest.min_count, notices


@pytest.mark.parametrize(
    ("train", "settings", "words", "min_count", "is_warned"),
    [
        ("a a b b c\n", {}, "ab", 2, False),
        ("a a b b c\n", {"vocab_size": 5}, "ab", 2, False),
        ("a a b b c\n", {"vocab_size": 4}, "ab", 1, False),  # c is unknown by the size
        ("a a a b b c\n", {"vocab_size": 3}, "a", 1, False),
        ("a a b b c\n", {"min_count": 1}, "abc", 1, True),
        ("a a b b c <unk>\n", {}, "abc", 1, False),  # the text has unknown words of its own
        ("a b c\n", {}, "abc", 1, True),  # nothing would be left
        ("a a b b\n", {}, "ab", 1, True),  # there is nothing to leave out
    ],
)
def test_singletons_make_way_for_the_unknown_word(
    tmp_path: Path, train: str, settings: dict[str, int], words: str, min_count: int, is_warned: bool
) -> None:
    found, least, notices = make(tmp_path, train, **settings)
    assert (found, least) == (list(words), min_count)
    assert bool(notices) == is_warned
    if is_warned:
        assert "50.00% of the words of valid" in notices[0]


def test_a_text_without_unknown_words_anywhere_is_no_reason_to_warn(tmp_path: Path) -> None:
    _, _, notices = make(tmp_path, "a z a z\n", min_count=1)
    assert notices == []
