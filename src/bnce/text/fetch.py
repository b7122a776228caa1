"""The published corpora brought to a directory of one's own, checked, and only once."""

from __future__ import annotations

import hashlib
import importlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bnce.errors import UserError, argument, unknown_name
from bnce.files import write_text
from bnce.machine.packages import missing
from bnce.text.download import Progress, Resume, file_name, is_address


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
    try:
        pooch: Any = importlib.import_module("pooch")
    except ModuleNotFoundError as error:
        raise missing("pooch", "A download") from error
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
