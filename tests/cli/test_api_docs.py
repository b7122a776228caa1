"""docs/api.md documents what `bnce` offers and nothing else, and its code runs as it stands, so that it cannot rot."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

import bnce

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", API.replace("\\_", "_"), flags=re.DOTALL | re.MULTILINE))
# What a reader may copy: pages with code, and what stands in examples/.
READ = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").iterdir()]


def code(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_every_name_has_a_section_that_uses_it() -> None:
    assert sorted(SECTIONS) == sorted(bnce.__all__)
    # What `load` and `prepare` give is shown by what it can do.
    for name, section in SECTIONS.items():
        assert any(f"bnce.{name}" in block for block in code(section)), f"no example of {name}"
    table = API.partition("\n## ")[0]
    assert sorted(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| .*", table, flags=re.MULTILINE)))) == sorted(SECTIONS)


@pytest.mark.usefixtures("losses_of_its_own")
def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = random.Random(1)
    words = ["the", "a", "cat", "cats", "sat", "on", "mat", "matter", "at", "it", "slept"]
    for name, num_sentences in (("train", 400), ("valid", 40), ("test", 80)):
        sentences = (" ".join(chosen.choices(words, k=7)) + "." for _ in range(num_sentences))
        (tmp_path / f"{name}.txt").write_text("\n".join(sentences), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in code(API):
        exec(block, names)
    printed = capsys.readouterr().out
    assert "[['The', 'cat', 'sat', '.'], ['It', 'slept', '.']]\n" in printed
    assert "'runs/none'" in printed
    assert names["summary"]["test"]["ppl_f"] > 1
    assert names["result"].num_tokens == 500
    assert (names["exact"] < 0).all()


@pytest.mark.parametrize("path", READ, ids=lambda path: path.name)
def test_readers_are_sent_to_public_names_alone(path: Path) -> None:
    """Neither in code nor in passing: a path that is written down is one that can no longer change."""
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?:from|import) bnce\.\w+", text) == []
    named = set(re.findall(r"(?<![\w/.-])bnce\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", text))
    inner = {name for name in named if name.split(".")[0] not in bnce.__all__ and name not in ("__all__", "py")}
    if path.name == "upgrading.md":  # which names what 0.1 had
        inner = {name for name in inner if name.split(".")[0] != "use"}
    assert inner == set()
