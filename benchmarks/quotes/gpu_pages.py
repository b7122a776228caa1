"""What was measured on an H200 besides training: output layers, reading times, filtering, many processes, items."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator

import item_tables

from .sources import H200, Block, Row, Said, lines_of, markdown, number, said, table, text_of

COMPARISON, METHOD, SURPRISAL = "docs/comparison.md", "docs/method.md", "docs/surprisal.md"
FILTERING, SCALING, ITEMS = "docs/filtering.md", "docs/scaling.md", "docs/other-fields.md"
READING = {
    "5-gram of the same text": "5-gram",
    "ReLu-LSTM 400–1600–400, exact": "ReLu-LSTM 400–1600–400",
    "LSTM 512–1024, exact": "LSTM 512–1024",
    "Transformer 512 × 6, exact": "Transformer 512 × 6",
    "Transformer 512 × 6, constant Z": "Transformer 512 × 6, constant Z",
    "GPT-3 davinci, as published": "GPT-3 davinci, as published with the data",
}
JUDGED = {
    "Good passages and other": "other passages, 5% of the words replaced by words of similar frequency",
    "A passage and itself with two sentences": "themselves with two sentences of another document",
    "A passage and itself with its sentences": "themselves with their sentences shuffled",
    "Docstrings": "docstrings of Python code",
}


def quotes() -> Iterator[Block | Said]:
    """Give what the pages quote of a GPU."""
    yield from _layers()
    yield from _reading()
    yield from _filtering()
    yield from _processes()
    yield from _items()


def _layers() -> Iterator[Said]:
    (forms,) = table(text_of("h200/softmax.md"), "| V | D")
    ms = {name: f"{number(cell.strip('*')):.2f}" for name, cell in forms.items() if "ms" in cell}
    for words, name in (
        ("keeps all logits | {} ms |", "plain"),
        ("fewer passes over the logits | {} ms |", "compiled"),
        ("memory does not grow with V | {} ms |", "cce"),
        ("keeps few logits | {} ms |", "liger"),
        ("our fused softmax | {} ms |", "fused"),
    ):
        yield said(COMPARISON, words, ms[name])
    less = 100 * (1 - float(ms["fused"]) / float(ms["compiled"]))
    yield said(METHOD, "takes {}% less time than compiled cross entropy", f"{less:.0f}")
    for row in table(text_of("h200/layer-calls.md"), "loss | call"):
        if row["call"] == "layer(h, t)":
            both = [f"{float(row[way]):.2f}" for way in ("launched, ms", "captured, ms")]
            words = {"bnce": "fewer noise words per position", "chunk-bnce": "no sum over V at all"}[row["loss"]]
            yield said(COMPARISON, f"{words} | {{}} ms; {{}} ms as a CUDA graph |", *both)


def _reading() -> Iterator[Block | Said]:
    text = text_of("h200/reading.md")
    rows = {row["surprisal of"]: row for row in table(text, "surprisal of | seeds")}
    num_seeds = int(rows["Transformer 512 × 6, exact"]["seeds"])
    if num_seeds == 1:  # then the table of single seeds has the intervals
        rows |= {re.sub(r", seed \d+", "", row["run"]): row for row in table(text, "run | PPLf")}
    both = ("gain, stories 1 to 7", "gain, all ten stories")
    cells = [[shown, *(rows[name][column] for column in both)] for name, shown in READING.items()]
    head = "| surprisal of | stories 1 to 7 | all ten stories |"
    yield Block(SURPRISAL, "reading", f"{H200}/reading.md", markdown(head, "lrr", cells))
    yield said(SURPRISAL, "Number of seeds per model: {}. The", str(num_seeds))
    lead = rows[f"Transformer 512 × 6, {'exact' if num_seeds == 1 else 'mean of the seeds'}"]
    words = "The Transformer's lead over the 5-gram, {} [{}, {}], may be chance."
    yield said(SURPRISAL, words, *re.findall(r"[+−][\d.]+", lead["minus 5-gram, stories 1 to 7"]))


def _filtering() -> Iterator[Block | Said]:
    text = text_of("h200/filter.md")
    rows = []
    for title, shown in JUDGED.items():
        taken = table(text.partition(f"### {title}")[2], "model")
        values = {row["model"]: f"{number(row.get('ROC area') or row['share of pairs']):.3f}" for row in taken}
        names = ("KenLM 5-gram", "ReLu-LSTM", "Transformer")
        rows.append([shown, *(next(value for name, value in values.items() if name.startswith(one)) for one in names)])
    head = "| good passages against | KenLM 5-gram | ReLu-LSTM | Transformer |"
    yield Block(FILTERING, "judgement", f"{H200}/filter.md", markdown(head, "lrrr", rows))
    taken = table(text_of("filter.md"), "model | words/s")
    cells = [[row["model"], row["words/s"], row["perplexity"]] for row in taken]
    head = "| model | words/s, two cores | perplexity |"
    of_networks = sorted(number(row["perplexity"]) for row in taken if not row["model"].startswith("KenLM"))
    of_ngrams = next(number(row["perplexity"]) for row in taken if row["model"].startswith("KenLM"))
    yield said(
        COMPARISON,
        "a lower perplexity: {} to {} where the 5-gram has {}, for models",
        *(f"{value:.0f}" for value in (of_networks[0], of_networks[-1], of_ngrams)),
    )
    yield Block(FILTERING, "filter-cpu", "benchmarks/results/filter.md", markdown(head, "lrr", cells))
    end_to_end, alone = (number(row["words/s"]) for row in table(text, "what | words"))
    yield said(FILTERING, "filtered {} words per second", f"{end_to_end:.1f}M")
    yield said(FILTERING, "the model alone would allow {}.\n", f"{alone:.0f}M")


def _processes() -> Iterator[Block | Said]:
    measurements = json.loads(text_of("h200/paper.json"))["measurements"]
    alone = next(
        row for row in measurements if (row["table"], row["model"], row["loss"]) == ("ltcb", "relu-lstm", "bnce")
    )
    lines = [line for line in text_of("h200/distributed.md").splitlines() if line.startswith("|")]
    (head, _, *rows) = [line.strip("| ").split(" | ") for line in lines]
    # The result has a way to keep tables that is gone, three columns of it.
    head, *rows = [cells[:4] + cells[7:] for cells in (head, *rows)]
    plain = next(cells[2] for cells in rows if cells[:2] == ["ltcb", "bnce"])
    yield said(SCALING, "with B-NCE takes {} ms here, but {} ms in\n", plain, f"{1000 * alone['step_seconds']:.3f}")
    shown = markdown(f"| {' | '.join(head)} |", "ll" + "r" * 5, rows)
    yield Block(SCALING, "one-process", f"{H200}/distributed.md", shown)


def _items() -> Iterator[Block | Said]:
    lines = lines_of("items/items.jsonl")
    yield Block(ITEMS, "items", "benchmarks/results/items/items.jsonl", item_tables.markdown(lines))
    sets = ("Beauty", "Toys_and_Games", "Sports_and_Outdoors")
    yield said(
        ITEMS,
        "(Beauty {} and {}, Toys {} and {}, Sports {} and {}), at",
        *(_mean(lines, name, loss, "ndcg") for name in sets for loss in ("bnce", "softmax")),
    )
    yield said(
        ITEMS,
        "are equal within the deviation ({} and {}, {} and {}, {} and {}).",
        *(_mean(lines, name, loss, "ndcg_unseen") for name in sets for loss in ("chunk-bnce", "softmax")),
    )
    large = {line["loss"]: line for line in lines if line["stage"] == "catalogue" and line["num_items"] == 10_000_000}
    blocks = next(line for line in large.values() if "a few positions" in line["words"] and not line.get("gave_up"))
    gibibytes = blocks["peak_memory_bytes"] / 2**30
    yield said(ITEMS, "needs {} ms per step and {} GiB if", f"{blocks['ms_per_step']:.0f}", f"{gibibytes:.0f}")
    speed = {loss: f"{line['items_per_second'] / 1e6:.2f}M" for loss, line in large.items() if not line.get("gave_up")}
    yield said(
        ITEMS,
        "B-NCE trains {} items per second. The fastest losses without B-NCE are binary cross entropy with {} "
        "and in-batch softmax with {}, with about",
        *(speed[loss] for loss in ("bnce", "bce", "in-batch")),
    )


def _mean(lines: list[Row], name: str, loss: str, column: str) -> str:
    runs = [line[column] for line in lines if (line["stage"], line["set"], line["loss"]) == ("final", name, loss)]
    return f"{statistics.mean(runs):.4f}"
