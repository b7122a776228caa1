"""The C++ rival of benchmarks/cpu_peers.py: the text it is given, and how its speed is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import cpu_rivals

PROGRAM = """#!/bin/sh
printf 'Epoch 1 progress: 92.49%% 33.24 Kwords/sec  entropy (bits) valid: 8.5 elapsed: 2.0s+1.0s\\nEpoch 2' >&2
exec sleep 60
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    program = tmp_path / "rnnlm"
    program.write_text(PROGRAM, encoding="utf-8")
    program.chmod(0o755)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "vocab.txt").write_text("</s>\n<unk>\nthe\ncat\n", encoding="utf-8")
    for split in ("train", "valid", "test"):
        np.save(corpus / f"{split}.npy", np.array([2, 3, 0, 0, 1, 2, 0, 3], dtype=np.uint16))
    cpu_rivals.write_words(corpus, tmp_path, 2)
    return tmp_path


def test_the_rival_reads_the_same_words(work: Path) -> None:
    assert (work / "train.words").read_text(encoding="utf-8") == "the cat\n<unk> the\ncat\n"
    assert (work / "part.words").read_text(encoding="utf-8") == "the cat\n<unk> the\n"


def test_the_rival_is_stopped_after_one_epoch_and_its_own_seconds_count(work: Path) -> None:
    (work / "model.nnet").write_text("of another run", encoding="utf-8")
    files = (work / "train.words", work / "valid.words", work / "model")
    per_second, per_cpu_second = cpu_rivals.train_rnnlm(work / "rnnlm", ["-nce", 15], *files, 1)
    assert per_second == 8 / 2.0, "five words and three ends of sentences"
    assert per_cpu_second > 0
    assert not (work / "model.nnet").exists()
