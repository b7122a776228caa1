"""The README: speed and perplexity on the whole text, scoring and rescoring, the layer alone."""

from __future__ import annotations

from collections.abc import Iterator

from .paper_runs import ppl, seconds
from .recognisers import real_lists
from .sources import (
    H200,
    Block,
    Row,
    Said,
    above,
    experiment,
    markdown,
    millions,
    number,
    said,
    spelled,
    table,
    text_of,
    times,
)
from .words_and_pieces import final_runs, mean, other_conditions

PAGE = "README.md"
WHOLE_TEXT = {
    "softmax": "softmax (our own)",
    "bnce": "B-NCE",
    "chunk-bnce": "**chunk B-NCE**",
}
RIVALS = ("Liger 0.8.5 `sm90` (CuTe)", "our fused")
LAYERS = ("nn.Linear + cross entropy", "bnce", "chunk-bnce")


def quotes() -> Iterator[Block | Said]:
    """Give what the README quotes."""
    yield from _training()
    yield from _scoring()
    yield from _choosing()
    yield from _layer()


def _training() -> Iterator[Block | Said]:
    runs = experiment("ltcb-all")
    rows = [
        [name, ppl(row["ppl_n"]), ppl(row["ppl_f"]), millions(row["words_per_second"]), seconds(row, 1)]
        for loss, name in WHOLE_TEXT.items()
        for row in [runs["relu-lstm", loss]]
    ]
    head = "| | PPLn | PPLf | training tokens/s | seconds |"
    yield Block(PAGE, "whole-text", f"{H200}/experiments/ltcb-all.json", markdown(head, "lrrrr", rows))
    yield said(
        "docs/index.md",
        "best perplexity in {} seconds, and our extension of it, chunk B-NCE, in {} seconds. The softmax itself needs "
        "{} seconds.",
        *(f"{runs['relu-lstm', loss]['seconds_to_softmax_quality']:.1f}" for loss in ("bnce", "chunk-bnce", "softmax")),
    )
    yield said(PAGE, "one epoch on {} tokens of Wikipedia", f"{runs['relu-lstm', 'bnce']['train_tokens'] / 1e6:.0f}M")
    large = experiment("obwb")
    dense, chunk = (large["relu-lstm", loss] for loss in ("softmax", "chunk-bnce"))
    few, few_dense = (other_conditions()[800_000, side] for side in ("words chunk-bnce", "words softmax"))
    yield said(
        PAGE,
        "larger ReLu-LSTM on {} training tokens {} times as fast as our softmax, and its PPLf is {}% higher (one seed; "
        "the learning rates were not searched). With a Transformer and 6M words of text, it is {} times as fast, and "
        "its PPLf is {}% higher.",
        f"{chunk['train_tokens'] / 1e6:.0f}M",
        times(chunk["speedup_over_softmax"]),
        f"{above(chunk['ppl_f'], dense['ppl_f']):.1f}",
        f"{mean(few_dense, 'seconds') / mean(few, 'seconds'):.0f}",
        f"{above(mean(few, 'ppl_f'), mean(few_dense, 'ppl_f')):.0f}",
    )
    rivals = table(text_of("h200/softmax-rivals.md"), "V × D")
    yield said(
        PAGE,
        "takes {} ms where ours takes {} ms at V = 80,000, and {} ms where ours takes {} ms at 793,600",
        *(f"{number(row[name]):g}" for row in (rivals[0], rivals[-1]) for name in RIVALS),
    )


def _scoring() -> Iterator[Said]:
    small, large = (f"{number(row['speed-up']):.0f}" for row in table(text_of("score.md"), "recipe, sizes | exact"))
    yield said(PAGE, "ReLu-LSTM scores {} times as many sentences per second", small)
    yield said(PAGE, "its larger one {} times as many", large)
    lists = real_lists()
    best = next(rates for name, rates in lists.items() if name.startswith("the same"))  # as the Transformer above it
    before, after, ngram = (
        f"{number(rates[0]):.1f}" for rates in (lists["first best"], best, lists["5-gram, books + wiki"])
    )
    yield said(
        PAGE,
        "lowers its word error rate from {} to {}%. A 5-gram model of the same text reaches {}% (",
        before,
        after,
        ngram,
    )


def _choosing() -> Iterator[Said]:
    words, dense, pieces = final_runs().values()
    yield said(
        PAGE,
        "After one pass over {} words its PPLf was {}, in {} seconds on the H200. With the softmax it was {}, in {} "
        "seconds.",
        f"{words[0]['train_words'] / 1e6:.1f}M",
        *(figure for runs in (words, dense) for figure in _result(runs)),
    )
    yield said(PAGE, "BPE pieces with the softmax had {} per word, in {} seconds.", *_result(pieces))
    other = other_conditions()
    whole = [other[80_000, side] for side in ("words chunk-bnce", "pieces softmax")]
    more = whole[0][0]["train_words"] / words[0]["train_words"]
    yield said(
        PAGE,
        "On {} times the text, words with chunk B-NCE have {} and pieces {}.",
        spelled(more),
        *(ppl(mean(runs, "ppl_f")) for runs in whole),
    )


def _result(runs: list[Row]) -> tuple[str, str]:
    return ppl(mean(runs, "ppl_f")), f"{mean(runs, 'seconds'):.0f}"


def _layer() -> Iterator[Block | Said]:
    taken = table(text_of("h200/layer-linear.md"), "V | output layer")
    by = {(row["V"], row["output layer"]): row for row in taken}
    rows = []
    for size in dict.fromkeys(row["V"] for row in taken):
        both = [(by[size, name]["ms"], by[size, name]["extra MiB"]) for name in LAYERS]
        rows.append([size, *(f"{time} ms, {memory} MiB" if memory else time for time, memory in both)])
    head = "| classes | before: `nn.Linear` + cross entropy | after: B-NCE | after: chunk B-NCE |"
    yield Block(PAGE, "layer", f"{H200}/layer-linear.md", markdown(head, "rrrr", rows))
    spread = max(number(row["±"]) for row in taken if row["output layer"] != LAYERS[0])
    yield said(PAGE, "differs by up to {}% between rounds", f"{spread:.0f}")
