"""Words and their ids."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnce import UserError
from bnce.corpus.vocabulary import END, UNK, Vocabulary

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
WORDS = st.text(LETTERS, min_size=1).filter(lambda word: word.split() == [word] and word not in ("</s>", "<unk>"))


def test_words_that_a_file_could_not_give_back() -> None:
    with pytest.raises(UserError, match="NUL inside"):
        Vocabulary(["</s>", "<unk>", "a\0"])


def test_encode_and_decode() -> None:
    vocabulary = Vocabulary(["</s>", "<unk>", "a", "b"])
    ids = vocabulary.encode(["b", "nobody", "a", "</s>"])
    assert ids.tolist() == [3, UNK, 2, END]
    assert ids.dtype == "int64"
    assert vocabulary.decode(ids) == ["b", "<unk>", "a", "</s>"]
    assert vocabulary.encode([]).tolist() == []
    assert len(vocabulary) == 4
    assert "a" in vocabulary
    assert "nobody" not in vocabulary


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WORDS, unique=True))
def test_file_gives_the_words_back(tmp_path: Path, words: list[str]) -> None:
    vocabulary = Vocabulary(["</s>", "<unk>", *words])
    path = tmp_path / "vocab.txt"
    vocabulary.write(path)
    again = Vocabulary.read(path)
    assert again == vocabulary
    assert again.decode(again.encode(words)) == words
    assert again.digest == vocabulary.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_digest_tells_vocabularies_apart() -> None:
    one, other = Vocabulary(["</s>", "<unk>", "a", "b"]), Vocabulary(["</s>", "<unk>", "b", "a"])
    assert one != other
    assert one.digest != other.digest


def test_file_from_another_system(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf</s>\r\n<unk>\r\nw\xc3\xb6rd")
    assert Vocabulary.read(path).words == ["</s>", "<unk>", "wörd"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<unk>\n</s>\na\n", "has '<unk>' on line 1: its first two lines must be </s> and <unk>"),
        ("</s>\na\n", "has 'a' on line 2"),
        ("</s>\n", "has nothing on line 2"),
        ("</s>\n<unk>\na\nb\na\n", "has 'a' both on line 3 and on line 5"),
        ("</s>\n<unk>\n<unk>\n", "has '<unk>' both on line 2 and on line 3"),
        ("</s>\n<unk>\na\n\nb\n", "no word on line 4"),
        ("</s>\n<unk>\nnew york\n", "a blank or NUL inside 'new york' on line 3"),
        ("</s>\n<unk>\na 12\n", "line 3"),
        ("", "has no words"),
    ],
)
def test_bad_files_are_explained(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=r"vocab\.txt") as caught:
        Vocabulary.read(path)
    assert message in str(caught.value)
