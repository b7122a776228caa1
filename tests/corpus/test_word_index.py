"""A vocabulary that is looked up in files says what the one in memory says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_corpus import SPECIALS, UNK

from bnce import UserError
from bnce.corpus import word_index
from bnce.corpus.vocabulary import Vocabulary
from bnce.corpus.word_index import INDEX_FILE, MappedVocabulary, write_index

WORDS = [*SPECIALS, "the", "cat", "ça", "猫", "the-cat", "a", "th", *(f"w{number}" for number in range(500))]
ASKED = ["the", "th", "t", "", "the\ncat", "猫", "</s>", "<unk>", "w499", "w500", "\udc80", "the", "cat\n"]


def make(directory: Path) -> MappedVocabulary:
    Vocabulary(WORDS).write(directory / "vocab.txt")
    write_index(WORDS, directory / INDEX_FILE)
    return MappedVocabulary(directory)


def test_says_what_the_vocabulary_in_memory_says(tmp_path: Path) -> None:
    mapped, plain = make(tmp_path), Vocabulary(WORDS)
    for _ in range(2):  # the second time from what was found before
        assert mapped.encode(ASKED).tolist() == plain.encode(ASKED).tolist()
    assert mapped.encode(WORDS).tolist() == list(range(len(WORDS)))
    assert [word in mapped for word in ASKED] == [word in plain for word in ASKED]
    assert "words" not in vars(mapped), "nothing so far needs all words"
    assert mapped.decode([3, 5, 0]) == ["cat", "猫", "</s>"]
    assert len(mapped) == len(plain)
    assert mapped.digest == plain.digest
    assert mapped == plain
    assert mapped.words == WORDS
    assert mapped.encode([]).dtype == np.int64


def test_words_with_the_same_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = word_index._hashes
    monkeypatch.setattr(word_index, "_hashes", lambda encoded: plain(encoded) % np.uint64(7))
    mapped = make(tmp_path)
    assert mapped.encode(WORDS).tolist() == list(range(len(WORDS)))
    assert mapped.encode(["w500", "zebra"]).tolist() == [UNK, UNK]


def test_damage(tmp_path: Path) -> None:
    make(tmp_path)
    np.save(tmp_path / INDEX_FILE, np.zeros(3), allow_pickle=False)
    with pytest.raises(UserError, match=r"is damaged: .* cannot be read \(it is not an index of words\); export"):
        MappedVocabulary(tmp_path)
    (tmp_path / INDEX_FILE).unlink()
    with pytest.raises(UserError, match="is damaged"):
        MappedVocabulary(tmp_path)
