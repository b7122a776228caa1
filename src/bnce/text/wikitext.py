"""WikiText-2 and WikiText-103 as published: the `.tokens` files as they are, or the `.raw` ones cut into words.

Both come tokenised, with @-@, @,@ and @.@ for signs inside a word. In `.tokens` that and <unk> are kept, so that
words and perplexities compare with others'; in `.raw` such signs are put back before words are cut.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator

from bnce.errors import UserError
from bnce.text.normalise import Normaliser
from bnce.text.sources import MAX_DOCUMENT_CHARACTERS, Advance, Document, check_errors, check_source, read_lines
from bnce.text.unpack import open_zip

KINDS = ("tokens", "raw")
_SPLITS = ("train", "valid", "test")

# An article's title has one = on each side, its sections have more.
_TITLE = re.compile(r" ?= [^=].*[^=] = ?$| ?= [^=] = ?$")
_HEADING = re.compile(r"^\s*(?:= )+(.*?)(?: =)+\s*$")
_JOINED = re.compile(r" @([-,.])@ ")


def find_kind(path: str) -> str:
    """Tell whether a directory or .zip holds the tokenised or the raw files, and refuse what holds neither."""
    names = set(_names(path))
    for kind in KINDS:
        wanted = [f"wiki.{split}.{kind}" for split in _SPLITS]
        missing = [name for name in wanted if name not in names]
        if not missing:
            return kind
        if len(missing) < len(wanted):
            raise UserError(f"'{path}' lacks {' and '.join(missing)}: give the whole WikiText.")
    raise UserError(
        f"'{path}' has no WikiText: give the directory, or the .zip, "
        "with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, or the same with .raw."
    )


def find_normaliser(path: str) -> Normaliser:
    """Choose how words are found: tokenised text has them between blanks."""
    if find_kind(path) == "tokens":
        return Normaliser(lowercase=False, tokens="whitespace", sentences="lines")
    return Normaliser(lowercase=False, tokens="words", sentences="split")


def read_wikitext(path: str, errors: str = "strict", advance: Advance | None = None) -> Iterator[tuple[str, Document]]:
    """Yield the articles with their splits."""
    check_errors(errors)
    kind = find_kind(path)
    for split in _SPLITS:
        name = f"wiki.{split}.{kind}"
        if os.path.isdir(path):
            lines = read_lines(os.path.join(path, name), errors, advance)
        else:
            lines = read_lines(path, errors, advance, member=name)
        for document in group_articles(lines):
            yield split, document if kind == "tokens" else [plain(line) for line in document]


def wikitext_bytes(path: str) -> int:
    """Tell how much there is to read, for progress."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    kind = find_kind(path)
    return sum(os.path.getsize(os.path.join(path, f"wiki.{split}.{kind}")) for split in _SPLITS)


def group_articles(lines: Iterator[str]) -> Iterator[Document]:
    """Group lines into articles: each begins at its title."""
    article: Document = []
    num_characters = 0
    for line in lines:
        if not line or line.isspace():
            continue
        if article and (_TITLE.match(line) or num_characters >= MAX_DOCUMENT_CHARACTERS):
            yield article
            article, num_characters = [], 0
        article.append(line)
        num_characters += len(line)
    if article:
        yield article


def plain(line: str) -> str:
    """Undo the tokeniser's signs inside words, and leave of a heading its text."""
    heading = _HEADING.match(line)
    return _JOINED.sub(r"\1", heading.group(1) if heading else line)


def _names(path: str) -> list[str]:
    if os.path.isdir(path):
        return os.listdir(path)
    check_source(path)
    try:
        with open_zip(path) as archive:
            return [name.rpartition("/")[2] for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"'{path}' is neither a directory nor a .zip ({error}): give WikiText as published.") from error
