"""`bnce.DocumentScorer`: the numbers of `bnce filter`, in whatever process of a pipeline."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import Command
from small_corpus import change_weights

import bnce as package

TEXTS = ["ba be bi .\nbo bu .", "", "ba zzz", "\0 \ud800 ba", None, "ba be " * 200]


def test_the_numbers_of_the_command(bnce: Command, trained: Path, tmp_path: Path) -> None:
    scorer = package.DocumentScorer(trained, device="cpu")
    found = scorer(TEXTS)
    lines = (json.dumps({"text": text}) for text in TEXTS)
    (tmp_path / "shard.jsonl").write_text("\n".join(lines), encoding="utf-8")
    bnce("filter", trained, tmp_path / "shard.jsonl", "--out", tmp_path / "out", "--device", "cpu")
    rows = [json.loads(line) for line in (tmp_path / "out" / "shard.jsonl").read_text().splitlines()]
    assert found == {name: [row[name] for row in rows] for name in found}
    assert found["perplexity"][1] is None
    assert found["unknown_rate"][2] == 0.5


def test_it_can_be_sent_to_other_processes(trained: Path) -> None:
    scorer = package.DocumentScorer(trained, device="cpu", mode="normalised")
    expected = scorer(TEXTS)
    sent = pickle.dumps(scorer)
    assert len(sent) < 1000
    assert pickle.loads(sent)(TEXTS) == expected
    assert scorer([]) == {"perplexity": [], "num_words": [], "unknown_rate": []}


def test_a_run_trained_again_is_opened_anew(trained: Path, tmp_path: Path) -> None:
    """Workers live on while a run under the same path changes."""
    run = shutil.copytree(trained, tmp_path / "run")
    before = package.DocumentScorer(run, device="cpu")(["ba be"])
    change_weights(run, lambda tensors: tensors["output.bias"].mul_(0.5))
    assert package.DocumentScorer(run, device="cpu")(["ba be"]) != before


def test_what_is_refused(trained: Path, tmp_path: Path) -> None:
    scorer = package.DocumentScorer(trained, device="cpu")
    with pytest.raises(package.UserError, match="The documents are one string"):
        scorer("ba be")
    with pytest.raises(package.UserError, match="A document is 3: give a string"):
        scorer(["ba", 3])  # type: ignore[list-item]
    (tmp_path / "two.arpa").touch()
    with pytest.raises(package.UserError, match="is a file, and the precision is for runs: leave it out"):
        package.DocumentScorer(tmp_path / "two.arpa", precision="bf16")
    with pytest.raises(package.UserError, match="does not exist: check the path"):
        package.DocumentScorer(trained / "none")(["ba"])


def test_scores_in_forked_processes(trained: Path) -> None:
    """Pipelines fork, also after the scorer was tried out, and PyTorch's threads are not there then."""
    program = """
import multiprocessing, sys, warnings
import torch, bnce
warnings.simplefilter("ignore")
torch.set_num_threads(2)
scorer = bnce.DocumentScorer(sys.argv[1], device="cpu")
here = scorer(["ba da fa"] * 300)["perplexity"][0]
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(scorer, [["ba da fa"]])[0]["perplexity"] == [here]
"""
    subprocess.run([sys.executable, "-c", program, trained], check=True, timeout=60)
