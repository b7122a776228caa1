"""Filtering on a GPU: documents get what they get on a CPU, in float32 and nearly so in bf16."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from small_corpus import END, random_ids, small_config, small_corpus, small_model

from bnce import DocumentScorer
from bnce.data.filter import Job, run
from bnce.runs.directory import Run
from bnce.runs.model_file import save_weights

LENGTHS = [*range(1, 300, 3), 3000, 1, 64, 900]


def test_a_shard(tmp_path: Path) -> None:
    corpus = small_corpus(tmp_path / "corpus")
    made = Run.create(tmp_path / "run", small_config(corpus), corpus)
    save_weights(made, small_model("relu-lstm").state_dict(), 1)
    texts = [" ".join(f"w{word}" for word in random_ids(length, seed=length) if word != END) for length in LENGTHS]
    (tmp_path / "shard.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = []
    for device, precision in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bf16")):
        out = tmp_path / f"{device}-{precision}"
        scorer = DocumentScorer(made.path, precision=precision, device=device)
        run(Job([str(tmp_path / "shard.jsonl")], out, scorer))
        lines = (out / "shard.jsonl").read_text().splitlines()
        found.append([json.loads(line)["perplexity"] for line in lines])
    plain, exact, rounded = (np.array(one, dtype=float) for one in found)
    np.testing.assert_allclose(exact, plain, rtol=1e-3)
    np.testing.assert_allclose(rounded, plain, rtol=0.1)
