"""One way to read texts: records are read as records by every command, and their texts are what is scored."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from command import Command

from tests.scoring.arpa import write_unigrams

LINES = ["ba be bi", "fu ba", "be be xyzzy ba"]


@pytest.fixture
def same_lines(tmp_path: Path) -> list[Path]:
    """Write the same lines as plain text, as JSON lines and as packed ones."""
    plain, records, packed = (tmp_path / name for name in ("t.txt", "t.jsonl", "p.jsonl.gz"))
    plain.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    written = "".join(json.dumps({"id": number, "text": line}) + "\n" for number, line in enumerate(LINES))
    records.write_text(written, encoding="utf-8")
    packed.write_bytes(gzip.compress(written.encode()))
    return [plain, records, packed]


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    pytest.importorskip("kenlm")
    return write_unigrams(tmp_path / "m.arpa", {"</s>": 0.25, "ba": 0.25, "be": 0.125, "bi": 0.125})


def test_score(bnce: Command, trained: Path, arpa: Path, same_lines: list[Path]) -> None:
    for model in (trained, arpa):
        assert len({bnce("score", model, text, "--per-word").stdout for text in same_lines}) == 1
    carried = [bnce("score", trained, text, "--carry", "documents").stdout for text in same_lines]
    assert carried[1] == carried[2] == bnce("score", trained, same_lines[0]).stdout  # every record is a document


def test_evaluate(bnce: Command, trained: Path, arpa: Path, same_lines: list[Path]) -> None:
    for model in (trained, arpa):
        records = [bnce("evaluate", model, "--text", text, "--json").json for text in same_lines]
        assert {record["num_tokens"] for record in records} == {sum(len(line.split()) + 1 for line in LINES)}
        assert len({record["ppl_f"] for record in records}) == 1


def test_interpolate(bnce: Command, trained: Path, arpa: Path, same_lines: list[Path]) -> None:
    weights = [bnce("interpolate", trained, arpa, "--valid", text, "--json").json["weights"] for text in same_lines]
    assert weights[0] == weights[1] == weights[2]


def test_calibrate(bnce: Command, trained: Path, same_lines: list[Path], tmp_path: Path) -> None:
    long = []
    for text in same_lines:
        (tmp_path / f"long-{text.name}").write_bytes(text.read_bytes() * 400)
        outcome = bnce(
            "calibrate",
            trained,
            "--text",
            tmp_path / f"long-{text.name}",
            "--out",
            tmp_path / f"{text.name}-z",
            "--json",
        )
        long.append(outcome.json["log_z"])
    assert long[1] == long[2] == pytest.approx(long[0], abs=1e-6)
