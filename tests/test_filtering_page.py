"""docs/filtering.md: its commands and code run as they stand; packages that are not installed have stand-ins."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

from pages import ROOT, blocks, read_page, run, run_commands_here

PAGE = read_page("filtering.md")

CHECKS = """
assert kept["text"] == ["the dog saw the river."], kept["text"]
assert [one.id for one in in_datatrove] == ["1"]
assert in_datatrove[0].metadata["perplexity"] < 20

samples = {"text": ["the dog saw the river.", "river the saw dog the.", ""], Fields.stats: [{}, {}, {}]}
operator = BncePerplexityFilter("runs/web", max_ppl=20.0)
assert list(operator.process_batched(operator.compute_stats_batched(samples))) == [True, False, False]

nemo = NemoPerplexityFilter("runs/web", 20)
scores = [nemo.score_document(text) for text in samples["text"]]
assert [nemo.keep_document(score) for score in scores] == [True, False, False]
assert scores[0] == in_datatrove[0].metadata["perplexity"]
"""


def read(path: Path) -> list[dict[str, object]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_the_commands_run(tmp_path: Path) -> None:
    done = run_commands_here(PAGE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Percentiles of documents: 1%: " in done.stdout
    fields = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    scored = read(tmp_path / "scored" / "web-1.jsonl.gz")
    assert list(scored[0]) == ["id", "text", "source", *fields]
    # Shuffled documents are told from the others.
    below = [one["id"] for shard in (1, 2) for one in read(tmp_path / "kept" / f"web-{shard}.jsonl.gz")]
    shuffled = [name for name in below if int(str(name).split("-")[1]) % 3 == 0]
    assert len(below) - len(shuffled) == 400
    assert len(shuffled) < 20
    for places in ((".", "rest"), ("head", "middle", "tail")):
        directory = tmp_path / ("kept" if "rest" in places else "parts")
        assert sum(len(read(directory / place / "web-1.jsonl.gz")) for place in places) == 300

    code = "import sys\nsys.path.insert(0, sys.argv[1])\nimport stand_ins\nstand_ins.stand_in()\n"
    code += "\n".join(blocks(PAGE, "python")) + CHECKS
    done = run([sys.executable, "-W", "error", "-c", code, str(ROOT / "tests")], tmp_path)
    assert done.returncode == 0, done.stderr
