"""What MkDocs calls while it builds the manual (`hooks` in mkdocs.yml).

Pages that are made and not written: the help of all commands, the Python names, the changelog, and the files of the
repository that pages link to. MkDocs checks all links between them (`--strict`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from manual.commands import commands_page
from manual.links import (
    CHANGELOG,
    DOCS,
    LANGUAGES,
    NOTEBOOK,
    find_links,
    for_python_markdown,
    lead_into_manual,
    place_of,
    slug,
)
from manual.notebooks import notebook_page
from manual.python_names import python_page

ROOT = Path(__file__).parents[1]
# Also the name by which Material's plugin `offline` sees that it need not be loaded from another host.
WORKER = "iframe-worker.js"
ASSETS = (WORKER, "manual.css")
MADE = {"commands.md": commands_page, "python.md": python_page}
# Whoever searches wants what was written about a word before the places that have it.
_SEARCHED_LAST = "---\nsearch:\n  boost: 0.2\n---\n\n"
# What a browser would load from another host.
_FOREIGN = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^>]*>"
    r"|<link\b[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon)\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*>"
    r"|<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon)\b[^>]*>"
)

_path_of: dict[str, str] = {}  # of pages from outside docs, by their places in the manual


def on_config(config: Any) -> Any:
    """Name headings as code hosts do, since the pages' links are written for both."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add what is made."""
    for name, make in MADE.items():
        files.append(File.generated(config, name, content=_SEARCHED_LAST + make()))
    for name in ASSETS:
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(Path(__file__).with_name(name))))
    for path in _linked_from_outside():
        place = place_of(path, ROOT)
        if place is None:
            continue
        _path_of[place] = path
        if place.endswith(".md"):
            files.append(File.generated(config, place, content=_page_of(path)))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to where things are in the manual."""
    place = page.file.src_uri
    path = _path_of.get(place, f"{DOCS}/{place}")
    return for_python_markdown(lead_into_manual(markdown, path, place, lambda found: place_of(found, ROOT)))


def on_post_build(config: Any) -> None:
    """Refuse a manual that would load anything from another host: it has to work without a network."""
    for page in Path(config.site_dir).rglob("*.html"):
        if found := _FOREIGN.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.relative_to(config.site_dir)} loads something from another host: {found[0]}")


def _linked_from_outside() -> list[str]:
    """List the changelog and the files outside docs that pages link to, and those that these link to in turn."""
    to_read = [CHANGELOG, *(f"{DOCS}/{path.name}" for path in sorted((ROOT / DOCS).glob("*.md")))]
    found = [CHANGELOG]
    while to_read:
        page = to_read.pop()
        for link in find_links(_read(page), page):
            if link.path in found or link.path.startswith(f"{DOCS}/") or not (ROOT / link.path).is_file():
                continue
            found.append(link.path)
            if link.path.endswith((".md", NOTEBOOK)):
                to_read.append(link.path)
    return found


def _read(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    return notebook_page(text) if path.endswith(NOTEBOOK) else text


def _page_of(path: str) -> str:
    text = _read(path)
    suffix = Path(path).suffix
    if suffix not in LANGUAGES:
        return _SEARCHED_LAST + text
    fence = "`" * (2 + max((len(run) for run in re.findall("`+", text)), default=1))
    # The search is for what pages say: it would find every name in source, too.
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{fence}{LANGUAGES[suffix]}\n{text}{fence}\n"
