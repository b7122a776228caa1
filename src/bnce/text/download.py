"""A download that goes on where it was broken off: what has come stays in a `.part` file beside its place.

The server is asked for the rest only of the very same file (If-Range, with its ETag or date); if it has another by
now, or cannot send parts, the download begins anew.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bnce.errors import UserError, argument
from bnce.files import write_text

Progress = Callable[[int, int], None]

_CHUNK_BYTES = 2**18
_TIMEOUT_SECONDS = 30.0
_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0


class Resume:
    """Fetches a file to a `.part` beside `place`, several times if need be; pooch calls it as its downloader."""

    def __init__(self, place: Path, progress: Progress | None = None) -> None:
        self._part = place.with_name(f"{place.name}.part")
        self._origin = place.with_name(f"{place.name}.part.json")
        self._progress = progress

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
                    f"The disk is full, so '{url}' cannot be downloaded: free some space, then run the same command "
                    "again."
                ) from error
            raise

    def _copy(self, path: str, output_file: str) -> None:
        total = os.path.getsize(path)
        with open(path, "rb") as source, open(output_file, "wb") as sink:
            while chunk := source.read(_CHUNK_BYTES):
                sink.write(chunk)
                self._tell(sink.tell(), total)

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
                    self._tell(part.tell(), total)
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

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)


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
