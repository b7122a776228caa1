"""The published corpora brought to a directory of one's own, checked, and only once.

A download goes on where it was broken off: what has come stays in a `.part` file beside its place. The server is asked
for the rest only of the very same file (If-Range, with its ETag or date); if it has another by now, or cannot send
parts, the download begins anew.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bnce.errors import UserError, argument, unknown_name
from bnce.files import write_text
from bnce.machine.packages import need

Progress = Callable[[int, int], None]

_CHUNK_BYTES = 2**18
_TIMEOUT_SECONDS = 30.0
_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Download:
    """Where a corpus is published, and the checksums that others have published for its files."""

    url: str
    hashes: dict[str, str] = field(default_factory=dict)


_ENWIK9 = "http://mattmahoney.net/dc/enwik9.zip"
_RELEASE = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"

DOWNLOADS = {
    # The unpacked file's is on the publisher's page (mattmahoney.net/dc/textdata.html), the archive's in torchtext.
    "ltcb": Download(
        _ENWIK9,
        {
            "enwik9.zip": "md5:3e773f8a1577fda2e27f871ca17f31fd",
            "enwik9": "sha1:2996e86fb978f93cca8f566cc56998923e7fe581",
        },
    ),
    # In the checksums of TensorFlow Datasets.
    "obwb": Download(
        f"https://www.statmt.org/lm-benchmark/{_RELEASE}",
        {_RELEASE: "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e"},
    ),
    # In torchtext.
    "wikitext": Download(
        "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
        {"wikitext-103-v1.zip": "md5:9ddaacaf6af0710eda8c456decff7832"},
    ),
}

# The name of before, which was another than that of `bnce prepare`.
_FORMER_NAMES = {"wikitext-103": "wikitext"}


class Fetched(NamedTuple):
    """A file in the cache; `checked` says against what: a "published", "given" or "recorded" sum, or "nothing" yet."""

    path: Path
    sha256: str
    checked: str


def fetch(
    name: str,
    source: str | None = None,
    cache: Path | None = None,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Fetched:
    """Bring a corpus into the cache unless it is there, and check it.

    `source` is a mirror's address or the path of a file at hand. A file for which nobody has published a sum is
    taken on trust the first time: its SHA-256 is recorded beside it, and from then on it must be that.
    """
    name = _FORMER_NAMES.get(name, name)
    if name not in DOWNLOADS:
        raise unknown_name("corpus to fetch", name, DOWNLOADS)
    if sha256 is not None and not (len(sha256) == 64 and set(sha256.lower()) <= set("0123456789abcdef")):
        raise UserError(f"The SHA-256 is '{sha256}': it must be 64 hexadecimal digits.")
    pooch = need("pooch", "A download")
    download = DOWNLOADS[name]
    source = _locate(download, source)
    directory = Path(pooch.os_cache("bnce")) if cache is None else cache
    place = directory / file_name(source)
    record = place.with_name(f"{place.name}.sha256")
    known, checked = _known_hash(download, place, record, sha256)
    # Its own lines would break into the progress bar, and errors come as exceptions.
    pooch.get_logger().setLevel("ERROR")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(source, known, place.name, directory, downloader=Resume(place, progress))
    except UserError:
        raise
    except ValueError as error:
        if known is None:
            raise
        unless = f", or remove '{record}' if the file was meant to change" if checked == "recorded" else ""
        raise UserError(
            f"'{source}' is damaged or another file, because its checksum is not the {checked} {known}. It was "
            f"removed: download it again, name another mirror with {argument('source')}{unless}."
        ) from error
    except OSError as error:
        raise UserError(f"Cannot fetch '{source}' to '{directory}': {error.strerror or error}.") from error
    with open(place, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if checked == "nothing":
        write_text(record, f"{digest}  {place.name}\n")
    return Fetched(place, digest, checked)


def _locate(download: Download, source: str | None) -> str:
    """Settle on an address or an existing file; a mirror may be given as the directory the file is in."""
    published = file_name(download.url)
    if source is None:
        return download.url
    if is_address(source):
        return source if file_name(source) else f"{source.rstrip('/')}/{published}"
    if os.path.isdir(source):
        source = os.path.join(source, published)
    if not os.path.isfile(source):
        raise UserError(
            f"There is no file '{source}': give the path of {published}, or a mirror's address, with "
            f"{argument('source')}."
        )
    return source


def _known_hash(download: Download, place: Path, record: Path, sha256: str | None) -> tuple[str | None, str]:
    if sha256 is not None:
        return f"sha256:{sha256.lower()}", "given"
    if place.name in download.hashes:
        return download.hashes[place.name], "published"
    if record.exists():
        return f"sha256:{record.read_text(encoding='utf-8').split()[0]}", "recorded"
    return None, "nothing"


class Resume:
    """Fetches a file to a `.part` beside `place`, several times if need be; pooch calls it as its downloader."""

    def __init__(self, place: Path, progress: Progress | None) -> None:
        self._part = place.with_name(f"{place.name}.part")
        self._origin = place.with_name(f"{place.name}.part.json")
        self._progress = progress or (lambda done, total: None)

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        """Bring `url`, an address or a path, to `output_file`."""
        try:
            if is_address(url):
                self._fetch(url)
                os.replace(self._part, output_file)
                self._origin.unlink(missing_ok=True)
            else:
                self._copy(url, output_file)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UserError(
                    f"The disk is full, so '{url}' cannot be downloaded: free some space, then run the same "
                    "command again."
                ) from error
            raise

    def _copy(self, path: str, output_file: str) -> None:
        total = os.path.getsize(path)
        with open(path, "rb") as source, open(output_file, "wb") as sink:
            while chunk := source.read(_CHUNK_BYTES):
                sink.write(chunk)
                self._progress(sink.tell(), total)

    def _fetch(self, url: str) -> None:
        failures = 0
        while True:
            before = self._part_bytes()
            try:
                if self._fetch_on(url):
                    return
                reason = "the connection was closed"
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500:
                    raise UserError(
                        f"'{url}' cannot be downloaded, because the server says {error.code} {error.reason}: "
                        f"check the address, or name a mirror or a file you have with {argument('source')}."
                    ) from error
                reason = f"the server says {error.code} {error.reason}"
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            # As long as something comes, it is worth to go on.
            failures = 0 if self._part_bytes() > before else failures + 1
            if failures >= _ATTEMPTS or (failures and not self._part_bytes()):
                kept = self._part_bytes()
                state = f"stopped after {kept:,} bytes, which are kept" if kept else "cannot be downloaded"
                raise UserError(
                    f"'{url}' {state} ({reason}): check the network and run the same command again, "
                    f"or name a mirror or a file you have with {argument('source')}."
                )
            time.sleep(_PAUSE_SECONDS * failures)

    def _fetch_on(self, url: str) -> bool:
        """Fetch what is missing in one connection; tell whether it came to the end."""
        have = self._part_bytes()
        validator = self._validator(url)
        request = urllib.request.Request(url, headers={"User-Agent": "bnce"})
        if have and validator:
            request.add_header("Range", f"bytes={have}-")
            request.add_header("If-Range", validator)
        try:
            response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            error.close()
            # Nothing is left to send; or the part is not of this file, and must go.
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return True
            self._part.unlink(missing_ok=True)
            return self._fetch_on(url)
        with contextlib.closing(response):
            begins = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            goes_on = response.status == http.HTTPStatus.PARTIAL_CONTENT and begins
            if not goes_on:
                have = 0
                self._remember(url, response.headers)
            length = response.headers.get("Content-Length")
            total = have + int(length) if length and length.isdigit() else 0
            with open(self._part, "ab" if goes_on else "wb") as part:
                while chunk := response.read(_CHUNK_BYTES):
                    part.write(chunk)
                    self._progress(part.tell(), total)
                # A connection that is cut looks like the end of the file, but for the length.
                return not total or part.tell() == total

    def _part_bytes(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _remember(self, url: str, headers: http.client.HTTPMessage) -> None:
        etag = headers.get("ETag", "")
        # A weak ETag says that two files mean the same, not that their bytes are the same.
        validator = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")
        write_text(self._origin, json.dumps({"url": url, "validator": validator}))

    def _validator(self, url: str) -> str:
        try:
            origin = json.loads(self._origin.read_text(encoding="utf-8"))
            return str(origin["validator"]) if origin["url"] == url else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def is_address(source: str) -> bool:
    """Tell an address from a path, and refuse what only looks like one."""
    scheme, separator, _ = source.partition("://")
    if not separator:
        return False
    if scheme.lower() not in ("http", "https"):
        raise UserError(f"'{source}' cannot be downloaded: give an http or https URL, or a path.")
    return True


def file_name(source: str) -> str:
    """Give the name of the file at an address or path; it is empty for a directory."""
    return os.path.basename(urllib.parse.urlsplit(source).path if is_address(source) else source)
