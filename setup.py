"""What pyproject.toml cannot do: on a package index, the README's links to files beside it would lead nowhere."""

import re
from pathlib import Path

from setuptools import setup


def without_links(text: str) -> str:
    """Leave the words of a link, and the file it leads to where they do not name it: the sources bring it."""

    def plain(link: re.Match[str]) -> str:
        words, file = link[1], link[2].partition("#")[0]
        return words if words == file else f"{words} (`{file}`)"

    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", plain, text)


setup(
    long_description=without_links(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
