"""`bnce fetch` as a person types it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Command, Refused

from bnce.text.fetch import DOWNLOADS, Download
from tests.text.file_server import FileServer, serve
from tests.text.published import dump


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as archive:
        archive.writestr("enwik9", dump())
    with serve(FileServer((tmp_path / "made.zip").read_bytes()), "enwik9.zip") as served:
        monkeypatch.setitem(DOWNLOADS, "ltcb", Download(served.url))
        yield served


def test_fetched_file_is_prepared(bnce: Command, server: FileServer, tmp_path: Path) -> None:
    status, out, err = bnce("fetch", "ltcb", "--cache", tmp_path / "cache")
    assert status == 0
    assert out == f"{tmp_path / 'cache' / 'enwik9.zip'}\n"
    assert "has no published checksum, so it was not checked" in err
    record = bnce("prepare", "ltcb", out.strip(), "--out", tmp_path / "c", "--json", "--workers", 1).json
    assert record["splits"]["train"]["num_documents"] == 28


def test_json_is_one_object(bnce: Command, server: FileServer, tmp_path: Path) -> None:
    bnce("fetch", "ltcb", "--cache", tmp_path)
    outcome = bnce("fetch", "ltcb", "--cache", tmp_path, "--json")
    assert outcome.stderr == ""
    record = outcome.json
    assert list(record) == ["corpus", "path", "bytes", "sha256", "checked"]
    assert record["bytes"] == len(server.content)
    assert record["checked"] == "recorded"


def test_errors_are_one_sentence(refused: Refused, server: FileServer, tmp_path: Path) -> None:
    server.status = 404
    for arguments, message in (
        (("ltcb",), "the server says 404"),
        (("enwik",), "Unknown corpus to fetch 'enwik'"),
        (("ltcb", "--sha256", "12"), "64 hexadecimal digits"),
        (("ltcb", "--from", str(tmp_path / "nowhere")), "no file"),
    ):
        assert message in refused("fetch", *arguments, "--cache", tmp_path / "cache")
