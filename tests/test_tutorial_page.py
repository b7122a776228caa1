"""docs/tutorial.md, then docs/rescoring.md: commands run as they stand, and docs/formats.md names their files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pages import blocks, read_page, run_commands, run_commands_here

PAGE = read_page("tutorial.md")


def test_the_commands_lead_from_text_to_rescored_lists(tmp_path: Path) -> None:
    done = run_commands(PAGE, tmp_path)
    assert done.returncode == 0, done.stderr
    shown = [line for block in blocks(PAGE, "text") for line in block.splitlines()]
    assert len(shown) > 10
    for line in shown:
        assert line in done.stdout.splitlines(), f"the tutorial shows {line!r}"
    perplexities = [float(value) for value in re.findall(r"^  PPL[nf] (\S+)  with the", done.stdout, re.MULTILINE)]
    assert perplexities == pytest.approx([1.7, 1.7], abs=0.1)
    right, wrong = (float(total) for total in re.findall(r"^Total: (\S+) OOV: 0$", done.stdout, re.MULTILINE))
    assert wrong < right - 5
    before, after, _ = (float(rate) for rate in re.findall(r"WER (?:before|after|oracle) +([\d.]+)%", done.stderr))
    assert before == pytest.approx(6.5, abs=0.05)
    assert after < 1
    assert (tmp_path / "new.txt").read_text() == (tmp_path / "best.txt").read_text()
    said = re.findall(r"^test-0002 .*", (tmp_path / "sample/data/test/text").read_text(), re.MULTILINE)
    assert done.stdout.splitlines()[-1:] == said

    done = run_commands_here(read_page("rescoring.md"), tmp_path)
    assert done.returncode == 0, done.stderr
    for form in ("Kaldi text", "JSON lines"):
        assert f"was read as {form}" in done.stderr
    rates = [float(rate) for rate in re.findall(r"WER (?:before|after) +([\d.]+)%", done.stderr)]
    assert len(rates) == 4, "before and after, in two formats"
    # The same utterances: what the recogniser heard is the same in all, and so is most of what is made of it.
    assert rates[0] == rates[2] == before
    assert max(rates[1::2]) < 1
    assert (tmp_path / "kaldi.trn").read_text(encoding="utf-8").count("(test-") == 150
    lists = [json.loads(line) for line in (tmp_path / "nemo.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lists) == 150

    told = set(re.findall(r"`([^`\n]+)`", read_page("formats.md")))
    for directory in ("corpora/books", "runs/books"):
        for path in (tmp_path / directory).iterdir():
            name = re.sub(r"^state-\d{12}", "state-STEP", path.name) + ("/" if path.is_dir() else "")
            assert name in told, f"docs/formats.md does not name {directory}/{name}"
