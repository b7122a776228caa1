"""Next-item recommendation: every loss trains, and the ranks are those of the scores."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
import torch

from benchmarks import items

SMALL = ["--epochs", "1", "--batch", "16", "--length", "6", "--size", "8", "--layers", "1", "--device", "cpu"]


@pytest.fixture
def sequences(tmp_path: Path) -> Path:
    """Write users with 3 to 9 of 40 items, none of them twice."""
    made = torch.Generator().manual_seed(1)
    lines = []
    for user in range(60):
        length = 3 + user % 7
        lines.append(
            f"{user} " + " ".join(str(1 + item) for item in torch.randperm(40, generator=made)[:length].tolist())
        )
    path = tmp_path / "Made.txt.xz"
    with lzma.open(path, "wt", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
    return path


def test_every_loss_trains(sequences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "items.jsonl"
    items.main([str(sequences), *SMALL, "--rates", "0.01", "--out", str(out)])
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert capsys.readouterr().out == out.read_text(encoding="utf-8")
    assert tuple(line["loss"] for line in lines) == items.LOSSES
    for line in lines:
        assert line["set"] == "Made"
        assert line["num_items"] == 40
        assert line["epochs"] == line["epoch"] == 1
        assert 0 <= line["ndcg"] <= line["hr"] <= 1


def test_an_unknown_loss_is_refused_before_anything_is_trained(
    sequences: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        items.main([str(sequences), *SMALL, "--losses", "softmax,chunk"])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--losses has chunk: choose from softmax, bce," in printed.err


def test_ranks_are_among_all_items_but_padding() -> None:
    given = items.argparse.Namespace(length=2, size=4, layers=1, heads=1, dropout=0.0)
    model = items.Recommender(torch.tensor([0] + [1] * 20), "softmax", given)
    with torch.no_grad():
        model.output.weight.zero_()
        # Padding scores best and is not ranked; then item 1 is the best, item 20 the worst.
        model.output.bias.copy_(-torch.arange(21.0))
    assert items.evaluate(model, torch.tensor([[0, 5]]), torch.tensor([1])) == (1.0, 1.0)
    hits, ndcg = items.evaluate(model, torch.tensor([[0, 5]] * 2), torch.tensor([3, 11]))
    assert hits == 0.5
    assert ndcg == pytest.approx(0.5 / 2)  # rank 3: 1 / log2(4)
