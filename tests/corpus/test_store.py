"""The corpus directory: what it gives back, and how it refuses one that is torn."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_corpus import write_ids

from bnce import Corpus, Normaliser, UserError
from bnce.corpus import store
from bnce.corpus.manifest import SplitStatistics, sum_statistics
from bnce.corpus.spelling import SPELLING_FILE, SpellingModel
from bnce.corpus.store import VOCABULARY_FILE, IdsFile, ids_dtype, write_description
from bnce.corpus.vocabulary import Vocabulary
from bnce.files import digest_record

TRAIN = np.array([2, 3, 0, 2, 1, 0])
VALID = np.array([3, 0])

STATISTICS = {
    "train": SplitStatistics(6, 2, 1, 1, (0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1), 12),
    "valid": SplitStatistics(2, 1, 1, 0, (1,) + (0,) * 10, 2),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "corpus"
    place.mkdir()
    vocabulary = Vocabulary(["</s>", "<unk>", "a", "b"])
    hashes = {"train": write_ids(place, "train", TRAIN, 4), "valid": write_ids(place, "valid", VALID, 4)}
    vocabulary.write(place / VOCABULARY_FILE)
    counts = np.bincount(TRAIN, minlength=4)
    write_description(place, vocabulary, Normaliser(lowercase=False), counts, STATISTICS, hashes, num_types=17)
    return place


def change_manifest(directory: Path, change: Callable[[dict], object]) -> None:
    path = directory / "corpus.json"
    record = json.loads(path.read_text())
    change(record)
    if record.pop("sha256", None) is not None:
        record["sha256"] = digest_record(record)
    path.write_text(json.dumps(record))


def test_what_was_written_comes_back(directory: Path) -> None:
    corpus = Corpus.open(directory)
    assert corpus.split("train").tolist() == TRAIN.tolist()
    assert corpus.split("valid").tolist() == VALID.tolist()
    assert corpus.target_counts.tolist() == [2, 1, 2, 1]
    assert corpus.target_counts.dtype == np.int64
    assert corpus.vocabulary.words == ["</s>", "<unk>", "a", "b"]
    assert corpus.normaliser == Normaliser(lowercase=False)
    assert corpus.statistics == STATISTICS
    assert corpus.num_types == 17
    assert corpus.statistics["train"].unk_rate == 1 / 4
    assert corpus.directory == directory


def test_statistics_add_up() -> None:
    parts = [SplitStatistics(5, 2, 1, 1, (2, 0), 9), SplitStatistics(7, 1, 3, 0, (0, 1), 30)]
    assert sum_statistics(parts) == SplitStatistics(12, 3, 4, 1, (2, 1), 39)


@pytest.mark.parametrize("version", [1, 3, 5, "4", None])
def test_an_unknown_format_is_refused(directory: Path, version: object) -> None:
    change_manifest(directory, lambda record: record.update(version=version))
    with pytest.raises(UserError, match=rf"has format version {version!r}, but this program reads 4: prepare it again"):
        Corpus.open(directory)


def test_a_spelling_model_is_compared_with_its_hash(directory: Path) -> None:
    corpus = Corpus.open(directory)
    assert corpus.spelling_file is None
    SpellingModel.train(["zebra"]).write(directory / SPELLING_FILE)
    described = corpus.normaliser, corpus.target_counts, STATISTICS, corpus.manifest.hashes
    write_description(directory, corpus.vocabulary, *described, num_types=17)
    assert Corpus.open(directory).spelling_file == directory / SPELLING_FILE
    SpellingModel.train(["zebras"]).write(directory / SPELLING_FILE)
    with pytest.raises(UserError, match=r"is damaged: spelling\.safetensors has changed since it was written"):
        _ = Corpus.open(directory).spelling_file
    (directory / SPELLING_FILE).unlink()
    with pytest.raises(UserError, match=r"is damaged: spelling\.safetensors cannot be read \(No such file"):
        _ = Corpus.open(directory).spelling_file


def test_ids_may_be_written_piece_by_piece(directory: Path) -> None:
    expected = (directory / "train.npy").read_bytes()
    file = IdsFile(directory, "train", 4)
    for first, last in ((0, 1), (1, 1), (1, 4), (4, 6)):
        file.append(TRAIN[first:last].astype(np.uint16))
    assert file.finish() == hashlib.sha256(expected).hexdigest()
    assert (directory / "train.npy").read_bytes() == expected


def test_ids_are_mapped_not_read(directory: Path) -> None:
    ids = Corpus.open(str(directory)).split("train")
    assert isinstance(ids, np.memmap)
    assert not ids.flags.writeable


@pytest.mark.parametrize(("vocab_size", "dtype"), [(3, "uint16"), (65536, "uint16"), (65537, "int32")])
def test_ids_take_the_room_they_need(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    assert ids_dtype(vocab_size) == dtype
    ids = np.array([0, vocab_size - 1])
    digest = write_ids(tmp_path, "train", ids, vocab_size)
    written = np.load(tmp_path / "train.npy", allow_pickle=False)
    assert written.dtype == dtype
    assert written.tolist() == ids.tolist()
    assert digest == hashlib.sha256((tmp_path / "train.npy").read_bytes()).hexdigest()


def test_unknown_split(directory: Path) -> None:
    with pytest.raises(UserError, match="no split 'test': choose one of train, valid"):
        Corpus.open(directory).split("test")


def test_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a corpus"):
        Corpus.open(tmp_path)
    with pytest.raises(UserError, match="missing' does not exist: check the path"):
        Corpus.open(tmp_path / "missing")
    (tmp_path / "corpus.json").write_text('{"format": "recipe"}')
    with pytest.raises(UserError, match="not of the format bnce-corpus"):
        Corpus.open(tmp_path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def change_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def save_pickle(path: Path) -> None:
    np.save(path, np.array([print], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda place: change_manifest(place, lambda m: m.update(version=99)), "version 99, but this program"),
        (lambda place: change_manifest(place, lambda m: m.pop("splits")), "splits"),
        (lambda place: change_manifest(place, lambda m: m["vocabulary"].pop("size")), "size"),
        (lambda place: change_manifest(place, lambda m: m.update(splits=[1])), "corpus.json"),
        (lambda place: change_manifest(place, lambda m: m["splits"]["valid"].pop("num_oov")), "num_oov"),
        (lambda place: change_manifest(place, lambda m: m["normaliser"].update(tokens="x")), "tokens 'x'"),
        (lambda place: change_manifest(place, lambda m: m.update(dtype="int32")), "int32, not uint16"),
        (lambda place: change_manifest(place, lambda m: m["splits"].pop("train")), "tokens of train"),
        (
            lambda place: change_manifest(place, lambda m: m["splits"].update({"../up": m["splits"]["valid"]})),
            "split '../up'",
        ),
        (lambda place: cut(place / "corpus.json"), "corpus.json cannot be read"),
        (lambda place: cut(place / "train.npy"), "train.npy cannot be read (it is cut short"),
        (lambda place: (place / "valid.npy").write_bytes(b""), "valid.npy cannot be read"),
        (lambda place: (place / "valid.npy").unlink(), "valid.npy cannot be read"),
        (lambda place: save_pickle(place / "valid.npy"), "valid.npy"),
        (lambda place: np.save(place / "valid.npy", VALID), "valid.npy holds (2,) of int64, not (2,) of uint16"),
        (lambda place: shutil.copy(place / "valid.npy", place / "train.npy"), "train.npy holds (2,)"),
        (lambda place: (place / "counts.npy").unlink(), "counts.npy cannot be read"),
        (lambda place: np.save(place / "counts.npy", np.array([2, 1, 1, 2])), "counts.npy has changed"),
        (lambda place: change_text(place / "corpus.json", "lowercase", "uppercase"), "corpus.json has changed"),
        (lambda place: change_text(place / "corpus.json", '"num_documents": 1', '"num_documents": 2'), "has changed"),
        (lambda place: change_text(place / "corpus.json", '"sha256"', '"sha257"'), "corpus.json has changed"),
        (lambda place: (place / "vocab.txt").write_text("</s>\n<unk>\nb\na\n"), "vocab.txt is not"),
        (lambda place: (place / "vocab.txt").unlink(), "vocab.txt"),
    ],
)
def test_torn_corpus(directory: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(directory)
    with pytest.raises(UserError) as caught:
        Corpus.open(directory)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_changed_id_is_found_where_ids_are_asked_for(directory: Path) -> None:
    content = bytearray((directory / "train.npy").read_bytes())
    content[-2] ^= 1
    (directory / "train.npy").write_bytes(content)
    corpus = Corpus.open(directory)
    assert corpus.split("valid").tolist() == VALID.tolist()
    for _ in range(2):
        with pytest.raises(UserError, match=r"train\.npy has changed since it was written; prepare it again\."):
            corpus.split("train")


def test_ids_are_hashed_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    digest_file = store.digest_file
    monkeypatch.setattr(store, "digest_file", lambda path: (hashed.append(path.name), digest_file(path))[1])
    corpus = Corpus.open(directory)
    for _ in range(3):
        corpus.split("train")
    assert hashed == ["counts.npy", "train.npy"]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([2, 3, 0, 2, 4, 0], "train.npy has the id 4, but the last word is 3"),
        ([2, 3, 0, 2, 3, 0], "train.npy has 2 sentence ends and 0 unknown words, but corpus.json says 2 and 1"),
    ],
)
def test_ids_that_no_vocabulary_gives(directory: Path, train: list[int], message: str) -> None:
    digest = write_ids(directory, "train", np.array(train), 4)
    change_manifest(directory, lambda record: record["splits"]["train"].update(sha256=digest))
    with pytest.raises(UserError, match=message):
        Corpus.open(directory).split("train")
