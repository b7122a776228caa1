"""From text to a corpus directory: the ids themselves, the splits, and nothing left behind by a failure."""

from __future__ import annotations

import contextlib
import errno
import functools
import gzip
import io
import json
import math
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnce import Corpus, Normaliser, UserError, files, prepare
from bnce.corpus import encoding, store, tally
from bnce.corpus import prepare as prepare_module
from bnce.corpus.prepare import encode_text
from bnce.corpus.sharing import have_sizes
from bnce.corpus.spelling import SpellingModel
from bnce.corpus.vocabulary import Vocabulary
from bnce.text import blocks, intake, shares
from bnce.text.blocks import Block
from bnce.text.shares import Share

TOKENISED = Normaliser(tokens="whitespace", sentences="lines")
TRAIN = "The cat sat. The cat ran!\n\nA dog ran.\n"
VALID = "The dog sat.\n"
TEST = "A bird sang.\n"


def write(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    given = {"train": TRAIN, "valid": VALID, "test": TEST}
    return {name: write(tmp_path, f"{name}.txt", text) for name, text in given.items()}


def many_documents(directory: Path, num_documents: int = 400) -> str:
    documents = (f"Document {n} has word{n % 37} and x{n % 5}.\nAnd a line.\n" for n in range(num_documents))
    return write(directory, "many.txt", "\n".join(documents))


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


class OneByOne(Executor):
    """Runs a task when it is submitted, from its pickle, as it would go over a network."""

    def __init__(self, _: int) -> None:
        pass

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        function, given, named = pickle.loads(pickle.dumps((function, given, named)))
        try:
            future.set_result(pickle.loads(pickle.dumps(function(*given, **named))))
        except Exception as error:
            future.set_exception(error)
        return future


class Elsewhere(ThreadPoolExecutor):
    """Runs tasks where the files of this machine are not."""

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        return super().submit(function, *(Path("/nowhere", *item.parts[1:]) for item in given), **named)


class Spy(OneByOne):
    """Sees what goes over the network; `sees_files` is what workers say of the sources."""

    def __init__(self, sees_files: bool = True) -> None:
        self.sees_files = sees_files
        self.read_by_workers: list[Share] = []
        self.read_here: list[Block] = []

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        if function is have_sizes and not self.sees_files:
            return super().submit(bool)
        if isinstance(function, encoding.Numbering):
            (text,) = given
            (self.read_here if isinstance(text, Block) else self.read_by_workers).append(text)
        return super().submit(function, *given, **named)


class Breaks(ThreadPoolExecutor):
    """Loses its workers with the first block of text."""

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        if isinstance(given[0], Block | Share):
            raise BrokenExecutor
        return super().submit(function, *given, **named)


def test_given_splits(texts: dict[str, str], place: Path) -> None:
    corpus = prepare([texts["train"]], place / "c", valid=texts["valid"], test=texts["test"], min_count=1)
    words = corpus.vocabulary.words
    assert words == ["</s>", "<unk>", ".", "cat", "ran", "the", "!", "a", "dog", "sat"]
    decoded = {name: " ".join(corpus.vocabulary.decode(corpus.split(name))) for name in corpus.statistics}
    assert decoded == {
        "train": "the cat sat . </s> the cat ran ! </s> a dog ran . </s>",
        "valid": "the dog sat . </s>",
        "test": "a <unk> <unk> . </s>",
    }
    assert corpus.target_counts.tolist() == np.bincount(corpus.split("train"), minlength=10).tolist()
    train, test = corpus.statistics["train"], corpus.statistics["test"]
    assert (train.num_tokens, train.num_sentences, train.num_documents, train.num_oov) == (15, 3, 2, 0)
    assert (test.num_tokens, test.num_sentences, test.num_documents, test.num_oov) == (5, 1, 1, 2)
    assert test.unk_rate == 0.5
    assert corpus.statistics == Corpus.open(place / "c").statistics
    assert [path.name for path in place.iterdir()] == ["c"]


def test_vocabulary_is_cut(texts: dict[str, str], place: Path) -> None:
    given = {"valid": texts["valid"], "test": texts["test"]}
    small = prepare([texts["train"]], place / "small", vocab_size=4, **given)
    assert small.vocabulary.words == ["</s>", "<unk>", ".", "cat"]
    assert small.target_counts.tolist() == [3, 8, 2, 2]
    assert small.statistics["train"].num_oov == 8
    frequent = prepare([texts["train"]], place / "frequent", min_count=2, **given)
    assert frequent.vocabulary.words == ["</s>", "<unk>", ".", "cat", "ran", "the"]


def test_frequent_words_come_first_and_ties_by_spelling(place: Path, tmp_path: Path) -> None:
    text = write(tmp_path, "ties.txt", "b the é b the a\n\nthe a 中 é\n")
    corpus = prepare(text, place / "c", valid=text, fraction=0, min_count=1, normaliser=TOKENISED)
    assert corpus.vocabulary.words[2:] == ["the", "a", "b", "é", "中"]
    few = prepare(text, place / "few", valid=text, fraction=0, vocab_size=4, normaliser=TOKENISED)
    assert few.vocabulary.words[2:] == ["the", "a"]


def test_text_cannot_forge_a_sentence_end(place: Path, tmp_path: Path) -> None:
    """Neither does a line without words make a sentence, nor a document without words a document."""
    records = [["a </s> b", "</s>"], ["</s>"], ["  a \t b  ", "", "\u3000c\x85d\xa0"], ["x <unk>"]]
    lines = (json.dumps({"text": "\n".join(document)}) for document in records)
    text = write(tmp_path, "text.jsonl", "".join(f"{line}\n" for line in lines))
    corpus = prepare(text, place / "c", valid=text, fraction=0, min_count=1, normaliser=TOKENISED)
    found = " ".join(corpus.vocabulary.decode(corpus.split("train")))
    assert found == "a <unk> b </s> a b </s> c d </s> x <unk> </s>"
    assert corpus.statistics["train"].num_documents == 3


def test_sentence_lengths_are_counted_by_their_bounds(place: Path, tmp_path: Path) -> None:
    lines = ("w " * length for length in (1, 5, 6, 100, 101, 3000))
    text = write(tmp_path, "long.txt", "\n".join(lines))
    corpus = prepare(text, place / "c", valid=text, fraction=0, normaliser=TOKENISED)
    assert list(corpus.statistics["train"].sentence_lengths) == [2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]


def test_more_words_than_sixteen_bits_can_number(place: Path, tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(70_000)]
    text = write(tmp_path, "many-words.txt", " ".join(words))
    corpus = prepare(text, place / "c", valid=text, fraction=0, min_count=1, normaliser=TOKENISED)
    assert corpus.vocabulary.decode(corpus.split("train")) == [*words, "</s>"]


def test_a_spelling_model_learns_what_was_cut(texts: dict[str, str], place: Path) -> None:
    given = {"valid": texts["valid"], "test": texts["test"]}
    corpus = prepare([texts["train"]], place / "c", vocab_size=4, **given)
    assert corpus.spelling_file is not None
    model = SpellingModel.read(corpus.spelling_file)
    # The words outside as often as they occur, and those of the vocabulary once, because they are few.
    outside = {"ran": 2, "the": 2, "!": 1, "a": 1, "dog": 1, "sat": 1}
    words, counts = [*outside, ".", "cat"], np.array([*outside.values(), 1, 1])
    expected = SpellingModel.train(words, counts).leaving_out(corpus.vocabulary.words)
    assert np.array_equal(model.ngram_N, expected.ngram_N)
    assert np.array_equal(model.count_N, expected.count_N)
    assert model.log_outside == expected.log_outside
    whole = prepare([texts["train"]], place / "whole", min_count=1, **given)
    assert whole.spelling_file is not None
    assert SpellingModel.read(whole.spelling_file).log_probs(["cats"]) > -6 * math.log(257)


def test_given_vocabulary(texts: dict[str, str], place: Path, tmp_path: Path) -> None:
    vocabulary = Path(write(tmp_path, "vocab.txt", "</s>\n<unk>\ndog\nunused\nthe\n"))
    given = {"valid": texts["valid"], "test": texts["test"], "vocabulary_file": vocabulary}
    corpus = prepare([texts["train"]], place / "c", **given)
    assert corpus.vocabulary == Vocabulary.read(vocabulary)
    assert corpus.target_counts.tolist() == [3, 9, 1, 0, 2]
    for setting in ({"vocab_size": 5}, {"min_count": 2}):
        with pytest.raises(UserError, match=r"vocab\.txt' is used as it is: leave out vocab_size"):
            prepare([texts["train"]], place / "d", **given, **setting)


def test_several_sources_are_one_text(texts: dict[str, str], place: Path) -> None:
    corpus = prepare([texts["train"], texts["test"]], place / "c", valid=texts["valid"], fraction=0)
    assert list(corpus.statistics) == ["train", "valid"]
    assert corpus.statistics["train"].num_tokens == 20


def test_one_source_needs_no_list(texts: dict[str, str], place: Path) -> None:
    splits = {"valid": texts["valid"], "test": texts["test"]}
    listed = prepare([texts["train"]], place / "listed", **splits)
    alone = prepare(texts["train"], place / "alone", **splits)
    as_path = prepare(Path(texts["train"]), place / "path", **splits)
    assert listed.statistics == alone.statistics == as_path.statistics


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_same_bytes_whatever_the_blocks_and_workers(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    source = many_documents(tmp_path)
    settings: dict[str, Any] = {"fraction": 0.15, "min_count": 2}
    prepare([source], place / "whole", **settings)
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 1000)
    prepare([source], place / "blocks", num_workers=num_workers, **settings)
    assert files_of(place / "whole") == files_of(place / "blocks")


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ProcessPoolExecutor, OneByOne])
def test_same_bytes_on_any_executor(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[int], Executor]
) -> None:
    source = many_documents(tmp_path)
    prepare([source], place / "here", fraction=0.1, min_count=2)
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 1000)
    monkeypatch.setattr(shares, "SHARE_BYTES", 3000)
    monkeypatch.chdir(place)
    if make is ProcessPoolExecutor:
        # A fork of a process with threads may hang.
        make = functools.partial(ProcessPoolExecutor, mp_context=multiprocessing.get_context("spawn"))
    with make(2) as executor:
        corpus = prepare([source], "there", fraction=0.1, min_count=2, num_workers=2, executor=executor)
        assert executor.submit(len, "It is left open.").result() == 16
    assert files_of(place / "here") == files_of(place / "there")
    assert corpus.directory == Path("there")
    assert {path.name for path in place.iterdir()} == {"here", "there"}


@pytest.fixture
def mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a directory of files of all kinds, some of which can be cut."""
    monkeypatch.setattr(shares, "SHARE_BYTES", 3000)
    directory = tmp_path / "mixture"
    directory.mkdir()
    many_documents(directory)
    write(directory, "lines.txt", "\ufeff" + "".join(f"A line of document {n % 50}.\n" for n in range(1000)))
    write(directory, "windows.txt", "".join(f"Windows {n}.\r\n\r\n" for n in range(500)))
    write(directory, "open.txt", "\n \n\t\n\nIt ends in the middle of\n\n" * 300 + "a line")
    for number in range(30):
        write(directory, f"small{number}.txt", f"Small text {number}.\n")
        write(directory, f"records{number}.jsonl", f'{{"text": "Record {number}."}}\n' * 3)
        packed = gzip.compress(f"Packed text {number}.\n".encode())
        (directory / f"packed{number}.txt.gz").write_bytes(packed)
    return directory


def test_workers_read_what_they_see(mixture: Path, place: Path) -> None:
    settings: dict[str, Any] = {"fraction": 0.15, "min_count": 2}
    local, spied, blind = [], Spy(), Spy(sees_files=False)
    prepare([mixture], place / "here", **settings, progress=lambda *step: local.append(step))
    steps: list[tuple[int, int]] = []
    prepare([mixture], place / "there", **settings, executor=spied, progress=lambda *step: steps.append(step))
    prepare([mixture], place / "sent", **settings, executor=blind)
    assert files_of(place / "here") == files_of(place / "there") == files_of(place / "sent")
    # Only in a text without blank lines nobody knows where a document ends.
    here = b"".join(block.text for block in spied.read_here)
    assert len(here) > 20_000
    assert set(re.sub(rb"[\d\n]", b"", here).replace(b".", b"").split(b"\0")) == {b"A line of document " * 100, b""}
    names = [Path(part.path).name for share in spied.read_by_workers for part in share.parts]
    assert len(names) > len(set(names)) == 93
    assert len(spied.read_by_workers) < 40
    assert blind.read_by_workers == []
    assert steps == sorted(steps)
    assert steps[-1] == local[-1]


def test_errors_are_told_as_if_text_were_read_here(mixture: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mixture)
    good = Path("many.txt").read_bytes()
    wrong = {
        "many.txt": good[:9000] + b"\xff" + good[9000:],
        "windows.txt": b"\n" * 9000,
        "packed7.txt.gz": b"not packed",
        "records3.jsonl": b'{"text": "one"}\n{"body": "two"}\n',
    }
    for name, content in wrong.items():
        before = Path(name).read_bytes()
        Path(name).write_bytes(content)
        told = []
        for executor in (None, Spy()):
            with pytest.raises(UserError) as caught:
                prepare([".", "many.txt"], place / "c", executor=executor)
            told.append(str(caught.value))
        assert told[0] == told[1]
        assert f"'./{name}'" in told[0]
        Path(name).write_bytes(before)
    assert list(place.iterdir()) == []


def test_file_that_changes(mixture: Path, place: Path) -> None:
    class Late(Spy):
        def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
            if isinstance(function, encoding.Numbering) and "small0.txt" in str(given[0]):
                write(mixture, "small0.txt", "Other text.\n")
            return super().submit(function, *given, **named)

    with pytest.raises(UserError, match=r"small0\.txt' has changed, or is another file on another machine"):
        prepare([mixture], place / "c", executor=Late())
    assert list(place.iterdir()) == []


def test_tokenised_text_is_noticed_wherever_it_is_read(mixture: Path, place: Path) -> None:
    told: list[str] = []
    for name in ("many.txt", "small0.txt", "lines.txt"):
        write(mixture, name, (mixture / name).read_text().replace(" ", " <unk> @-@ "))
    prepare([mixture], place / "here", notice=told.append)
    prepare([mixture], place / "there", notice=told.append, executor=Spy())
    assert "looks tokenised" in told[0]
    assert told[: len(told) // 2] == told[len(told) // 2 :]


def test_late_task_leaves_nothing(place: Path) -> None:
    """A worker that was given up, or that nobody could stop, finds no place for a file any more."""
    (block,) = blocks.gather([["a", "b"]], "train")
    number = encoding.Numbering(TOKENISED, blocks.Cut(1, {}), place / "scratch", True, "text", "strict")
    with contextlib.suppress(ZeroDivisionError), prepare_module._scratch(place) as scratch:
        number(block)
        assert len(list(scratch.iterdir())) == 1
        raise ZeroDivisionError
    with pytest.raises(FileNotFoundError):
        number(block)


def test_executor_on_another_disk(texts: dict[str, str], place: Path) -> None:
    given = {"valid": texts["valid"], "test": texts["test"]}
    with Elsewhere() as executor, pytest.raises(UserError) as caught:
        prepare([texts["train"]], place / "c", executor=executor, **given)
    assert str(caught.value) == (
        f"A worker does not see the directory '/nowhere{place}' as this machine does: the output must be in a "
        "directory that all workers share, under the same path."
    )
    assert list(place.iterdir()) == []


def test_executor_that_breaks(texts: dict[str, str], place: Path) -> None:
    with Breaks() as executor, pytest.raises(UserError, match="A worker process died"):
        prepare([texts["train"]], place / "c", valid=texts["valid"], test=texts["test"], executor=executor)
    assert list(place.iterdir()) == []


def test_block_that_was_lost_on_the_way(texts: dict[str, str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared disk that has less than was written must not pass for text."""
    stored = encoding.Numbering.store

    def number(*given: Any, **named: Any) -> Any:
        counted = stored(*given, **named)
        path = counted.stored[0].path
        os.truncate(path, path.stat().st_size - 2)
        return counted

    monkeypatch.setattr(encoding.Numbering, "store", number)
    with pytest.raises(UserError, match="is shorter than it was written"):
        prepare([texts["train"]], place / "c", valid=texts["valid"], test=texts["test"])
    assert list(place.iterdir()) == []


def test_same_bytes_when_counts_go_through_the_disk(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = many_documents(tmp_path)
    prepare([source], place / "held", vocab_size=25)
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 1000)
    monkeypatch.setattr(tally.Tally.__init__, "__defaults__", (100,))
    runs: list[int] = []
    merged = tally.Tally._merged
    monkeypatch.setattr(tally.Tally, "_merged", lambda self: (runs.append(len(self._runs)), merged(self))[1])
    prepare([source], place / "spilled", vocab_size=25)
    assert runs[0] > 3
    assert files_of(place / "held") == files_of(place / "spilled")


def test_counts_add_up(tmp_path: Path, place: Path) -> None:
    corpus = prepare([many_documents(tmp_path)], place / "c", vocab_size=25)
    for name, split in corpus.statistics.items():
        ids = corpus.split(name)
        assert split.num_tokens == len(ids)
        assert split.num_sentences == sum(split.sentence_lengths) == np.count_nonzero(ids == 0)
        assert split.num_oov == np.count_nonzero(ids == 1)
    assert corpus.target_counts.tolist() == np.bincount(corpus.split("train"), minlength=25).tolist()
    everything = prepare([many_documents(tmp_path)], place / "all", min_count=1)
    assert corpus.num_types == everything.num_types == len(everything.vocabulary) - 2


def test_killed_run_leaves_nothing_that_matters(tmp_path: Path, texts: dict[str, str]) -> None:
    """Its processes end with it, no corpus is in place, and the next run clears up."""
    place = tmp_path / "place"
    command = [sys.executable, "-m", "bnce", "prepare", "-", "--out", str(place / "c"), "--workers", "2"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as run:
        assert run.stdin is not None
        run.stdin.write(b"some words and more of them\n\n" * 2**19)
        run.stdin.flush()
        wait_until(lambda: list(place.glob(".c.*/scratch/*.numbers")) or run.poll() is not None)
        listed = Path(f"/proc/{run.pid}/task").glob("*/children")  # any thread may have started them
        children = " ".join(path.read_text() for path in listed).split()
        os.kill(run.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            run.stdin.close()
    assert [path.name for path in place.iterdir()] == [f".c.{run.pid}.partial"]
    assert children
    wait_until(lambda: not any(is_running(int(child)) for child in children))
    alive = place / f".c.{os.getppid()}.partial"
    other = place / ".cc.1.partial"
    alive.mkdir()
    other.mkdir()
    with files.held(alive):
        prepare([texts["train"]], place / "c", valid=texts["valid"], test=texts["test"])
    assert {path.name for path in place.iterdir()} == {"c", alive.name, other.name}


def wait_until(happens: Callable[[], object]) -> None:
    """Wait as long as a test may take."""
    while not happens():
        time.sleep(0.02)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_cut_takes_whole_documents(tmp_path: Path, place: Path) -> None:
    source = many_documents(tmp_path)
    one = prepare([source], place / "one", fraction=0.15)
    again = prepare([source], place / "again", fraction=0.15)
    other = prepare([source], place / "other", fraction=0.15, seed=2)
    assert files_of(one.directory) == files_of(again.directory)
    assert one.split("valid").tolist() != other.split("valid").tolist()
    assert sum(split.num_documents for split in one.statistics.values()) == 400
    assert 35 < one.statistics["valid"].num_documents < 85
    assert 35 < one.statistics["test"].num_documents < 85
    assert all(split.num_sentences == 2 * split.num_documents for split in one.statistics.values())


def test_standard_input_is_read_once(place: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TRAIN.encode())))
    piped = prepare(["-"], place / "piped", valid=texts["valid"], test=texts["test"])
    read = prepare([texts["train"]], place / "read", valid=texts["valid"], test=texts["test"])
    assert files_of(piped.directory) == files_of(read.directory)


def test_docstrings(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        write(tmp_path, f"module{number:02}.py", f'"""Module {number}.\n\nIt is\nwrapped. Twice.\n"""\n')
    modules = tuple(sorted(tmp_path.glob("*.py")))
    monkeypatch.setattr(intake, "installed_modules", lambda: modules)
    steps: list[tuple[int, int]] = []
    corpus = prepare(
        ["docstrings"],
        place / "c",
        fraction=0.2,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert sum(split.num_documents for split in corpus.statistics.values()) == 40
    assert sum(split.num_sentences for split in corpus.statistics.values()) == 120
    assert steps[-1][0] == steps[-1][1] == sum(path.stat().st_size for path in modules)


def test_progress_ends_at_the_whole(texts: dict[str, str], place: Path) -> None:
    steps: list[tuple[int, int]] = []
    given = {"valid": texts["valid"], "test": texts["test"]}
    prepare([texts["train"]], place / "c", **given, progress=lambda *step: steps.append(step))
    total = sum(map(len, (TRAIN, VALID, TEST)))
    assert steps[-1] == (total, total)
    assert steps == sorted(steps)


def test_text_is_encoded_as_a_split_would_be(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = many_documents(tmp_path)
    corpus = prepare([source], place / "c", valid=source, fraction=0, vocab_size=30)
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 1000)
    ids, statistics = encode_text(source, corpus.vocabulary, corpus.normaliser)
    assert ids.tolist() == corpus.split("valid").tolist()
    assert ids.dtype == corpus.split("valid").dtype
    assert statistics == corpus.statistics["valid"]
    assert statistics.num_oov > 0
    with pytest.raises(UserError, match="has no words"):
        encode_text(write(tmp_path, "ends.txt", "</s>\n"), corpus.vocabulary, TOKENISED)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    tokens=st.sampled_from(["words", "whitespace"]),
    sentences=st.sampled_from(["split", "lines"]),
    max_size=st.sampled_from([None, 3, 5]),
)
def test_any_text(tmp_path: Path, text: str, tokens: str, sentences: str, max_size: int | None) -> None:
    normaliser = Normaliser(lowercase=False, tokens=tokens, sentences=sentences)
    source = write(tmp_path, "any.txt", f"word\n{text}")
    expected = []
    for line in f"word\n{text}".split("\n"):
        for sentence in normaliser(line):
            expected += [*sentence, "</s>"]
    out = tmp_path / f"corpus{len(list(tmp_path.iterdir()))}"
    sizes = {"vocab_size": max_size, "min_count": 1}
    corpus = prepare([source], out, valid=source, fraction=0, normaliser=normaliser, **sizes)
    known = [word if word in corpus.vocabulary else "<unk>" for word in expected]
    assert corpus.vocabulary.decode(corpus.split("train")) == known
    assert corpus.statistics["train"].num_oov == known.count("<unk>")
    assert corpus.statistics["train"].num_sentences == expected.count("</s>")
    assert corpus.target_counts.sum() == len(expected)
    assert max_size is not None or known == expected


def test_bad_text_in_any_split(texts: dict[str, str], place: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\nnot \xff fine\n")
    for split in ("valid", "test"):
        with pytest.raises(UserError, match=r"bad\.txt', line 2 has invalid UTF-8"):
            prepare([texts["train"]], place / "c", **{split: str(bad)})
    assert list(place.iterdir()) == []
    corpus = prepare([str(bad)], place / "c", valid=texts["valid"], fraction=0, errors="replace", min_count=1)
    assert "\ufffd" in corpus.vocabulary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 2}, "A vocabulary of 2 words is too small: give at least 3"),
        ({"min_count": 0}, "The minimal count is 0: it must be 1 or more"),
        ({"min_count": 9999}, "No word occurs at least 9999 times"),
        ({"num_workers": 0}, "The number of workers is 0"),
        (
            {"fraction": 0.5},
            "The fraction of documents for each split is 0.5: it must be at least 0 and",
        ),
        ({"fraction": 1.0, "valid": "v.txt"}, "for each split is 1: it must be at least 0 and less than 1"),
        ({"fraction": -0.1}, "for each split is -0.1"),
        ({"fraction": float("nan")}, "for each split is nan"),
        ({"fraction": 0.0}, "a fraction of 0 gives none to valid: raise fraction"),
        ({"fraction": 1e-9}, "a fraction of 1e-09 gives none to valid"),
        ({"fraction": 0.499999}, "400 documents and none is left for training"),
        ({"errors": "ignore"}, "'ignore': choose one of strict, replace"),
        ({"valid": "nowhere.txt"}, "There is no file 'nowhere.txt'"),
        ({"vocabulary_file": Path("nowhere.txt")}, "There is no file 'nowhere.txt'"),
    ],
)
def test_bad_settings(tmp_path: Path, place: Path, settings: dict[str, Any], message: str) -> None:
    source = many_documents(tmp_path)
    with pytest.raises(UserError) as caught:
        prepare([source], place / "c", **{"fraction": 0.2, **settings})
    assert message in str(caught.value)
    assert list(place.iterdir()) == []


def test_wrong_paths_are_found_before_anything_is_made(texts: dict[str, str], place: Path) -> None:
    new = place / "not" / "there" / "yet"
    for sources, splits in (["nowhere.txt"], {}), ([texts["train"]], {"test": "nowhere.txt"}), ([], {}):
        with pytest.raises(UserError, match=r"no file|no text"):
            prepare(sources, new, **splits)
    with pytest.raises(UserError, match="'ignore'"):
        prepare([texts["train"]], new, errors="ignore")
    assert list(place.iterdir()) == []


def test_tokenised_split_without_words(texts: dict[str, str], place: Path, tmp_path: Path) -> None:
    ends = write(tmp_path, "ends.txt", "</s>\n</s>\n")
    with pytest.raises(UserError, match=r"ends\.txt' has no words for valid"):
        prepare([texts["train"]], place / "c", valid=ends, fraction=0, normaliser=TOKENISED)
    with pytest.raises(UserError, match="0 documents and none is left for training"):
        prepare([ends], place / "c", valid=texts["valid"], fraction=0, normaliser=TOKENISED)
    assert list(place.iterdir()) == []


def test_existing_output_is_kept(texts: dict[str, str], place: Path) -> None:
    (place / "c").mkdir()
    (place / "c" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        prepare([texts["train"]], place / "c", valid=texts["valid"], test=texts["test"])
    assert files_of(place / "c") == {"mine.txt": b"mine"}
    with pytest.raises(UserError, match="is not a new directory"):
        prepare([texts["train"]], Path("."), valid=texts["valid"], test=texts["test"])


class FullDisk(io.BytesIO):
    def write(self, _: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("module", [encoding, store])
def test_full_disk_leaves_nothing(
    texts: dict[str, str], place: Path, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    def open_on_full_disk(path: Path, mode: str) -> Any:
        return open(path, mode) if mode == "rb" else FullDisk()

    monkeypatch.setattr(module, "open", open_on_full_disk, raising=False)
    with pytest.raises(UserError, match="disk is full"):
        prepare([texts["train"]], place / "c", valid=texts["valid"], test=texts["test"])
    assert list(place.iterdir()) == []
