"""Links of Markdown pages: where they lead in the repository, and where the same thing is in the manual.

Pages are written for a code host, where a link can lead to any file beside them. In the manual, pages of `docs` lie at
the top. A file outside it that a page links to is below `repository/`: Markdown and notebooks as pages, source as a
page with its code, anything else as it is. A directory has no page; what is left of a link to one is its path.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = "docs"
CHANGELOG = "CHANGELOG.md"
OUTSIDE = "repository"  # where the manual has files from outside docs
NOTEBOOK = ".ipynb"
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".cu": "cuda"}  # files that are shown as code

_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\2[`~]*[ ]*$|\Z)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(?<![`\\])(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


class Link(NamedTuple):
    """A link to something in the repository, and where in the page it stands."""

    text: str
    path: str  # from the root of the repository; the page itself for a link to one of its own headings
    anchor: str
    begin: int
    end: int
    is_image: bool


def find_links(markdown: str, page: str) -> Iterator[Link]:
    """Find the links of a page, known by its path in the repository, that lead to no other place in the web."""
    for found in _LINK.finditer(_without_code(markdown)):
        # As it stands in the page: code is blanked out in what was searched.
        text, target = markdown[slice(*found.span(2))], markdown[slice(*found.span(3))]
        if _ELSEWHERE.match(target):
            continue
        path, _, anchor = target.partition("#")
        resolved = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        yield Link(text, resolved, anchor, *found.span(), bool(found[1]))


def place_of(path: str, root: Path) -> str | None:
    """Say where in the manual a file of the repository is; None for a directory."""
    if path == CHANGELOG:
        return "changelog.md"
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if not (root / path).is_file():
        return None
    return f"{OUTSIDE}/{path}" + (".md" if Path(path).suffix in {*LANGUAGES, NOTEBOOK} else "")


def lead_into_manual(markdown: str, page: str, place: str, find_place: Callable[[str], str | None]) -> str:
    """Rewrite the links of a page that lies at `place` in the manual."""
    parts, end = [], 0
    for link in find_links(markdown, page):
        if link.path == page:
            continue
        parts += [markdown[end : link.begin], _rewritten(link, place, find_place)]
        end = link.end
    return "".join([*parts, markdown[end:]])


def _rewritten(link: Link, place: str, find_place: Callable[[str], str | None]) -> str:
    found = find_place(link.path)
    if found is None:
        return f"`{link.path}`" if link.text.strip("`") == link.path else f"{link.text} (`{link.path}`)"
    target = posixpath.relpath(found, posixpath.dirname(place) or ".")
    anchor = f"#{link.anchor}" if link.anchor else ""
    return f"{'!' if link.is_image else ''}[{link.text}]({target}{anchor})"


def for_python_markdown(markdown: str) -> str:
    """Write a page as Python-Markdown wants it, where code hosts are less strict.

    Lists and tables that follow text get a blank line before them, and in code inside tables a pipe is not escaped.
    """
    lines: list[str] = []
    before = ""
    for line, visible in zip(markdown.split("\n"), _without_code(markdown).split("\n"), strict=True):
        starts_list = re.match(r"[-*] |\d+\. ", visible) and not re.match(r"[-*] |\d+\. | ", before)
        starts_table = visible.startswith("|") and not before.startswith("|")
        if before.strip() and (starts_list or starts_table):
            lines.append("")
        if visible.startswith("|"):
            line = _CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
        lines.append(line)
        before = visible
    return "\n".join(lines)


def anchors(markdown: str) -> set[str]:
    """Name the headings of a page as links to them do."""
    found: set[str] = set()
    for heading in _HEADING.finditer(_without_code(markdown)):
        text = markdown[slice(*heading.span(1))]
        text = _LINK.sub(r"\2", text)
        found.add(slug(re.sub(r"\\(.)", r"\1", text)))
    return found


def slug(text: str, separator: str = "-") -> str:
    """Name a heading as code hosts do: `What is computed` is `what-is-computed`."""
    text = unicodedata.normalize("NFC", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", separator)


def _without_code(markdown: str) -> str:
    """Blank out code, so that nothing in it is taken for a link, a heading or a list; every line keeps its length."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", "x", found[0])

    # A line of a fence must not look like the text before a list.
    return _CODE.sub(blank, _FENCE.sub(blank, markdown))
