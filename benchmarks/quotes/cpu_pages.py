"""What was measured on a CPU: the demo, exports, added words, the server, training beside others, n-gram models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from .cpu_texts import demo_table, export_text, vocab_text
from .sources import Block, Said, above, markdown, number, said, table, text_of, times

RESULTS, SERVING, COMPARISON, CHOOSING = "docs/results.md", "docs/serving.md", "docs/comparison.md", "docs/choosing.md"
NOTEBOOK = "docs/lab-notebook.md"
REQUESTS = {
    "/score, one sentence": "`/score`, one sentence",
    "/score, one sentence, with `exact`": "the same with `exact`",
    "/rescore, 20 hypotheses": "`/rescore`, 20 hypotheses",
    "/next, 10 words": "`/next`",
    "all of these": "all of these mixed",
    "all of these, bad clients among them": "the same while bad clients send broken, huge, binary and stalled requests",
}
OTHERS = {
    "nn.Linear + cross entropy": "`nn.Linear` + `F.cross_entropy`",
    "the same, compiled": "the same under `torch.compile`",
    "nn.AdaptiveLogSoftmaxWithLoss": "`nn.AdaptiveLogSoftmaxWithLoss`",
    "nn.LinearCrossEntropyLoss": "`nn.LinearCrossEntropyLoss`, in chunks",
    "bnce.OutputLayer, softmax": '`bnce`, `loss="softmax"`',
    "bnce.OutputLayer, chunk-bnce": '`bnce`, `loss="chunk-bnce"`',
    "bnce.OutputLayer, bnce": '`bnce`, `loss="bnce"`',
}
PEERS = {
    "bnce LSTM, B-NCE": "`bnce` LSTM, B-NCE",
    "bnce RNN, B-NCE": "`bnce` RNN, B-NCE",
    "PyTorch LSTM, Adam, softmax": "PyTorch LSTM, softmax",
    "PyTorch LSTM, Adam, adaptive softmax": "PyTorch LSTM, adaptive softmax",
    "PyTorch LSTM, Adam, Pytorch-NCE, K = 100": "PyTorch LSTM, Pytorch-NCE with K = 100",
    "faster-rnnlm, GRU, NCE 50": "faster-rnnlm, GRU, 50 noise words",
    "faster-rnnlm, sigmoid, NCE 50": "faster-rnnlm, sigmoid, 50 noise words",
    "faster-rnnlm, sigmoid, hierarchical softmax": "faster-rnnlm, sigmoid, hierarchical softmax",
}


def quotes() -> Iterator[Block | Said]:
    """Give what the pages quote of a CPU."""
    taken, source = json.loads(text_of("cpu.json")), "benchmarks/results/cpu.json"
    yield Block(RESULTS, "demo", source, demo_table(taken["demo"]))
    first = taken["demo"]["rows"][0]
    sizes = f"{first['vocab_size']:,}", f"{first['train_tokens']:,}"
    yield said(RESULTS, "a ReLu-LSTM over {} words for one epoch on {} tokens of docstrings", *sizes)
    yield Block("docs/export.md", "export", source, export_text(taken["export"]))
    yield Block("docs/usage.md", "vocab", source, vocab_text(taken["vocab"]))
    yield from _serving()
    yield from _others()
    yield from _peers()
    yield from _ngrams()
    watched = next(row for row in table(text_of("threads.md"), "threads | waiting") if row["waiting"] == "watched")
    cells = watched["idle, words/s"], watched["busy, words/s"], *watched["busy, lowest to highest"].split(" to ")
    figures = [f"{number(cell) / 1000:.1f}K" for cell in cells]
    yield said(NOTEBOOK, "threads.md) | {} | {} ({} to {}) | {} |", *figures, watched["busy / idle"])


def _serving() -> Iterator[Block]:
    text = text_of("serve.md")
    taken = {row["requests"]: row for row in table(text, "requests | requests/s")}
    names = ("requests/s", "latency, median ms", "99th percentile, ms", "median ms of one client alone")
    rows = [[shown, *(taken[name][column].split()[0] for column in names)] for name, shown in REQUESTS.items()]
    head = "| requests | requests/s | median, ms | 99th percentile, ms | one client alone, ms |"
    yield Block(SERVING, "load", "benchmarks/results/serve.md", markdown(head, "lrrrr", rows))


def _others() -> Iterator[Block]:
    rows = [
        [OTHERS[row["output layer"]], f"{row['ms']} ms", times(number(row["× faster"]))]
        for row in table(text_of("layer-others-cpu.md"), "output layer | ms")
    ]
    head = "| output layer | forward and backward | × as fast |"
    yield Block(COMPARISON, "layer-others", "benchmarks/results/layer-others-cpu.md", markdown(head, "lrr", rows))


def _peers() -> Iterator[Block]:
    taken = {row["training, 2 threads"]: row for row in table(text_of("cpu-peers.md"), "training, 2 threads")}
    rows, stopped = [], 0
    for name, shown in PEERS.items():
        row = taken[name]
        perplexity = row["sentence by sentence"]
        if not perplexity:
            stopped += 1
            value, after = re.fullmatch(r"(\S+) (after .*)", row["test PPLf in context"]).groups()  # type: ignore[union-attr]
            perplexity = f"{number(value):.0f} in context {after}"
            perplexity = f"not trained to the end: {perplexity}" if stopped == 1 else perplexity
        rows.append([shown, row["tokens/s"].split()[0], perplexity])
    head = "| | training tokens/s | test perplexity, sentence by sentence |"
    yield Block(COMPARISON, "cpu-peers", "benchmarks/results/cpu-peers.md", markdown(head, "lrr", rows))


def _ngrams() -> Iterator[Said]:
    rows = {row["model"]: row for row in table(text_of("nbest.md"), "model | weight | valid")}
    more = next(name for name in rows if re.fullmatch(r"trigram of [\d.]+ times the text", name))
    names = ("bnce run", "trigram of the run's text", "run and that trigram, interpolated", more)
    run, trigram, both, other = (rows[name]["test"] for name in names)
    all_of_it = rows["run and the trigram of more text, interpolated"]["test"]
    weight = number(rows["trigram of the run's text"]["weight"])
    yield said(
        CHOOSING,
        "has a perplexity of {} on test, sentence by sentence. A trigram model of the same text has {}. Both "
        "together have {} (weights {} and {}, found on validation text; one seed). That is {}% lower than the "
        "network alone",
        *(run, trigram, both, f"{1 - weight:.2f}", f"{weight:.2f}"),
        f"{-above(float(both), float(run)):.0f}",
    )
    times = re.findall(r"[\d.]+", more)[0]
    yield said(
        CHOOSING, "A trigram model of {} times the text has {}, and both together have {}.", times, other, all_of_it
    )
    yield said(COMPARISON, "of the same text have a perplexity of {} and {}, and {} together (", run, trigram, both)
