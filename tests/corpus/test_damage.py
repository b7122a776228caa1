"""A damaged corpus is refused in one sentence, whatever was done to which of its files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from damage import damaged
from small_corpus import small_corpus

from bnce import Corpus, UserError
from bnce.files import map_array, parse_object, parse_toml


def read_all(directory: Path) -> dict[str, object]:
    """Read whatever a corpus gives."""
    corpus = Corpus.open(directory)
    ids = {name: corpus.split(name).tolist() for name in corpus.statistics}
    known = {"words": corpus.vocabulary.words, "counts": corpus.target_counts.tolist(), **ids}
    assert corpus.spelling_file is not None
    return {**known, "spelling": corpus.spelling_file.read_bytes(), "manifest": corpus.manifest}


@pytest.mark.parametrize(
    ("name", "num_cases"),
    [
        ("train.npy", 160),
        ("valid.npy", 40),
        ("counts.npy", 160),
        ("vocab.txt", 160),
        ("spelling.safetensors", 80),
        ("corpus.json", 400),
    ],
)
def test_no_damage_changes_what_is_read(tmp_path: Path, name: str, num_cases: int) -> None:
    place = small_corpus(tmp_path / "corpus").directory
    expected = read_all(place)
    content = (place / name).read_bytes()
    refusals = []
    for seed in range(num_cases):
        (place / name).write_bytes(damaged(content, seed))
        try:
            found = read_all(place)
        except UserError as error:
            refusals.append(str(error))
        else:
            assert found == expected, seed
    assert len(refusals) > 0.8 * num_cases
    assert not [message for message in refusals if "\n" in message or len(message) > 600]


def test_small_readers_raise_one_kind_of_error(tmp_path: Path) -> None:
    """Whatever bytes there are: JSON, TOML and arrays are read, or refused by a ValueError."""
    for seed in range(300):
        content = damaged(b'{"a": [1, 2.5, null], "b": {"c": "d", "e": true}}\n' * (1 + seed % 2), seed)
        for parse in (parse_object, parse_toml):
            with contextlib.suppress(ValueError):
                assert isinstance(parse(content), dict)
        (tmp_path / "a.npy").write_bytes(content)
        with pytest.raises(ValueError, match=r"\w"):
            map_array(tmp_path / "a.npy")


@pytest.mark.parametrize("content", [b'{"a": 1' + b"0" * 5000 + b"}", b"null", b"\xff\xfe{}", b""])
def test_json_that_is_no_object(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        parse_object(content)
    assert "\n" not in str(caught.value)
    whole = small_corpus(tmp_path / "whole").directory
    (whole / "corpus.json").write_bytes(content)
    with pytest.raises(UserError, match=r"corpus\.json cannot be read"):
        Corpus.open(whole)
