"""Small files in the formats of the published corpora, made as those are: what several tests read."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/" version="0.3" xml:lang="en">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <namespaces>
      <namespace key="-2">Media</namespace>
      <namespace key="0" />
      <namespace key="1">Talk</namespace>
      <namespace key="10">Template</namespace>
      <namespace key="100">Portal talk</namespace>
    </namespaces>
  </siteinfo>
"""

ARTICLE = """{{Infobox country
| name = {{lang|fr|République}}
| leader = [[Jane Doe]]
}}
'''Élan''' is a [[river|long river]] in [[Wales]].<ref name="x">A {{cite|book}}.</ref> It&nbsp;flows&mdash;slowly.
[[Image:elan.jpg|thumb|The [[river]] in spring]]
{| class="wikitable"
|-
| 1 || 2
{|
| inner
|}
|}
== Course ==
* The ''upper'' part, see [http://example.org/map the map].
* <math>x^2</math> H<sub>2</sub>O & <nowiki>[[brackets]]</nowiki><!-- hidden -->
[[Category:Rivers]]
[[de:Elan]]
"""
ARTICLE_LINES = [
    "Élan is a long river in Wales. It\xa0flows—slowly.",
    "Course",
    "The upper part, see the map.",
    "H2O & [[brackets]]",
]


def page(title: str, text: str, *, namespace: str = "") -> str:
    """Write a page as a dump does: what is markup in the text is escaped once."""
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n{namespace}    <id>12</id>\n    <revision>\n"
        f"      <id>15898948</id>\n      <timestamp>2002-02-25T15:43:11Z</timestamp>\n"
        f'      <text xml:space="preserve">{escape(text, {chr(34): "&quot;"})}</text>\n    </revision>\n  </page>\n'
    )


def dump(num_articles: int = 30, *, last: str = "The last page is cut in the midd") -> bytes:
    """Write a dump of one rich article, many plain ones, redirects and pages that are none, cut in its last page."""
    pages = [
        page("AdA", "#REDIRECT [[Ada programming language]]"),
        page("Élan", ARTICLE),
        page("Talk:Élan", "Chatter about the article."),
        page("Template:Box", "A template has prose too."),
        page("Portal talk:Rivers", "More chatter."),
        *(page(f"Place {number}", f"Place {number:03} is a place. It is small.") for number in range(num_articles)),
    ]
    cut = page("Cut", last).partition("</text>")[0]
    return (HEAD + "".join(pages) + cut).encode()


RELEASE = "1-billion-word-language-modeling-benchmark-r13output"


def shards() -> dict[str, bytes]:
    """Write the shards of the release, two sentences each; "the" is in all, a word of its own in each."""
    texts = {}
    for number in range(1, 100):
        name = f"training-monolingual.tokenized.shuffled/news.en-{number:05}-of-00100"
        texts[name] = f"The word w{number} of {number % 5} .\nThe end , said Mr. Smith .\n".encode()
    for number in range(50):
        name = f"heldout-monolingual.tokenized.shuffled/news.en.heldout-{number:05}-of-00050"
        texts[name] = f"The held h{number} .\n".encode()
    texts["heldout-monolingual.tokenized.shuffled/news.en-00000-of-00100"] = b"not to be read\n"
    texts["README"] = b"not to be read either\n"
    return texts


def write_tar(path: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Write the release as a tar, its members in the order given."""
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".tar": "w"}[path.suffix]
    with tarfile.open(path, mode) as archive:
        for name, content in files:
            member = tarfile.TarInfo(f"{RELEASE}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_directory(path: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Write files and the directories they are in."""
    for name, content in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


# As published: a blank line at the beginning and around headings, a space at both ends of a line.
WIKITEXT = {
    "train": " \n = Robert Boulter = \n \n Robert <unk> is an English actor , born @-@ 1 @,@ 979 . \n"
    " He had a role . \n \n = = Career = = \n \n A guest @-@ starring role . \n \n = Other = \n \n It is an actor . \n",
    "valid": " \n = Homarus = \n \n The <unk> is a lobster . \n",
    "test": " \n = Test = \n \n The actor . \n",
}


def write_wikitext(path: Path, kind: str = "tokens") -> Path:
    """Write the three files of WikiText."""
    return write_directory(path, [(f"wiki.{split}.{kind}", text.encode()) for split, text in WIKITEXT.items()])
