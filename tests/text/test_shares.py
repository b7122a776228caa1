"""Shares of text: together they hold the documents of the files, each once and in order."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnce.text import shares
from bnce.text.shares import Part, Share, count_documents, deal, read_share
from bnce.text.sources import read_documents

LINE = st.sampled_from(["a", "word ü", " ", "", "\r", "x" * 30, "\u2028", "\t"])


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(LINE, min_size=1, max_size=60),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.sampled_from(["", "\n", "\n\n", "z"]),
    share_bytes=st.sampled_from([1, 2, 7, 40]),
    window_bytes=st.sampled_from([1, 3, 1000]),
)
def test_no_document_is_lost_or_cut(
    tmp_path: Path, lines: list[str], end: str, last: str, share_bytes: int, window_bytes: int
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(("\ufeffbegin\n" + end.join(lines) + last).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "SHARE_BYTES", share_bytes)
        patch.setattr(shares, "_WINDOW_BYTES", window_bytes)
        patch.setattr(shares, "_LONGEST_SHARES", 1000)
        found = [Share(None, 0, parts) for parts in deal([str(path)]) if not isinstance(parts, str)]
    expected = list(read_documents(str(path)))
    assert [document for share in found for document in read_share(share, "text", "strict")] == expected
    assert sum(sum(count_documents(share, "text", "strict")) for share in found) == len(expected)
    assert sum(share.num_bytes for share in found) == path.stat().st_size


def test_text_is_cut_at_blank_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "SHARE_BYTES", 10)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("12345678\n\n12345\n\n1\n2\n345\n\nend\n")
    parts = [part for (part,) in deal(["text.txt"])]
    assert [(part.begin, part.end) for part in parts] == [(0, 17), (17, 30)]
    assert parts[0] == Part("text.txt", str(tmp_path / "text.txt"), 0, 17, 30)


def test_files_that_cannot_be_cut_are_dealt_if_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "SHARE_BYTES", 100)
    names = []
    for number in range(40):
        path = tmp_path / f"{number}.gz"
        path.write_bytes(gzip.compress(b"text\n", mtime=0))
        names.append(str(path))
    assert list(deal(names[:3])) == names[:3]
    dealt = list(deal(names))
    assert [part.name for parts in dealt for part in parts if not isinstance(parts, str)] == names
    assert {len(parts) for parts in dealt} <= {4, 40 % 4}
    lines = tmp_path / "lines.txt"
    lines.write_text("a line\n" * 20_000)
    assert list(deal([str(lines)])) == [str(lines)]


def test_what_is_no_file_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("docstrings").write_text("A file of that name is not what is meant.\n")
    Path("empty.txt").touch()
    Path("a.txt").write_text("a\n")
    dealt = list(deal(["a.txt", "-", "docstrings", "a.txt", "empty.txt"]))
    found = [parts if isinstance(parts, str) else [part.name for part in parts] for parts in dealt]
    assert found == [["a.txt"], "-", "docstrings", ["a.txt"], "empty.txt"]
