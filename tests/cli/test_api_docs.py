"""The code in docs/api.md runs as it stands, so that it cannot rot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_code_runs(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", API, flags=re.DOTALL)
    run = [block for block in blocks if "from pyctcdecode" not in block]
    assert len(run) == len(blocks) - 1
    for block in run:
        exec(block.replace('"runs/bnce"', repr(str(trained))), names)
    assert len(capsys.readouterr().out.splitlines()) == 2 + 5 + 1
    assert len(names["log_probs"]) == 3
    assert (names["exact"] < 0).all()
