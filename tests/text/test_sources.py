"""Lines and documents of files, and every file that is none."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnce import UserError
from bnce.text import sources, unpack
from bnce.text.sources import expand_sources, read_documents, read_lines, unpacked_bytes


def write(directory: Path, content: bytes, name: str = "text.txt") -> str:
    path = directory / name
    path.write_bytes(content)
    return str(path)


def refusal(path: str, errors: str = "strict") -> str:
    with pytest.raises(UserError) as caught:
        list(read_lines(path, errors))
    assert path in str(caught.value)
    return str(caught.value)


def test_lines_end_at_newlines_and_nowhere_else(tmp_path: Path) -> None:
    text = "one\r\ntwo\x85still two\u2028and\x0bon\x0c\n\nlone\rreturn\nlast"
    assert list(read_lines(write(tmp_path, text.encode()))) == [
        "one",
        "two\x85still two\u2028and\x0bon\x0c",
        "",
        "lone\rreturn",
        "last",
    ]


def test_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path, b"\xef\xbb\xbfword\n\xef\xbb\xbfkept\n"))) == ["word", "\ufeffkept"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n\r\0\ufeff", exclude_categories=["Cs"]))),
    ending=st.sampled_from(["\n", "\r\n"]),
    chunk_bytes=st.integers(1, 9),
)
def test_chunks_leave_no_seam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], ending: str, chunk_bytes: int
) -> None:
    monkeypatch.setattr(unpack, "CHUNK_BYTES", chunk_bytes)
    lines = [*lines, "end"]
    path = write(tmp_path, ending.join(lines).encode())
    assert list(read_lines(path)) == lines


@pytest.mark.parametrize("chunk_bytes", [3, 2**20])
@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"good\nbad \xff here\n", ("line 2", "offset 9", "0xff")),
        (b"\xef\xbb\xbfgood\n\xc3\n", ("line 2", "offset 8", "0xc3")),
        (b"a\nb\n\xe2\x82", ("line 3", "offset 4", "0xe2")),
        (b"a\nb\0c\n", ("line 2", "offset 3", "NUL")),
        (b"a\nb\0c\xff\n", ("line 2", "offset 3", "NUL")),
        (b"\xff\xfea\0b\0", ("line 1", "offset 0", "0xff")),
    ],
)
def test_bad_bytes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, where: tuple[str, ...], chunk_bytes: int
) -> None:
    monkeypatch.setattr(unpack, "CHUNK_BYTES", chunk_bytes)
    message = refusal(write(tmp_path, content))
    assert all(part in message for part in (*where, "errors='replace'"))


def test_bad_bytes_are_replaced_on_request(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path, b"a\xffb\nc\0d\n"), "replace")) == ["a\ufffdb", "c\ufffdd"]


def test_unknown_errors_value(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'ignore': choose one of strict, replace"):
        list(read_lines(write(tmp_path, b"a"), "ignore"))


def test_line_of_100_megabytes_is_refused_without_being_held(tmp_path: Path) -> None:
    path = write(tmp_path, b"short\n" + b"word " * (20 * 2**20))
    tracemalloc.start()
    message = refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "line 2 is longer than 16 MiB" in message
    assert peak < 4 * sources.MAX_LINE_BYTES


@pytest.mark.parametrize("chunk_bytes", [1, 4, 10])
def test_longest_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(unpack, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 10)
    assert list(read_lines(write(tmp_path, b"a\n" + b"b" * 10 + b"\nc"))) == ["a", "b" * 10, "c"]
    assert "line 2" in refusal(write(tmp_path, b"a\n" + b"b" * 11 + b"\nc"))
    assert "line 2" in refusal(write(tmp_path, b"a\n" + b"b" * 11))


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t\r\n", b"\xef\xbb\xbf"])
def test_file_without_words(tmp_path: Path, content: bytes) -> None:
    assert "has no words" in refusal(write(tmp_path, content))


def test_file_that_is_none(tmp_path: Path) -> None:
    assert "no file" in refusal(str(tmp_path / "missing.txt"))
    assert "directory" in refusal(str(tmp_path))
    path = write(tmp_path, b"secret")
    os.chmod(path, 0)
    if not os.access(path, os.R_OK):
        assert "cannot be read" in refusal(path)


@pytest.mark.parametrize("name", ["text.gz", "text.xz", "text.bz2", "text.zst", "TEXT.GZ"])
def test_packed_file_that_is_not(tmp_path: Path, name: str) -> None:
    assert "damaged" in refusal(write(tmp_path, b"plain text\n", name))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped\nwords\n")))
    assert list(read_lines("-")) == ["piped", "words"]
    with pytest.raises(UserError, match="Standard input has no words"):
        list(read_lines("-"))


def test_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="Standard input is closed: give a file, or pipe text into the command"):
        list(read_lines("-"))


def test_progress_adds_up_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "CHUNK_BYTES", 16)
    path = write(tmp_path, b"some words\n" * 10)
    steps: list[int] = []
    list(read_lines(path, advance=steps.append))
    assert sum(steps) == sources.source_bytes(path) == 110
    assert len(steps) > 5


def test_documents_end_at_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path, b"\na\nb\n\n \t\nc\n\n\n")
    assert list(read_documents(path)) == [["a", "b"], ["c"]]


def test_documents_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, b"line\n" * 250)
    assert [len(document) for document in read_documents(path)] == [100, 100, 50]
    monkeypatch.setattr(sources, "MAX_DOCUMENT_CHARACTERS", 100)
    assert [len(document) for document in read_documents(path)] == [25] * 10


def test_directories_and_patterns_become_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a/2.txt", "a/10.txt", "a/deep/x.txt.gz", "a/.hidden", ".git/config", "[odd].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("words")
    assert expand_sources(["b.txt", "a", "-"]) == ["b.txt", "a/10.txt", "a/2.txt", "a/deep/x.txt.gz", "-"]
    assert expand_sources(["*.txt"]) == ["[odd].txt", "b.txt"]
    assert expand_sources(["**/*.txt"]) == ["[odd].txt", "a/10.txt", "a/2.txt", "b.txt"]
    # A file of that very name is meant before a pattern is.
    assert expand_sources(["[odd].txt"]) == ["[odd].txt"]
    assert expand_sources(["missing.txt"]) == ["missing.txt"]
    with pytest.raises(UserError, match=r"No file matches the pattern 'x\*\.txt'"):
        expand_sources(["x*.txt"])
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="The directory 'none' has no files"):
        expand_sources(["none"])


def test_zip(tmp_path: Path) -> None:
    path = tmp_path / "text.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("d")
        archive.writestr("d/text.txt", "some\nwords\n" * 1000)
    assert len(list(read_lines(str(path)))) == 2000
    assert unpacked_bytes(str(path)) == 11_000
    steps: list[int] = []
    list(read_lines(str(path), advance=steps.append))
    assert 0 < sum(steps) <= path.stat().st_size
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)
    assert "damaged" in refusal(str(path))


def test_zip_of_several(tmp_path: Path) -> None:
    path = tmp_path / "text.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("d/one.txt", "first\n")
        archive.writestr("two.txt", "second\n")
    assert "holds 2 files" in refusal(str(path))
    assert list(read_lines(str(path), member="one.txt")) == ["first"]
    with pytest.raises(UserError, match=r"holds 0 files named three\.txt"):
        list(read_lines(str(path), member="three.txt"))


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2"])
def test_unpacked_bytes(tmp_path: Path, ending: str) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[ending]
    assert unpacked_bytes(write(tmp_path, pack(b"word\n" * 3000), f"text.txt{ending}")) == 15_000
