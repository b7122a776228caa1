"""Which model, loss and units: docs/choosing.md."""

from __future__ import annotations

from collections.abc import Iterator

from .paper_runs import ppl
from .sources import Row, Said, above, experiment, lines_of, number, said, times
from .words_and_pieces import final_runs, lead_over_pieces, mean, other_conditions, points, table_numbers, without_unk

CHOOSING = "docs/choosing.md"


def quotes() -> Iterator[Said]:
    """Give what docs/choosing.md quotes, but its n-gram models."""
    found, other = final_runs(), other_conditions()
    words, dense, pieces = found.values()
    yield said(
        CHOOSING,
        "a test PPLf of {} in {} seconds of training.",
        ppl(mean(words, "ppl_f")),
        f"{mean(words, 'seconds'):.0f}",
    )
    lines = [line for line in lines_of("h200/bodies.jsonl") if line["side"] == "words chunk-bnce"]
    taken = {(line["size"], line["epochs"]): line for line in lines if line["stage"] == "frontier"}
    small, large, longer = (taken[key] for key in (("200-600-400", 1), ("400-1600-400", 1), ("400-1600-400", 2)))
    yield said(
        CHOOSING,
        "reaches {} with chunk B-NCE in {} seconds, and keeps 1,200 numbers per hypothesis. A larger one "
        "(400–1600–400) reaches {} in {} seconds, and {} in {} seconds after two epochs.",
        *(
            figure
            for line in (small, large, longer)
            for figure in (ppl(line["test"]["ppl_f"]), f"{line['seconds']:.0f}")
        ),
    )
    yield said(
        CHOOSING,
        "has a test perplexity of {} per word after one epoch, in {} seconds.",
        ppl(mean(pieces, "ppl_f")),
        f"{mean(pieces, 'seconds'):.0f}",
    )
    by_words, by_pieces = points("words chunk-bnce"), points("pieces softmax")
    two = [ppl(side["512 x 6", 2]["ppl_f"]) for side in (by_words, by_pieces)]
    yield said(CHOOSING, "both are nearly equal ({} and {}; one seed), and words take", *two)
    lead, whole, _, share = lead_over_pieces(other)
    all_of_it = [ppl(mean(other[80_000, side], "ppl_f")) for side in ("words chunk-bnce", "pieces softmax")]
    yield said(
        CHOOSING,
        "words are ahead by {}% on the first 400,000 words of test ({} with two seeds, {} with one) and by {}% on the "
        "whole test, in {}% of the time.",
        lead,
        *all_of_it,
        whole,
        share,
    )
    yield said(
        CHOOSING,
        "are spelled ({} and {} per word)",
        *(ppl(number(row["perplexity per word"])) for row in without_unk()),
    )
    four = [ppl(side["384 x 6", 4]["ppl_f"]) for side in (by_pieces, by_words)]
    yield said(CHOOSING, "pieces are better ({} at 384 units; words {}),", *four)
    numbers = [f"{table_numbers(size) / 1e6:.0f}M" for size in (32_768, 80_000)]
    yield said(CHOOSING, "smaller tables ({} against {} numbers)", *numbers)
    unknown = experiment("sgd")["relu-lstm", "bnce"]["oov_share"]  # the same text and vocabulary
    yield said(CHOOSING, "`<unk>` words ({}% of the test)", f"{100 * unknown:.1f}")
    yield from _losses(words, dense, other)


def _losses(words: list[Row], dense: list[Row], other: dict[tuple[int, str], list[Row]]) -> Iterator[Said]:
    ltcb, obwb = experiment("ltcb"), experiment("obwb")
    models = [model for model, loss in ltcb if loss == "chunk-bnce"]
    change = [above(ltcb[model, "chunk-bnce"]["ppl_f"], ltcb[model, "softmax"]["ppl_f"]) for model in models]
    faster = [ltcb[model, "chunk-bnce"]["speedup_over_softmax"] for model in models]
    faster.append(mean(words, "words_per_second") / mean(dense, "words_per_second"))
    few, few_dense = (other[800_000, side] for side in ("words chunk-bnce", "words softmax"))
    yield said(
        CHOOSING,
        "its PPLf is between {}% below and {}% above the softmax's. It is {} to {} times as fast with 80,000 words, "
        "and {} times with the paper's larger ReLu-LSTM over 800,000. With a Transformer, 800,000 words and only 6M "
        "words of text, its PPLf was {}% above the softmax's, and it was {} times as fast",
        f"{-min(change):.1f}",
        f"{max(change):.1f}",
        f"{min(faster):.0f}",
        f"{max(faster):.0f}",
        times(obwb["relu-lstm", "chunk-bnce"]["speedup_over_softmax"]),
        f"{above(mean(few, 'ppl_f'), mean(few_dense, 'ppl_f')):.0f}",
        f"{mean(few_dense, 'seconds') / mean(few, 'seconds'):.0f}",
    )
    chunk = [line for line in lines_of("h200/bodies-chunk-softmax.jsonl") if line["stage"] == "final"]
    yield said(
        CHOOSING,
        "it has a PPLf of {}, level with the softmax ({}) and {}% below chunk B-NCE",
        ppl(mean(chunk, "ppl_f")),
        ppl(mean(dense, "ppl_f")),
        f"{-above(mean(chunk, 'ppl_f'), mean(words, 'ppl_f')):.1f}",
    )
    yield said(
        CHOOSING, "Its PPLn is {}% below its PPLf: fit", f"{-above(mean(chunk, 'ppl_n'), mean(chunk, 'ppl_f')):.0f}"
    )
