"""The manual: every page is in its navigation, what is made covers the program, and links lead somewhere.

`make docs` builds it with MkDocs, which also checks the links of what is built. None of this needs MkDocs.
"""

from __future__ import annotations

import collections
import html
import re
from pathlib import Path

import markdown
import pytest
from command import call
from markdown_it import MarkdownIt

import bnce
from manual import links
from manual.commands import command_names, commands_page
from manual.notebooks import notebook_page
from manual.python_names import python_page

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\nnot_in_nav")[0]
MADE = {"commands.md", "python.md", "changelog.md"}


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r"^ +- [^:\n]+: (\S+\.md)$", NAVIGATION, re.MULTILINE)
    assert sorted(named) == sorted([*(path.name for path in PAGES), *MADE])


def test_every_command_is_described() -> None:
    page = commands_page()
    names = re.findall(r"^  ([a-z]+) {2,}\S", call("--help").stdout.partition("Commands:\n")[2], re.MULTILINE)
    assert command_names() == names
    sections = dict(re.findall(r"^## bnce (\S+)\n(.*?)(?=^## |\Z)", page, flags=re.DOTALL | re.MULTILINE))
    assert list(sections) == names
    for name, section in sections.items():
        assert f"```text\nbnce {name} [OPTIONS]" in section
        assert "**Examples**\n\n```sh\nbnce " in section, f"no examples of {name}"
        assert "`--json`\n:   Print the result as one JSON object." in section
    # What typer writes for a terminal must not come through.
    assert "[default" not in page
    assert "\b" not in page
    assert "&lt;unk&gt;" in sections["prepare"]
    assert "`-o, --out DIR`\n:   Corpus directory to create. *Required.*" in sections["prepare"]
    assert "Default: *0.02*." in sections["prepare"]


def test_every_public_name_is_described() -> None:
    page = python_page().replace("\\_", "_")
    assert sorted(re.findall(r"^## (\S+)$", page, re.MULTILINE)) == sorted(bnce.__all__)
    for member in ("Model.score", "OutputLayer.log_probs", "Corpus.open", "noise.unigram", "kenlm.Model"):
        assert f"\n### {member}\n" in page
    assert "bnce.load(path: str | Path, device: str = 'cpu') -> Model" in page
    assert " at 0x" not in page
    assert not re.search(r"^### \S+\._", page, re.MULTILINE)


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    page = path.relative_to(ROOT).as_posix()
    for link in links.find_links(read(page), page):
        assert (ROOT / link.path).exists(), f"{page} links to {link.path}, which does not exist"
        if link.anchor and link.path.endswith(".md"):
            assert link.anchor in links.anchors(read(link.path)), f"{page} links to {link.path}#{link.anchor}"


def test_links_of_what_is_made_lead_to_pages() -> None:
    for text in (commands_page(), python_page()):
        for link in links.find_links(text, "docs/made.md"):
            assert link.path == "docs/made.md" or (ROOT / link.path).is_file()
            assert not link.anchor or link.anchor in links.anchors(text)


def test_links_out_of_docs_lead_into_the_manual() -> None:
    def moved(text: str, page: str = "docs/results.md", place: str = "results.md") -> str:
        return links.lead_into_manual(text, page, place, lambda path: links.place_of(path, ROOT))

    assert moved("[a](method.md#x) [b](#y) ![c](images/streams.svg)") == (
        "[a](method.md#x) [b](#y) ![c](images/streams.svg)"
    )
    assert moved("[CHANGELOG.md](../CHANGELOG.md)") == "[CHANGELOG.md](changelog.md)"
    assert moved("[a](../benchmarks/results/nbest.md#b)") == "[a](repository/benchmarks/results/nbest.md#b)"
    assert moved("[`a`](../src/bnce/noise.py)") == "[`a`](repository/src/bnce/noise.py.md)"
    assert moved("[benchmarks/results](../benchmarks/results)") == "`benchmarks/results`"
    assert moved("[all](../benchmarks/results)") == "all (`benchmarks/results`)"
    assert moved("`[a](../b)` [c](https://example.org)") == "`[a](../b)` [c](https://example.org)"
    assert moved("```\n[a](../b)\n```\n") == "```\n[a](../b)\n```\n"
    assert moved("[a](docs/usage.md)", "CHANGELOG.md", "changelog.md") == "[a](usage.md)"
    nested = moved("[a](../../docs/usage.md)", "benchmarks/results/a.md", "repository/benchmarks/results/a.md")
    assert nested == "[a](../../../usage.md)"


def test_a_notebook_is_a_page() -> None:
    path = "examples/quickstart.ipynb"
    assert links.place_of(path, ROOT) == f"repository/{path}.md"
    page = notebook_page(read(path))
    assert page.startswith("# Quickstart\n")
    assert "\n```python\nimport ast\n" in page
    assert page.count("```") == 2 * read(path).count('"cell_type": "code"')
    found = list(links.find_links(page, path))
    assert len(found) > 2
    for link in found:
        assert (ROOT / link.path).is_file(), f"{path} links to {link.path}, which does not exist"


def test_headings_are_named_as_on_a_code_host() -> None:
    text = "# A `<unk>`, twice\n## clip\\_grad\\_norm\\_\n```sh\n# no heading\n```\n### [Link](a.md): √V & more\n"
    assert links.anchors(text) == {"a-unk-twice", "clip_grad_norm_", "link-v--more"}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_a_page_reads_as_on_a_code_host(path: Path) -> None:
    """Python-Markdown, which MkDocs uses, wants blank lines and indents that code hosts do without."""
    text = path.read_text(encoding="utf-8")
    there = MarkdownIt("commonmark").enable("table").render(text)
    here = markdown.markdown(links.for_python_markdown(text), extensions=["tables", "fenced_code", "def_list"])
    assert plain(here) == plain(there)
    assert elements(here) == elements(there)


def plain(page: str) -> str:
    return re.sub(r"\s+", "", html.unescape(re.sub(r"<[^>]+>|<!--.*?-->", "", page)))


def elements(page: str) -> collections.Counter[str]:
    return collections.Counter(re.findall(r"<(h\d|ul|ol|li|table|tr|td|th|pre|a|img|strong|em)\b", page))


def test_the_build_stops_at_broken_links() -> None:
    """MkDocs counts the warnings that it shows: --quiet would let everything through."""
    (command,) = re.findall(r"-m mkdocs build(.*)", read("Makefile"))
    assert command.split() == ["--strict"]
    assert re.search(r"^    anchors: warn$", read("mkdocs.yml"), re.MULTILINE)


def test_files_are_described_by_the_names_they_have(trained: Path, corpus: Path) -> None:
    told = set(re.findall(r"`([^`\n]+)`", read("docs/formats.md")))
    files = [path for directory in (trained, corpus) for path in directory.iterdir() if path.is_file()]
    written = {re.sub(r"-\d{12}", "-STEP", path.name) for path in files}
    assert {"model.safetensors", "metrics.jsonl", "counts.npy", "vocab.txt"} <= written <= told
    # What only some of them have, and what an export, a report and a filter have.
    more = {"model.json", "report.html", "table.md", "table.json"}
    assert more | {".bnce/settings.json"} <= told
