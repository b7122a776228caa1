"""docs/rescoring.md: the tutorial's commands run as they stand, on the sample that the project makes itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pages import blocks, read_page, run_commands

PAGE = read_page("rescoring.md")


def test_the_tutorial_lowers_the_word_error_rate(tmp_path: Path) -> None:
    pytest.importorskip("jiwer")
    assert "".join(blocks(PAGE, "sh")).count("bnce rescore") == 4
    done = run_commands(PAGE, tmp_path)
    assert done.returncode == 0, done.stderr
    for form in ("an ESPnet decode directory", "NeMo beams", "Kaldi text"):
        assert f"was read as {form}" in done.stderr
    rates = [float(rate) for rate in re.findall(r"WER (?:before|after) +([\d.]+)%", done.stderr)]
    assert len(rates) == 6, "before and after, in three formats"
    # The same utterances: what the recogniser heard is the same in all, and so is most of what is made of it.
    assert len(set(rates[::2])) == 1
    assert rates[0] == pytest.approx(6.5, abs=0.05)
    assert max(rates[1::2]) < 1
    assert (tmp_path / "new.txt").read_text() == (tmp_path / "best.txt").read_text()
    best = (tmp_path / "best.txt").read_text(encoding="utf-8").splitlines()
    assert len(best) == 150
    assert (tmp_path / "kaldi.trn").read_text(encoding="utf-8").count("(test-") == 150
    lists = [json.loads(line) for line in (tmp_path / "nemo.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lists) == 150
    assert "corrected" in (tmp_path / "changes.html").read_text(encoding="utf-8")
