"""What trains a language model on a CPU besides bnce, at the same sizes and on the same words: PyTorch loops, C++.

    python benchmarks/cpu_rivals.py CORPUS softmax --seconds 100 --threads 2         # one PyTorch loop, as JSON

A PyTorch loop is what somebody writes who has no toolkit: an embedding, nn.LSTM, a layer for the loss and Adam, over
the streams that bnce trains on (B = 64, T = 20). Three losses: nn.Linear with cross entropy, PyTorch's adaptive
softmax, and Pytorch-NCE (its directory is given). faster-rnnlm is a C++ program; it reads a sentence per line.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SIZE, NUM_STREAMS, NUM_STEPS, RATE, CLIP = 256, 64, 20, 1e-3, 5.0
LOOPS = {"softmax": "softmax", "adaptive": "adaptive softmax", "nce": "Pytorch-NCE, K = 100"}
NUM_NOISE, CUTOFFS = 100, [2000, 10000]
NUM_TEST_TOKENS = 20_000
FIRST_SECONDS = 2.0  # that are not timed


def train_loop(corpus: Path, kind: str, seconds: float, num_threads: int, nce: Path | None) -> dict[str, float]:
    """Train for so many seconds, at most one epoch, and read the first test tokens."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    torch.set_num_threads(num_threads)
    torch.manual_seed(1)
    ids, test = (torch.from_numpy(np.load(corpus / f"{split}.npy").astype(np.int64)) for split in ("train", "test"))
    counts = torch.from_numpy(np.load(corpus / "counts.npy").astype(np.float32))
    vocab_size = len(counts)
    embedding, lstm = nn.Embedding(vocab_size, SIZE), nn.LSTM(SIZE, SIZE)
    if kind == "softmax":
        layer: nn.Module = nn.Linear(SIZE, vocab_size)
    elif kind == "adaptive":
        layer = nn.AdaptiveLogSoftmaxWithLoss(SIZE, vocab_size, CUTOFFS)
    else:
        sys.path.insert(0, str(nce))
        from nce import IndexLinear  # type: ignore[import-not-found]

        layer = IndexLinear(SIZE, vocab_size, noise=counts / counts.sum(), noise_ratio=NUM_NOISE, norm_term=9)

    def loss_of(hidden_TBD: Tensor, target_TB: Tensor) -> Tensor:
        flat, targets = hidden_TBD.flatten(0, 1), target_TB.flatten()
        if kind == "softmax":
            return functional.cross_entropy(layer(flat), targets)
        loss: Tensor = layer(flat, targets).loss if kind == "adaptive" else layer(target_TB, hidden_TBD).mean()
        return loss

    parameters = [*embedding.parameters(), *lstm.parameters(), *layer.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    length = (len(ids) - 1) // NUM_STREAMS
    words_SB = ids[: NUM_STREAMS * length].view(NUM_STREAMS, length).t().contiguous()
    state, begin, timed, used, num_timed = None, time.monotonic(), 0.0, 0.0, 0
    for place in range(0, length - NUM_STEPS - 1, NUM_STEPS):
        if not timed and time.monotonic() - begin > FIRST_SECONDS:
            timed, used, num_timed = time.monotonic(), time.process_time(), 0
        if time.monotonic() - begin > seconds:
            break
        chunk = words_SB[place : place + NUM_STEPS + 1]
        hidden_TBD, state = lstm(embedding(chunk[:-1]), state)
        state = (state[0].detach(), state[1].detach())
        optimiser.zero_grad()
        loss_of(hidden_TBD, chunk[1:]).backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimiser.step()
        num_timed += NUM_STREAMS * NUM_STEPS
    speeds = (num_timed / (time.monotonic() - timed), num_timed / (time.process_time() - used))
    layer.eval()
    total, state = 0.0, None
    with torch.no_grad():
        for start in range(0, NUM_TEST_TOKENS, 1000):
            chunk = test[start : start + 1001, None]
            hidden_TBD, state = lstm(embedding(chunk[:-1]), state)
            if kind == "adaptive":
                total += float(layer(hidden_TBD.flatten(0, 1), chunk[1:, 0]).output.sum())
                continue
            table, bias = (
                (layer.weight, layer.bias) if kind == "softmax" else (layer.emb.weight, layer.bias.weight[:, 0])
            )
            logits = functional.linear(hidden_TBD.flatten(0, 1), table, bias)
            total -= float(functional.cross_entropy(logits, chunk[1:, 0], reduction="sum"))
    perplexity = math.exp(-total / NUM_TEST_TOKENS)
    return {"tokens_per_second": speeds[0], "tokens_per_cpu_second": speeds[1], "perplexity": perplexity}


def write_words(corpus: Path, out: Path, num_sentences: int) -> None:
    """Write the words of a corpus as faster-rnnlm reads them, one sentence per line; `part` is the first sentences."""
    words = (corpus / "vocab.txt").read_text(encoding="utf-8").splitlines()
    for split, limit in {"train": None, "valid": 100, "test": NUM_TEST_TOKENS}.items():
        ids = np.load(corpus / f"{split}.npy")[:limit].tolist()
        text = " ".join("\n" if word == 0 else words[word] for word in ids)
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        (out / f"{split}.words").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if split == "train":
            (out / "part.words").write_text("\n".join(lines[:num_sentences]) + "\n", encoding="utf-8")


def train_rnnlm(
    program: Path, options: Sequence[object], train: Path, valid: Path, model: Path, num_threads: int
) -> tuple[float, float]:
    """Let faster-rnnlm train for one epoch; give tokens per second by its own clock, and per CPU second."""
    for old in model.parent.glob(f"{model.name}*"):
        old.unlink()
    files = ["-rnnlm", model, "-train", train, "-valid", valid, "-hidden", SIZE, "-threads", num_threads, "-seed", 1]
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen([str(part) for part in (program, *files, *options)], stderr=subprocess.PIPE)
    assert process.stderr is not None
    told = b""
    # Its model is written after the figures of an epoch, and before the next one begins.
    while b"Epoch" not in told.partition(b"elapsed")[2] and (more := process.stderr.read1(4096)):
        told += more
    process.kill()
    process.communicate()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - begun.ru_utime - begun.ru_stime
    with open(train, encoding="utf-8") as lines:
        num_tokens = sum(len(line.split()) + 1 for line in lines)
    elapsed = float(re.findall(rb"elapsed: ([\d.]+)s", told)[0])
    return num_tokens / elapsed, num_tokens / seconds


def rnnlm_perplexity(program: Path, model: Path, test: Path) -> float:
    """Read the perplexity that faster-rnnlm gives a text, with its softmax computed in full."""
    command = [program, "-rnnlm", model, "-test", test, "-nce-accurate-test", 1]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    bits = float(re.findall(r"entropy.*?([\d.]+)\s*$", done.stdout + done.stderr, flags=re.MULTILINE)[-1])
    return 2.0**bits


def main() -> None:
    """Train one PyTorch loop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="corpus directory")
    parser.add_argument("kind", choices=LOOPS)
    parser.add_argument("--seconds", type=float, default=100.0, help="train for N seconds, at most one epoch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pytorch-nce", type=Path, help="directory of Pytorch-NCE, for nce")
    given = parser.parse_args()
    found = train_loop(given.corpus, given.kind, given.seconds, given.threads, given.pytorch_nce)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
