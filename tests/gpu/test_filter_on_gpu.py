"""Filtering on a GPU: documents get what they get on a CPU, by captured graphs, in float32 and nearly so in bf16."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from bnce.filtering import streams
from bnce.filtering.choice import Choice
from bnce.filtering.engine import Scoring
from bnce.filtering.filter import Job, run
from bnce.filtering.shard_work import Plan
from bnce.filtering.streams import StreamScorer
from bnce.filtering.writing import Form
from small_corpus import END, random_ids, score_all, small_config, small_corpus, small_model

from bnce.runs.directory import Run
from bnce.runs.model_file import save_weights
from bnce.scoring.batches import SentenceScorer

DEVICE = torch.device("cuda")
LENGTHS = [*range(1, 300, 3), 3000, 1, 64, 900]


def make_documents() -> list[np.ndarray]:
    documents = [random_ids(length, seed=length) for length in LENGTHS]
    for one in documents:
        one[-1] = END
    return documents


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("body", ["ffnn", "rnn", "relu-lstm", "transformer"])
def test_agrees_with_the_cpu(body: str, normalised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MIN_STREAMS", 4)
    model, documents = small_model(body, order=4, num_layers=0, num_heads=2).eval(), make_documents()
    expected = score_all(StreamScorer(model, normalised=normalised), documents)
    there = copy.deepcopy(model).to(DEVICE)
    for precision, tolerance in (("float32", 1e-4), ("tf32", 1e-2), ("bf16", 3e-2)):
        scorer = StreamScorer(there, normalised=normalised, precision=precision, num_streams=64)
        for _ in range(3):  # as it is, captured, and replayed
            np.testing.assert_allclose(score_all(scorer, documents), expected, rtol=tolerance)
        widths = {width: chunk._graph is not None for width, chunk in scorer._chunks.items()}
        assert {4, 64} <= set(widths)
        assert any(widths.values()) == (body != "transformer")


def test_sentences_are_scored_as_on_a_cpu() -> None:
    """What `score`, `surprisal` and `serve` do: one kernel reads the rows of the given words."""
    model = small_model("relu-lstm").eval()
    sentences = [one[:40] for one in make_documents()]
    there = copy.deepcopy(model).to(DEVICE)
    for normalised in (False, True):
        found, expected = (SentenceScorer(one, normalised=normalised).score(sentences) for one in (there, model))
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=1e-4, atol=1e-4)


def test_a_shard(tmp_path: Path) -> None:
    corpus = small_corpus(tmp_path / "corpus")
    made = Run.create(tmp_path / "run", small_config(corpus), corpus)
    save_weights(made, small_model("relu-lstm").state_dict(), 1)
    words = [" ".join(f"w{word}" for word in one[:-1]) for one in make_documents()]
    (tmp_path / "shard.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in words))
    found = []
    for device, precision in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bf16")):
        plan = Plan(tmp_path / f"{device}-{precision}", Form(), Choice())
        scoring = Scoring(str(made.path), precision=precision, device=device)
        summary = run(Job([str(tmp_path / "shard.jsonl")], scoring, plan, num_workers=2)).to_dict()
        assert ("precision_check" in summary) == (precision == "bf16")
        lines = (plan.out / "shard.jsonl").read_text().splitlines()
        found.append([json.loads(line)["perplexity"] for line in lines])
    plain, exact, rounded = (np.array(one, dtype=float) for one in found)
    np.testing.assert_allclose(exact, plain, rtol=1e-3)
    np.testing.assert_allclose(rounded, plain, rtol=0.1)
