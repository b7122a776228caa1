"""Words cut into pieces: whatever the text is it comes back, and both kinds of corpus count the same text."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import END, UNK

from bnce import Corpus, Normaliser, UserError, prepare
from bnce.corpus import piece_learning, pieces
from bnce.corpus.piece_learning import MAX_PIECE_LETTERS, MIN_PIECES, learn_pieces
from bnce.corpus.pieces import PieceVocabulary, read_pieces
from bnce.corpus.prepare import encode_text
from bnce.corpus.vocabulary import Vocabulary, WordIds
from bnce.machine.packages import MissingPackageError
from bnce.text import blocks

PLAIN = Normaliser(lowercase=False, tokens="whitespace", sentences="lines")
TEXT = "".join(f"the lower newer lowest newest naïve wide{'r' * (n % 3)} 東京 x</s> <unk> w{n}\n\n" for n in range(60))


@pytest.fixture(scope="module")
def vocabulary() -> PieceVocabulary:
    counts = {"the": 990, "lower": 40, "lowest": 30, "newer": 30, "newest": 25, "東京": 20, "naïve": 9}
    counts |= {f"{letter}{special}": 9 for letter in "abcdefghxyz" for special in ("<unk>", "</s>")}
    return learn_pieces(list(counts), np.array(list(counts.values())), 300)


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda word: word.split() == [word])


@given(st.lists(words))
def test_any_words_come_back_from_their_pieces(vocabulary: PieceVocabulary, words: list[str]) -> None:
    found = vocabulary.encode_each(words)
    assert vocabulary.spell(found.ids.tolist()) == words
    assert vocabulary.count_words(found.ids) == len(words)
    assert found.lengths.sum() == len(found.ids)
    # The first piece of a word begins one, and no other does.
    assert (
        np.flatnonzero(vocabulary.starts_word[found.ids]).tolist()
        == (np.cumsum(found.lengths) - found.lengths).tolist()
    )
    if UNK not in found.ids and END not in found.ids:
        assert vocabulary.count_bytes(found.ids) == sum(len(word.encode()) + 1 for word in words)


def test_specials_are_one_piece_and_no_piece_of_a_word_spells_one(vocabulary: PieceVocabulary) -> None:
    assert vocabulary.encode(["</s>", "<unk>"]).tolist() == [END, UNK]
    assert UNK not in vocabulary.encode(["x<unk>", "x</s>"])
    assert vocabulary.encode(["no word", "", "\ud800"]).tolist()[:2] == [UNK, UNK]


def test_frequent_words_are_few_pieces_and_come_first(vocabulary: PieceVocabulary) -> None:
    assert vocabulary.encode_each(["the", "lower", "qzj"]).lengths.tolist() == [1, 1, 4]
    assert vocabulary.words[2] == "Ġthe"


def test_others_open_the_same_rules(vocabulary: PieceVocabulary) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(vocabulary.rules)
    assert tokenizer.encode(" the lowest naïve").ids == vocabulary.encode(["the", "lowest", "naïve"]).tolist()
    assert tokenizer.decode(tokenizer.encode(" the 東京").ids) == " the 東京"


def test_long_words_are_not_kept_in_memory(vocabulary: PieceVocabulary) -> None:
    tracemalloc.start()
    try:
        for letter in "xyz":
            vocabulary.encode([letter * 50_000])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100_000


def test_threads_cut_words_at_the_same_time(vocabulary: PieceVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's do, while the words that are kept are forgotten."""
    monkeypatch.setattr(pieces, "_CACHED_WORDS", 1)
    texts = [[f"{number}x{word}" for word in range(30)] for number in range(2)]
    expected = [vocabulary.encode(text).tolist() for text in texts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(lambda text: vocabulary.encode(text).tolist(), texts * 100))
    finally:
        sys.setswitchinterval(interval)
    assert found == expected * 100


def test_pieces_are_counted_up_to_a_number(vocabulary: PieceVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["the", "xq", "東京", "<unk>", "lowest"]
    number = len(vocabulary.encode(words))
    for most in range(number + 2):
        counted = vocabulary.count_ids(words, most)
        assert counted == number if most >= number else most < counted <= number

    def fail(word: str) -> str:
        raise AssertionError(f"cut {len(word)} letters")

    monkeypatch.setattr(pieces, "letters", fail)
    assert 100 < vocabulary.count_ids(["x" * 10_000], 100) <= 10_001


def test_numbers_of_words_become_ids() -> None:
    found = WordIds(np.array([10, 20, 21, 30, 31, 32]), np.array([1, 2, 3]))
    assert found.expand(np.array([2, 0, 1, 1])).tolist() == [30, 31, 32, 10, 20, 21, 20, 21]
    assert found.expand(np.zeros(0, dtype=np.int64)).tolist() == []


def test_a_large_text_is_learned_from_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece_learning, "MAX_LEARNED_WORDS", 100)
    fed = "".join(piece_learning._feed(["a", "b", "c"], np.array([5000, 3000, 2000]))).split()
    assert [fed.count(f"Ġ{word}") for word in "abc"] == [50, 30, 20]


def test_blocks_and_workers_do_not_matter(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = prepare([source], tmp_path / "words", vocab_size=8).directory / "vocab.txt"
    settings: dict[str, Any] = {"bpe": True, "vocab_size": 300, "known_words": known}
    prepare([source], tmp_path / "whole", **settings)
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 500)
    for num_workers in (1, 2):
        prepare([source], tmp_path / f"{num_workers}", num_workers=num_workers, **settings)
        assert files_of(tmp_path / f"{num_workers}") == files_of(tmp_path / "whole")


def test_pieces_are_learned_from_the_training_text_alone(tmp_path: Path, source: str) -> None:
    other = tmp_path / "other.txt"
    other.write_text("quite other words\n" * 99, encoding="utf-8")
    texts = {"valid": str(other), "test": str(other)}
    corpus = prepare([source], tmp_path / "corpus", bpe=True, vocab_size=280, normaliser=PLAIN, **texts)
    counts = Counter(word for word in TEXT.split() if word != "<unk>")
    words = sorted(counts, key=lambda word: (-counts[word], word))
    expected = learn_pieces(words, np.array([counts[word] for word in words]), 280)
    assert corpus.vocabulary == expected
    assert (corpus.directory / "pieces.json").read_text(encoding="utf-8") == expected.rules


def test_a_corpus_of_pieces_spells_the_text(tmp_path: Path, source: str) -> None:
    corpus = prepare(
        [source], tmp_path / "corpus", bpe=True, vocab_size=300, normaliser=PLAIN, valid=source, test=source
    )
    ids = corpus.split("test")
    assert " ".join(corpus.vocabulary.spell(ids.tolist())).split(" </s>")[:-1] == [
        line if number == 0 else f" {line}" for number, line in enumerate(TEXT.split("\n\n")[:-1])
    ]
    statistics = corpus.statistics["test"]
    assert statistics.num_tokens == len(ids) > statistics.num_words == len(TEXT.split()) + 60
    assert statistics.num_bytes == len(TEXT.encode()) - 60  # without the empty lines
    assert statistics.num_oov == 60
    assert np.array_equal(corpus.target_counts, np.bincount(corpus.split("train"), minlength=len(corpus.vocabulary)))
    assert corpus.spelling_file is None  # pieces spell every word


def test_words_and_pieces_of_the_same_words_count_the_same_text(tmp_path: Path, source: str) -> None:
    of_words = prepare([source], tmp_path / "words", vocab_size=8, normaliser=PLAIN)
    known = tmp_path / "words" / "vocab.txt"
    of_pieces = prepare([source], tmp_path / "pieces", bpe=True, vocab_size=300, normaliser=PLAIN, known_words=known)
    for name, split in of_words.statistics.items():
        other = of_pieces.statistics[name]
        assert (split.num_words, split.num_bytes, split.num_oov) == (other.num_words, other.num_bytes, other.num_oov)
        assert split.num_oov > 0
        assert split.num_tokens == split.num_words
        spelt = of_pieces.vocabulary.spell(of_pieces.split(name).tolist())
        assert spelt == of_words.vocabulary.spell(of_words.split(name).tolist())
    # A text that comes later is read in the same way.
    for corpus in (of_words, Corpus.open(tmp_path / "pieces")):
        ids, statistics = encode_text(source, corpus.vocabulary, PLAIN)
        assert (statistics.num_words, statistics.num_bytes) == (len(TEXT.split()) + 60, len(TEXT.encode()) - 60)
        assert corpus.vocabulary.spell(ids.tolist())[:3] == ["the", "lower", "newer"]


def test_the_first_words_are_the_same_text(tmp_path: Path, source: str) -> None:
    corpora = [
        prepare([source], tmp_path / "words", min_count=1, normaliser=PLAIN),
        prepare([source], tmp_path / "pieces", bpe=True, vocab_size=300, normaliser=PLAIN),
    ]
    parts = [corpus.part("train", max_words=9) for corpus in corpora]
    spelt = [corpus.vocabulary.spell(part.ids.tolist()) for corpus, part in zip(corpora, parts, strict=True)]
    assert spelt[0] == spelt[1]
    assert [(part.num_words, part.num_bytes) for part in parts] == [(9, len(" ".join(spelt[0]).encode()) + 1)] * 2
    assert [corpus.part("train").num_bytes for corpus in corpora] == [corpora[0].statistics["train"].num_bytes] * 2
    # Nobody knows how the unknown words of a part were spelt.
    assert [corpus.part("train", max_words=12).num_bytes for corpus in corpora] == [None, None]


def test_pieces_of_another_corpus_are_used(tmp_path: Path, source: str) -> None:
    first = prepare([source], tmp_path / "first", bpe=True, vocab_size=300)
    second = prepare([source], tmp_path / "second", pieces_file=tmp_path / "first" / "pieces.json")
    assert second.vocabulary == first.vocabulary
    assert files_of(tmp_path / "first") == files_of(tmp_path / "second")


@pytest.mark.parametrize("name", ["pieces.json", "known_words.txt"])
@pytest.mark.parametrize("damage", ["change", "remove"])
def test_damaged_files_are_refused(tmp_path: Path, source: str, name: str, damage: str) -> None:
    known = prepare([source], tmp_path / "words", vocab_size=8).directory / "vocab.txt"
    directory = prepare([source], tmp_path / "pieces", bpe=True, vocab_size=300, known_words=known).directory
    if damage == "remove":
        (directory / name).unlink()
    else:
        (directory / name).write_bytes((directory / name).read_bytes().replace(b"lower", b"lowar"))
    with pytest.raises(UserError, match=rf"is damaged: {name} (has changed since|cannot be read)"):
        Corpus.open(directory)


def test_pieces_that_do_not_fit_are_refused(tmp_path: Path, vocabulary: PieceVocabulary) -> None:
    with pytest.raises(UserError, match=r"does not fit pieces\.json"):
        PieceVocabulary(vocabulary.words[:-1], vocabulary.rules)
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocabulary.words), encoding="utf-8")
    (tmp_path / "pieces.json").write_text(json.dumps({"model": 1}), encoding="utf-8")
    with pytest.raises(UserError, match=r"pieces\.json cannot be read .*: restore the file"):
        PieceVocabulary.read_from(tmp_path)
    with pytest.raises(UserError, match=r"gone\.json' cannot be read"):
        read_pieces(tmp_path / "gone.json", None)


def test_a_file_that_is_no_pieces_json_is_named(tmp_path: Path, vocabulary: PieceVocabulary) -> None:
    few = json.loads(vocabulary.rules)
    few["model"] |= {"vocab": {"</s>": 0, "<unk>": 1, "a": 2, "b": 3, "ab": 4}, "merges": [["a", "b"]]}
    unmarked = json.loads(vocabulary.rules)
    unmarked["added_tokens"] = []
    unmarked["model"]["vocab"] = {"[CLS]": 0, "[SEP]": 1, **dict(list(unmarked["model"]["vocab"].items())[2:])}
    for content in ("the lower\n", '{"vocab": 3}', json.dumps(few), json.dumps(unmarked)):
        (tmp_path / "other.json").write_text(content, encoding="utf-8")
        told = (
            r"other\.json' is not a pieces\.json from 'bnce prepare' \(.*\): give the pieces\.json of a corpus or run"
        )
        with pytest.raises(UserError, match=told):
            read_pieces(tmp_path / "other.json", None)


def test_a_corpus_of_words_ignores_pieces_beside_it(tmp_path: Path, source: str, vocabulary: PieceVocabulary) -> None:
    directory = prepare([source], tmp_path / "words", vocab_size=8).directory
    (directory / "pieces.json").write_text(vocabulary.rules, encoding="utf-8")
    assert type(Corpus.open(directory).vocabulary) is Vocabulary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bpe": True, "vocab_size": MIN_PIECES - 1}, f"A vocabulary of {MIN_PIECES - 1} pieces is too small"),
        ({"bpe": True, "vocab_size": 2**40}, f"A vocabulary of {2**40} pieces is too large"),
        ({"bpe": True, "min_count": 2}, "leave out min_count"),
        ({"bpe": True, "vocabulary_file": "V"}, "leave out min_count and vocabulary_file"),
        ({"known_words": "V"}, "known_words is for pieces"),
        ({"pieces_file": "P", "vocab_size": 300}, "leave out vocab_size"),
    ],
)
def test_settings_of_words_and_pieces_are_kept_apart(
    tmp_path: Path, source: str, vocabulary: PieceVocabulary, settings: dict[str, object], message: str
) -> None:
    Vocabulary(["</s>", "<unk>", "the"]).write(tmp_path / "V")
    (tmp_path / "P").write_text(vocabulary.rules, encoding="utf-8")
    given = {key: tmp_path / value if isinstance(value, str) else value for key, value in settings.items()}
    with pytest.raises(UserError, match=message):
        prepare([source], tmp_path / "corpus", **given)  # type: ignore[arg-type]
    assert not (tmp_path / "corpus").exists()


def test_a_missing_package_is_named(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingPackageError, match=r"needs the package 'tokenizers'.*bnce\[train\]"):
        prepare([source], tmp_path / "corpus", bpe=True)


def test_very_long_words_are_no_pieces() -> None:
    words = ["x" * 30_000 + str(number) for number in range(5)]
    pieces = learn_pieces([*words, "the"], np.array([3] * 5 + [9]), 300)
    assert max(map(len, pieces.words)) <= MAX_PIECE_LETTERS
    assert pieces.spell(pieces.encode([words[0], "the"]).tolist()) == [words[0], "the"]
