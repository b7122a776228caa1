"""The One Billion Word Benchmark: shards in any order, their splits, and every part that may be missing."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path

import pytest

from bnce import UserError, prepare
from bnce.text import billion_words, unpack
from bnce.text.billion_words import read_shards
from tests.text.published import RELEASE, shards, write_directory, write_tar


def shuffled() -> list[tuple[str, bytes]]:
    files = list(shards().items())
    random.Random(3).shuffle(files)
    return files


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        list(read_shards(str(path)))
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_splits(tmp_path: Path) -> None:
    path = write_directory(tmp_path / RELEASE, shards().items())
    documents: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for split, document in read_shards(str(path)):
        documents[split] += document
    assert documents["train"][:3] == ["The word w1 of 1 .", "The end , said Mr. Smith .", "The word w2 of 2 ."]
    assert len(documents["train"]) == 2 * 99
    assert documents["valid"] == [f"The held h{number} ." for number in range(5)]
    assert documents["test"] == [f"The held h{number} ." for number in range(5, 50)]


@pytest.mark.parametrize("name", ["r13.tar.gz", "r13.tgz", "r13.tar"])
def test_order_in_the_tar_does_not_matter(tmp_path: Path, name: str) -> None:
    by_split: dict[str, list[list[str]]] = {}
    for split, document in read_shards(str(write_directory(tmp_path / "unpacked", shards().items()))):
        by_split.setdefault(split, []).append(document)
    for files in (list(shards().items()), shuffled(), list(reversed(shards().items()))):
        from_tar: dict[str, list[list[str]]] = {}
        for split, document in read_shards(str(write_tar(tmp_path / name, files))):
            from_tar.setdefault(split, []).append(document)
        assert from_tar == by_split


def test_only_shards_that_come_too_early_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    pack = billion_words.open_packed
    monkeypatch.setattr(
        billion_words, "open_packed", lambda file, ending: (waited.append(file.name), pack(file, ending))[1]
    )
    list(read_shards(str(write_tar(tmp_path / "sorted.tar.gz", shards().items()))))
    assert waited == []
    files = list(shards().items())
    files[0], files[2] = files[2], files[0]
    list(read_shards(str(write_tar(tmp_path / "swapped.tar.gz", files))))
    assert waited == ["train-3.zst", "train-2.zst"]


def test_nothing_is_left_in_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(billion_words.tempfile, "tempdir", str(scratch))
    reading = read_shards(str(write_tar(tmp_path / "r13.tar.gz", reversed(shards().items()))))
    next(reading)
    assert list(scratch.iterdir()) != []
    reading.close()
    assert list(scratch.iterdir()) == []


def test_corpus(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    path = write_tar(tmp_path / "r13.tar.gz", shuffled())
    corpus = prepare(["obwb", str(path)], tmp_path / "c", progress=lambda *step: steps.append(step))
    # Words seen three times or more, cased; w1 to w99 once each, "0" to "4" some twenty times.
    assert sorted(corpus.vocabulary.words) == sorted(
        ["</s>", "<unk>", "The", "word", "of", *"01234", ".", "end", ",", "said", "Mr.", "Smith"]
    )
    decoded = corpus.vocabulary.decode(corpus.split("train")[:14])
    assert " ".join(decoded) == "The word <unk> of 1 . </s> The end , said Mr. Smith ."
    assert " ".join(corpus.vocabulary.decode(corpus.split("valid")[:5])) == "The <unk> <unk> . </s>"
    figures = {split: (part.num_tokens, part.num_sentences, part.num_oov) for split, part in corpus.statistics.items()}
    assert figures == {"train": (99 * 15, 198, 99), "valid": (25, 5, 10), "test": (225, 45, 90)}
    assert steps[-1] == (path.stat().st_size, path.stat().st_size)
    again = prepare(["obwb", str(write_directory(tmp_path / "r13", shards().items()))], tmp_path / "d")
    assert again.manifest.hashes == corpus.manifest.hashes
    assert again.vocabulary == corpus.vocabulary


def test_missing_shards_are_named(tmp_path: Path) -> None:
    files = shards()
    del files["training-monolingual.tokenized.shuffled/news.en-00017-of-00100"]
    for number in range(40, 47):
        del files[f"heldout-monolingual.tokenized.shuffled/news.en.heldout-{number:05}-of-00050"]
    for path in (write_tar(tmp_path / "r13.tar.gz", files.items()), write_directory(tmp_path / "r13", files.items())):
        message = refusal(path)
        assert "lacks 8 of the 149 shards" in message
        assert "news.en-00017-of-00100, heldout" in message
        assert "news.en.heldout-00043-of-00050 and 3 more" in message
    with pytest.raises(UserError, match="lacks 8"):
        prepare(["obwb", str(tmp_path / "r13.tar.gz")], tmp_path / "place" / "c")
    assert list((tmp_path / "place").iterdir()) == []


@pytest.mark.parametrize("name", ["r13.tar.gz", "r13.tgz"])
@pytest.mark.parametrize("place", [-8, -1])
def test_the_checksum_after_the_tar_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: int
) -> None:
    # Small, as chunks are beside the release: the last one that the tar needs does not reach the checksum.
    monkeypatch.setattr(unpack, "CHUNK_BYTES", 1024)
    path = write_tar(tmp_path / name, shards().items())
    packed = bytearray(path.read_bytes())
    packed[place] ^= 1  # of the CRC and of the length, both of them behind the tar's own end
    path.write_bytes(packed)
    assert "damaged, incomplete" in refusal(path)
    path.write_bytes(packed[:-8])
    assert "damaged, incomplete" in refusal(path)


def test_what_is_no_release(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "lacks 149" in refusal(tmp_path / "empty")
    assert "no file" in refusal(tmp_path / "missing.tar.gz")
    text = tmp_path / "text.txt"
    text.write_text("words\n")
    assert "neither a directory nor one of .tar" in refusal(text)
    (tmp_path / "text.tar.gz").write_text("words\n" * 1000)
    assert "not what its file extension says" in refusal(tmp_path / "text.tar.gz")
    (tmp_path / "text.tar").write_text("words\n" * 1000)
    assert "not a tar file" in refusal(tmp_path / "text.tar")


def test_damaged_tar(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "r13.tar.gz", shuffled())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "damaged" in refusal(path)
    path.write_bytes(content[:2000] + bytes(100) + content[2100:])
    assert "damaged" in refusal(path)


def test_shard_twice(tmp_path: Path) -> None:
    files = list(shards().items())
    assert "news.en-00001-of-00100 twice" in refusal(write_tar(tmp_path / "r13.tar", [files[0], *files]))


def test_bad_shards(tmp_path: Path) -> None:
    files = shards()
    name = "training-monolingual.tokenized.shuffled/news.en-00002-of-00100"
    for content, message in ((b"", "has no words"), (b"good\nbad \xff\n", "line 2 has invalid UTF-8")):
        files[name] = content
        path = write_tar(tmp_path / "r13.tar", files.items())
        with pytest.raises(UserError, match=message) as caught:
            list(read_shards(str(path)))
        assert name in str(caught.value)


def test_links_in_a_tar_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "r13.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo(f"{RELEASE}/training-monolingual.tokenized.shuffled/news.en-00001-of-00100")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert "lacks 149" in refusal(path)
