"""Downloads from a server on this machine: whole, broken off, changed meanwhile, damaged, and not there."""

from __future__ import annotations

import hashlib
import http.client
import importlib
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bnce import UserError
from bnce.text import fetch
from bnce.text.fetch import DOWNLOADS, Download
from bnce.text.published import BENCHMARKS
from tests.text.file_server import FileServer, serve

CONTENT = random.Random(5).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME = "corpus.zip"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(fetch, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(fetch, "_CHUNK_BYTES", 10_000)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with serve(FileServer(CONTENT), NAME) as served:
        monkeypatch.setitem(DOWNLOADS, "ltcb", Download(served.url, {NAME: f"sha256:{SHA256}"}))
        yield served


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        fetch.fetch(*arguments, **options)
    return str(caught.value)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_whole_file_once(server: FileServer, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    fetched = fetch.fetch("ltcb", cache=tmp_path / "new" / "cache", progress=lambda *step: steps.append(step))
    assert fetched == (tmp_path / "new" / "cache" / NAME, SHA256, "published")
    assert fetched.path.read_bytes() == CONTENT
    assert steps[-1] == (300_000, 300_000)
    assert steps == sorted(steps)
    again = fetch.fetch("ltcb", cache=tmp_path / "new" / "cache")
    assert again == fetched
    assert server.requests == [0]
    assert names(fetched.path.parent) == [NAME]


def test_cut_connections_are_taken_up_again(server: FileServer, tmp_path: Path) -> None:
    server.cuts = [120_000, 50_000]
    fetched = fetch.fetch("ltcb", cache=tmp_path)
    assert fetched.path.read_bytes() == CONTENT
    assert server.requests == [0, 120_000, 170_000]
    assert names(tmp_path) == [NAME]


def test_a_later_command_goes_on(server: FileServer, tmp_path: Path) -> None:
    server.cuts = [120_000, *[0] * 5]
    message = refusal("ltcb", cache=tmp_path)
    assert "stopped after 120,000 bytes, which are kept (the connection was closed)" in message
    assert "run the same command again" in message
    assert names(tmp_path) == [f"{NAME}.part", f"{NAME}.part.json"]
    server.requests.clear()
    steps: list[tuple[int, int]] = []
    fetched = fetch.fetch("ltcb", cache=tmp_path, progress=lambda *step: steps.append(step))
    assert fetched.path.read_bytes() == CONTENT
    assert server.requests == [120_000]
    assert steps[0][0] > 120_000
    assert steps[-1] == (300_000, 300_000)


@pytest.mark.parametrize("change", ["file", "no ranges", "weak"])
def test_a_part_of_another_file_is_not_used(server: FileServer, tmp_path: Path, change: str) -> None:
    if change == "weak":
        server.etag = 'W/"one"'
    server.content = CONTENT if change != "file" else bytes(300_000)
    server.cuts = [120_000, *[0] * 5]
    refusal("ltcb", cache=tmp_path)
    server.content = CONTENT
    server.cuts = []
    if change == "file":
        server.etag = '"two"'
    if change == "no ranges":
        server.takes_ranges = False
    fetched = fetch.fetch("ltcb", cache=tmp_path)
    assert fetched.path.read_bytes() == CONTENT
    if change == "weak":
        assert set(server.requests) == {0}


@pytest.mark.parametrize(
    ("kept", "url", "requests"),
    [
        (CONTENT, None, [300_000]),
        (CONTENT + b"more", None, [300_004, 0]),
        (b"x" * 1000, "http://elsewhere/", [0]),
    ],
    ids=["complete", "too long", "of another address"],
)
def test_parts_that_were_kept(
    server: FileServer, tmp_path: Path, kept: bytes, url: str | None, requests: list[int]
) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(kept)
    (tmp_path / f"{NAME}.part.json").write_text(json.dumps({"url": url or server.url, "validator": '"one"'}))
    server.has_length = url is None  # which a server need not tell
    assert fetch.fetch("ltcb", cache=tmp_path).path.read_bytes() == CONTENT
    assert server.requests == requests


def test_corrupted_file_is_refused_and_removed(server: FileServer, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"?"
    message = refusal("ltcb", cache=tmp_path)
    assert f"is not the published sha256:{SHA256}. It was removed" in message
    assert names(tmp_path) == []
    server.content = CONTENT
    assert fetch.fetch("ltcb", cache=tmp_path).path.read_bytes() == CONTENT


def test_damaged_cache_is_fetched_again(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"half")
    assert fetch.fetch("ltcb", cache=tmp_path).path.read_bytes() == CONTENT


@pytest.mark.parametrize("status", [404, 403, 503])
def test_server_that_says_no(server: FileServer, tmp_path: Path, status: int) -> None:
    server.status = status
    message = refusal("ltcb", cache=tmp_path)
    assert f"the server says {status}" in message
    assert server.url in message
    assert "a file you have with source" in message
    assert names(tmp_path) == []


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    message = refusal("ltcb", f"http://127.0.0.1:{port}/{NAME}", cache=tmp_path)
    assert "cannot be downloaded" in message
    assert "refused" in message
    assert "check the network" in message
    assert names(tmp_path) == []


def test_mirror_by_its_directory(server: FileServer, tmp_path: Path) -> None:
    fetched = fetch.fetch("ltcb", server.url.removesuffix(NAME), cache=tmp_path)
    assert (fetched.path.name, fetched.checked) == (NAME, "published")


def test_local_file(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / NAME).write_bytes(CONTENT)
    for source in ("mine", f"mine/{NAME}"):
        fetched = fetch.fetch("ltcb", str(tmp_path / source), cache=tmp_path / source.replace("/", "-"))
        assert fetched.path.read_bytes() == CONTENT
        assert fetched.checked == "published"
    (tmp_path / "mine" / NAME).write_bytes(b"other")
    assert "was removed" in refusal("ltcb", str(tmp_path / "mine" / NAME), cache=tmp_path / "c")
    assert (tmp_path / "mine" / NAME).read_bytes() == b"other"
    assert names(tmp_path / "c") == []
    assert server.requests == []
    assert "no file" in refusal("ltcb", str(tmp_path / "missing"), cache=tmp_path)


def test_trust_on_first_use(server: FileServer, tmp_path: Path) -> None:
    """A file nobody has published a sum for is recorded, and must stay what it was."""
    other = server.url.replace(NAME, "corpus.bz2")
    first = fetch.fetch("ltcb", other, cache=tmp_path)
    assert first.checked == "nothing"
    record = tmp_path / "corpus.bz2.sha256"
    assert record.read_text() == f"{SHA256}  corpus.bz2\n"
    assert fetch.fetch("ltcb", other, cache=tmp_path).checked == "recorded"
    first.path.unlink()
    server.content = b"another"
    message = refusal("ltcb", other, cache=tmp_path)
    assert f"remove '{record}' if the file was meant to change" in message


def test_given_sum_goes_first(server: FileServer, tmp_path: Path) -> None:
    server.content = b"my own"
    own = hashlib.sha256(b"my own").hexdigest()
    assert fetch.fetch("ltcb", cache=tmp_path, sha256=own.upper()).checked == "given"
    assert "64 hexadecimal digits" in refusal("ltcb", cache=tmp_path, sha256="abc")


def test_bad_names(tmp_path: Path) -> None:
    assert "'ltbc': choose one of ltcb, obwb, wikitext. Did you mean 'ltcb'?" in refusal("ltbc")
    assert "http or https URL" in refusal("ltcb", "ftp://host/enwik9.zip", cache=tmp_path)
    assert "http or https URL" in refusal("ltcb", "file:///etc/passwd", cache=tmp_path)


def test_cache_that_cannot_be(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Cannot fetch" in refusal("ltcb", cache=tmp_path / "file" / "cache")


def test_full_disk(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: http.client.HTTPResponse, amount: int | None = None) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(http.client.HTTPResponse, "read", read)
    assert "The disk is full" in refusal("ltcb", cache=tmp_path)


def test_without_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert "pip install 'bnce[train]'" in refusal("ltcb", cache=tmp_path)


def test_published_sums_are_whole() -> None:
    """A digit lost in a sum would refuse the right file after an hour's download."""
    lengths = {"md5": 32, "sha1": 40, "sha256": 64}
    sums = [known for download in DOWNLOADS.values() for known in download.hashes.values()]
    assert len(sums) == 4
    for known in sums:
        kind, _, digits = known.partition(":")
        assert len(digits) == lengths[kind]
        assert set(digits) <= set("0123456789abcdef")


def test_a_corpus_has_the_same_name_to_fetch_and_to_prepare(server: FileServer, tmp_path: Path) -> None:
    assert set(DOWNLOADS) == set(BENCHMARKS)
    path = tmp_path / "wikitext-103-v1.zip"
    path.write_bytes(CONTENT)
    for name in ("wikitext", "wikitext-103"):  # and by its name of before
        fetched = fetch.fetch(name, str(path), tmp_path / name, sha256=SHA256)
        assert fetched.path.read_bytes() == CONTENT
