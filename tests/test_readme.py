"""The README's commands and code run as they stand, so that it cannot rot."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pages
import pytest
from pages import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return pages.blocks(README, language)


def write_text(path: Path, num_sentences: int, seed: int) -> None:
    chosen = random.Random(seed)
    words = [f"word{chr(97 + number % 26)}{number // 26}".replace("0", "o") for number in range(300)] + ["the"]
    weights = [1 / (place + 1) for place in range(len(words))]
    sentences = [" ".join(chosen.choices(words, weights, k=chosen.randint(4, 12))) + "." for _ in range(num_sentences)]
    path.write_text("\n".join(sentences), encoding="utf-8")


def test_commands_on_own_text_run(tmp_path: Path) -> None:
    (commands,) = (block for block in blocks("sh") if "bnce prepare" in block)
    # Enough for one batch of the recipe that fits a small text.
    write_text(tmp_path / "train.txt", 150, seed=1)
    write_text(tmp_path / "valid.txt", 40, seed=2)
    write_text(tmp_path / "test.txt", 40, seed=3)
    done = run(["sh", "-e", "-c", commands], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "PPLn" in done.stdout
    assert (tmp_path / "report" / "report.html").is_file()
    resume = re.search(r"`(bnce train --out [^`]* --resume)`", README)
    assert resume is not None
    done = run(["sh", "-e", "-c", resume.group(1)], tmp_path)
    assert done.returncode == 0, done.stderr
    (uses,) = (block for block in blocks("sh") if "bnce score" in block)
    hypotheses = "one\t-1.0\t-2.0\tthe worda\none\t-1.5\t-1.0\tthe wordb\n"
    (tmp_path / "nbest.tsv").write_text(hypotheses, encoding="utf-8")
    (tmp_path / "refs.txt").write_text("one the wordb\n", encoding="utf-8")
    done = run(["sh", "-e", "-c", uses], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Perplexity" in done.stdout
    assert (tmp_path / "exported").is_dir()


@pytest.mark.parametrize("code", blocks("python"))
def test_code_runs(code: str) -> None:
    """As a user runs it, where nothing else is installed: tests/test_packaging.py."""
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["loss"].isfinite()
    assert names["log_probs"].max() < 0


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    wanted = re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.MULTILINE)
    assert wanted
    for target in wanted:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"the README names 'make {target}'"


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 120, "what is longer belongs into docs"
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), f"the README links to {link}"


def test_the_tree_has_what_is_there_and_nothing_else() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"^src/bnce/[^\n]*\n(.*?)```", text, flags=re.DOTALL | re.MULTILINE)
    # Names come first in a line, one or more, each after two blanks.
    starts = [re.match(r"(?:  ?[\w.]+(?:\.py|/))*", line) for line in tree.splitlines()]
    told = {name for start in starts if start is not None for name in start[0].split()}
    source = ROOT / "src" / "bnce"
    found = {f"{path.name}/" for path in source.iterdir() if (path / "__init__.py").exists()}
    found |= {path.name for path in source.glob("*.py") if not path.name.startswith("_")}
    assert told == found


@pytest.mark.parametrize("term", ["PPLf", "PPLn", "S-NCE", "K", "chunk"])
def test_a_term_is_explained_where_it_first_appears(term: str) -> None:
    text = " ".join(README.replace("*", "").split())
    first = re.search(rf"\b{term}\b", text, flags=re.IGNORECASE)
    assert first is not None
    # Its sentence says what it is or does; a row of a table says neither.
    assert re.match(r"( B-NCE)? (is|uses|=) [^|.]*\.", text[first.end() :]), text[first.start() : first.end() + 60]


def test_the_method_shows_streams_and_a_chunk() -> None:
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r"!\[[^]]+\]\((\S+\.svg)\)", page)
    drawn = (ROOT / "docs" / picture).read_text(encoding="utf-8")
    for word in ("stream 1", "chunk", "T = ", "B = "):
        assert word in drawn, f"{picture} does not show {word!r}"
    # Whoever reads the first equation has seen it.
    assert page.index(picture) < page.index("## What is computed")


def test_contributing_names_what_is_there() -> None:
    """Files in links, and paths in the text as a contributor would open them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)", text)
    paths = re.findall(r"`((?:src|tests)/[\w/.]+)`", text)
    paths += [f"src/bnce/{path}" for path in re.findall(r"`((?:losses|machine)/\w+\.py)`", text)]
    assert len(links) > 3
    assert len(paths) > 8
    for path in (*links, *paths):
        assert (ROOT / path).exists(), f"CONTRIBUTING.md names {path}"
