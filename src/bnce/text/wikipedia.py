"""LTCB: enwik9, the first 10^9 bytes of a Wikipedia dump, as articles without markup.

The dump is never parsed as XML, for which it would have to be whole: enwik9 ends in the middle of a page. Pages
are found by their tags, which cannot occur inside, since there `<` is written `&lt;`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bnce.errors import UserError, argument
from bnce.text.blocks import DOCUMENT_END
from bnce.text.markup import strip_markup
from bnce.text.normalise import Normaliser
from bnce.text.sources import (
    STANDARD_INPUT,
    Advance,
    Document,
    check_errors,
    check_source,
    named,
    read_chunks,
    unpacked_bytes,
)

# The words of train, valid and test in Oualil et al. (2016), whose split the paper takes over, in millions.
PUBLISHED_SIZES = {"train": 133.0, "valid": 7.8, "test": 7.9}
VOCAB_SIZE = 80_000

MAX_PAGE_BYTES = 64 * 2**20
_HEAD_BYTES = 2**20

_PAGE, _PAGE_END = b"<page>", b"</page>"
_NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]+)</namespace>')
_TITLE = re.compile(r"<title>(.*?)</title>")
_NUMBERED_NAMESPACE = re.compile(r"<ns>(-?\d+)</ns>")
_TEXT = re.compile(r"<text\b[^>]*>")
_REDIRECT = re.compile(r"\s*#\s*redirect\b", re.IGNORECASE)
# For dumps without a head that lists them.
_TOPICS = ("User", "Wikipedia", "Image", "File", "MediaWiki", "Template", "Help", "Category", "Portal")
_NAMESPACES = frozenset(("Media", "Special", "Talk", *_TOPICS, *(f"{topic}_talk" for topic in _TOPICS)))


@dataclass(frozen=True)
class MarkupNormaliser(Normaliser):
    """Takes off markup before words are cut: that is most of the work, and this is where it is shared out."""

    def spaced(self, text: str) -> str:
        """Cut whole articles, between which document ends stand, into words."""
        between = f"\n{DOCUMENT_END}\n"
        return super().spaced(between.join(map(strip_markup, text.split(between))))


class Page(NamedTuple):
    """The bytes of a page between its tags, and where in the dump they begin; the last may be cut short."""

    offset: int
    content: bytes
    is_whole: bool


def check_dump(path: str) -> None:
    """Refuse what cannot be a dump of which parts are cut off for valid and test."""
    if path == STANDARD_INPUT:
        raise UserError("Standard input has no known size, so it cannot be cut into splits: give a dump as a file.")
    check_source(path)


def read_articles(path: str, errors: str = "strict", advance: Advance | None = None) -> Iterator[tuple[str, Document]]:
    """Yield the articles of a dump, their markup still on, with their splits, in the order of the dump.

    An article belongs to train if it begins in the first 133/148.7 of the unpacked bytes, to valid if in the
    next 7.8/148.7, and to test after that.
    """
    check_errors(errors)
    check_dump(path)
    total, whole = unpacked_bytes(path), sum(PUBLISHED_SIZES.values())
    # The byte at which each split ends.
    ends = itertools.accumulate(size / whole * total for size in PUBLISHED_SIZES.values())
    bounds = dict(zip(PUBLISHED_SIZES, ends, strict=True))
    any_article = False
    for page, namespaces in _read_pages(path, advance):
        source = article_source(page, namespaces, errors, path)
        if source:
            any_article = True
            yield next(split for split, end in bounds.items() if page.offset < end or split == "test"), [source]
    if not any_article:
        raise UserError(f"{named(path)} has redirects and pages of other namespaces, but no article: give enwik9.")


def _read_pages(path: str, advance: Advance | None) -> Iterator[tuple[Page, frozenset[str]]]:
    """Stream the pages of a dump, each with the namespaces that its head lists."""
    buffer, namespaces = b"", _NAMESPACES
    position = searched = 0
    is_head = True
    for chunk in read_chunks(path, advance):
        buffer += chunk
        if is_head:
            begin = buffer.find(_PAGE)
            if begin < 0 and len(buffer) < _HEAD_BYTES:
                continue
            namespaces = _read_head(buffer, begin, path)
            is_head = False
        done = 0
        while (end := buffer.find(_PAGE_END, max(done, searched))) >= 0:
            begin = buffer.find(_PAGE, done, end)
            if begin >= 0:
                begin += len(_PAGE)
                yield Page(position + begin, buffer[begin:end], is_whole=True), namespaces
            done = end + len(_PAGE_END)
        position += done
        buffer = buffer[done:]
        # The end of a page may lie across two chunks.
        searched = max(0, len(buffer) - len(_PAGE_END))
        if len(buffer) > MAX_PAGE_BYTES:
            raise UserError(
                f"{named(path)} has a page of more than {MAX_PAGE_BYTES // 2**20} MiB at byte {position}: "
                "it is not a Wikipedia dump; give enwik9."
            )
    if is_head:
        namespaces = _read_head(buffer, buffer.find(_PAGE), path)
    begin = buffer.find(_PAGE)
    if begin >= 0:
        begin += len(_PAGE)
        yield Page(position + begin, buffer[begin:], is_whole=False), namespaces


def _read_head(buffer: bytes, begin: int, path: str) -> frozenset[str]:
    if begin < 0:
        raise UserError(
            f"{named(path)} has no <page> in its first MiB, so it is not a Wikipedia dump: "
            "give enwik9, or prepare text without a corpus name."
        )
    listed = _NAMESPACE.findall(buffer[:begin])
    names = (name.decode("utf-8", "replace") for key, name in listed if key != b"0")
    return frozenset(name.replace(" ", "_") for name in names) if listed else _NAMESPACES


def article_source(page: Page, namespaces: frozenset[str], errors: str, path: str) -> str:
    """Give the markup of a page that is an article, or nothing for a redirect or a page about pages."""
    try:
        text = page.content.decode("utf-8", "replace" if errors == "replace" or not page.is_whole else "strict")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{named(path)} has invalid UTF-8 at byte offset {page.offset + error.start}: "
            f"fetch it again, or give {argument('errors', 'replace')} to replace it with U+FFFD."
        ) from error
    opening = _TEXT.search(text)
    if opening is None or opening.group().endswith("/>"):
        return ""
    head = text[: opening.start()]
    title = _TITLE.search(head)
    namespace = _NUMBERED_NAMESPACE.search(head)
    if namespace is not None:
        is_article = namespace.group(1) == "0"
    else:
        prefix, colon, _ = (title.group(1) if title else "").partition(":")
        is_article = not (colon and prefix.replace(" ", "_") in namespaces)
    if not is_article or "<redirect" in head:
        return ""
    end = text.find("</text>", opening.end())
    source = text[opening.end() : end] if end >= 0 else text[opening.end() :]
    if end < 0:
        # The cut may go through a word, an entity or a character: the last whole word is the end.
        source = source[: max(source.rfind(" "), source.rfind("\n"), 0)]
    if _REDIRECT.match(source):
        return ""
    if "&" in source:
        # What XML must escape; the markup's own entities are escaped once more, so that &amp; comes last.
        source = source.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
    return source
