"""A Transformer over words and over BPE pieces: docs/results.md and comparison.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from .paper_runs import ppl
from .sources import H200, Block, Row, Said, above, experiment, lines_of, markdown, number, said, table, text_of

RESULTS, COMPARISON = "docs/results.md", "docs/comparison.md"
SIDES = {
    "words chunk-bnce": "words, **chunk B-NCE**",
    "words softmax": "words, softmax",
    "pieces softmax": "BPE pieces, softmax",
}
CONDITIONS = {
    80_000: "all of the text, 109.0M words, V = 80,000",
    187_364: "cased, V = 187,364, 6M words",
    800_000: "cased, V = 800,000, 6M words",
}


def final_runs() -> dict[str, list[Row]]:
    """Give the final runs of each side, with the settings that validation text alone chose."""
    lines, found = lines_of("h200/bodies.jsonl"), {}
    for side in SIDES:
        searched = [line for line in lines if (line["stage"], line["side"]) == ("search", side)]
        best = min(searched, key=lambda line: line["valid"]["ppl_f"])["settings"]
        runs = [line for line in lines if (line["stage"], line["side"], line["settings"]) == ("final", side, best)]
        found[side] = sorted(runs, key=lambda run: run["seed"])
    return found


def other_conditions() -> dict[tuple[int, str], list[Row]]:
    """Give the runs on all of the text and with large vocabularies, by number of words and side."""
    found: dict[tuple[int, str], list[Row]] = {}
    for line in (*lines_of("h200/bodies-all.jsonl"), *lines_of("h200/bodies-cased.jsonl")):
        found.setdefault((line["known_words"], line["side"]), []).append(line)
    return found


def mean(runs: Sequence[Row], name: str, part: str = "test") -> float:
    """Average a figure over seeds."""
    values = [run[part][name] if name.startswith(("ppl", "bits")) else run[name] for run in runs]
    return float(statistics.mean(values))


def without_unk() -> list[dict[str, str]]:
    """Give the rows of words and pieces where every string has a probability."""
    return table(text_of("h200/bodies.md"), "| perplexity per word")


def quotes() -> Iterator[Block | Said]:
    """Give what both pages quote."""
    found, other = final_runs(), other_conditions()
    yield from _one_epoch(found)
    yield from _other_conditions(found, other)
    yield from _frontier()
    words, _, pieces = found.values()
    yield said(
        COMPARISON,
        "its perplexity was {} per word, in {} seconds; that of whole words with chunk B-NCE was {}, in {} seconds.",
        *(cell for runs in (pieces, words) for cell in (ppl(mean(runs, "ppl_f")), f"{mean(runs, 'seconds'):.0f}")),
    )


def _one_epoch(found: dict[str, list[Row]]) -> Iterator[Block | Said]:
    rows = []
    for side, runs in found.items():
        cells = [_spread(runs, "ppl_f", 2), _spread(runs, "ppl_n", 2), _spread(runs, "bits_per_byte", 4, "whole")]
        speed = f"{mean(runs, 'words_per_second') / 1e6:.2f}M"
        rows.append([SIDES[side], *cells, speed, f"{mean(runs, 'seconds'):.1f}"])
    head = "| | PPLf | PPLn | bits per byte | words/s | seconds of training |"
    yield Block(RESULTS, "words-and-pieces", f"{H200}/bodies.jsonl", markdown(head, "lrrrrr", rows))
    words, dense, pieces = found.values()
    yield said(RESULTS, "on {} words of Wikipedia (with marks", f"{words[0]['train_words']:,}")
    yield said(RESULTS, "There are {} pieces per word", f"{pieces[0]['per_word']:.2f}")
    yield said(
        RESULTS,
        "The PPLf of words with chunk B-NCE is {}% below that of pieces with the softmax, in {}% of the time. It is "
        "{}% above that of words with the softmax, in {}% of the time. On the whole test ({} words) the order is the "
        "same: {}, {} and {}.",
        f"{-above(mean(words, 'ppl_f'), mean(pieces, 'ppl_f')):.1f}",
        f"{100 * mean(words, 'seconds') / mean(pieces, 'seconds'):.0f}",
        f"{above(mean(words, 'ppl_f'), mean(dense, 'ppl_f')):.1f}",
        f"{100 * mean(words, 'seconds') / mean(dense, 'seconds'):.0f}",
        f"{words[0]['whole']['words']:,}",
        *(ppl(mean(runs, "ppl_f", "whole")) for runs in (words, dense, pieces)),
    )
    sizes = [f"{runs[0]['num_parameters'] / 1e6:.0f}M" for runs in (words, pieces)]
    yield said(
        RESULTS,
        "has more parameters ({}, of them {} in the two tables of words) than the one over pieces ({}).",
        sizes[0],
        f"{table_numbers(80_000) / 1e6:.0f}M",
        sizes[1],
    )
    too_high = {"optimiser.learning_rate": 0.004, "optimiser.body_learning_rate": 0.002}
    (failed,) = [
        line for line in lines_of("h200/bodies.jsonl")
        if line["side"] == "words chunk-bnce" and too_high.items() <= line["settings"].items()
    ]  # fmt: skip
    yield said(RESULTS, "chunk B-NCE ended at {}, while", f"{failed['valid']['ppl_f']:.0f}")


def _other_conditions(found: dict[str, list[Row]], other: dict[tuple[int, str], list[Row]]) -> Iterator[Block | Said]:
    rows = []
    for known, conditions in CONDITIONS.items():
        for side, name in SIDES.items():
            if runs := other.get((known, side)):
                digits = 2 if known == 80_000 else 1
                seeds = " (two seeds)" if len(runs) == 2 else ""
                shown = conditions if side == "words chunk-bnce" else ""
                rows.append([shown, name, _spread(runs, "ppl_f", digits) + seeds, _spread(runs, "ppl_n", digits),
                             f"{mean(runs, 'seconds'):.1f}"])  # fmt: skip
    head = "| conditions | side | PPLf | PPLn | seconds of training |"
    sources = f"{H200}/bodies-all.jsonl and bodies-cased.jsonl"
    yield Block(RESULTS, "other-conditions", sources, markdown(head, "llrrr", rows))
    yield said(
        RESULTS,
        "Trained on all of the text, the PPLf of words with chunk B-NCE is {}% below that of pieces on the first "
        "400,000 words of test and {}% on the whole test ({}% with equal seeds), in {}% of the time. On a quarter of "
        "the text it was {}% below (first 400,000 words). The ReLu-LSTM has {} on all of the text",
        *lead_over_pieces(other),
        f"{-above(mean(found['words chunk-bnce'], 'ppl_f'), mean(found['pieces softmax'], 'ppl_f')):.1f}",
        ppl(experiment("ltcb-all")["relu-lstm", "chunk-bnce"]["ppl_f"]),
    )
    gaps = [
        -above(mean(other[known, "words chunk-bnce"], "ppl_n"), mean(other[known, "words chunk-bnce"], "ppl_f"))
        for known in (187_364, 800_000)
    ]
    yield said(RESULTS, "large vocabularies PPLn is {} to {}% below PPLf", *(f"{value:.0f}" for value in sorted(gaps)))
    chunk, dense = (other[800_000, side] for side in ("words chunk-bnce", "words softmax"))
    yield said(
        RESULTS,
        "the PPLf of the softmax over words is {}% below that of chunk B-NCE, in {} times the training time.",
        f"{-above(mean(dense, 'ppl_f'), mean(chunk, 'ppl_f')):.1f}",
        f"{mean(dense, 'seconds') / mean(chunk, 'seconds'):.0f}",
    )
    spelled = [(number(row["perplexity per word"]), number(row["bits per byte"])) for row in without_unk()]
    yield said(
        RESULTS,
        "words have a perplexity of {} per word and {} bits per byte, and pieces have {} and {} (first",
        *(figure for one, bits in spelled for figure in (f"{one:.1f}", f"{bits:.3f}")),
    )


def _frontier() -> Iterator[Said]:
    words, pieces = points("words chunk-bnce"), points("pieces softmax")
    yield said(
        RESULTS,
        "at 512 × 6, {} and {} after one epoch, {} and {} after two.",
        *(ppl(side["512 x 6", epochs]["ppl_f"]) for epochs in (1, 2) for side in (words, pieces)),
    )
    for intro, side in (("are worse than with two", words), ("Pieces still gain", pieces)):
        two, four = (ppl(side["384 x 6", epochs]["ppl_f"]) for epochs in (2, 4))
        yield said(RESULTS, f"{intro} (384 × 6: {{}}, then {{}})", two, four)
    yield said(RESULTS, "no run over words reached their {}.\n", ppl(pieces["384 x 6", 4]["ppl_f"]))
    last = words["512 x 6", 4]
    yield said(RESULTS, "at 512 × 6 PPLn is {} where PPLf is {}. Use", ppl(last["ppl_n"]), ppl(last["ppl_f"]))


def points(side: str) -> dict[tuple[str, int], Row]:
    """Give the test figures of seed 2, which the plot has, by size and epochs."""
    lines = [line for line in lines_of("h200/bodies.jsonl") if line["side"] == side and line["stage"] == "frontier"]
    found = {(line["size"], line["epochs"]): line["test"] for line in lines}
    first = next(run for run in final_runs()[side] if run["seed"] == 2)
    return {("512 x 6", 1): first["test"], **found}


def lead_over_pieces(other: dict[tuple[int, str], list[Row]]) -> tuple[str, str, str, str]:
    """Say, trained on all of the text, by how many per cent words are below pieces, and in which share of the time.

    The first figure is of the first 400,000 words of test, the second of the whole test, the third of the whole test
    with the seed that both sides have.
    """
    words, pieces = (other[80_000, side] for side in ("words chunk-bnce", "pieces softmax"))
    with_the_seed = [run for run in words if run["seed"] in {run["seed"] for run in pieces}]
    leads = [
        -above(
            statistics.mean(run[part]["ppl_f"] for run in of_words),
            statistics.mean(run[part]["ppl_f"] for run in pieces),
        )
        for of_words, part in ((words, "test"), (words, "whole"), (with_the_seed, "whole"))
    ]
    share = 100 * mean(words, "seconds") / mean(pieces, "seconds")
    return f"{leads[0]:.1f}", f"{leads[1]:.1f}", f"{leads[2]:.1f}", f"{share:.0f}"


def table_numbers(size: int) -> int:
    """Count the numbers of both tables of the Transformer with 512 units."""
    return 2 * 512 * size


def _spread(runs: Sequence[Row], name: str, digits: int, part: str = "test") -> str:
    values = [run[part][name] for run in runs]
    if values[0] is None:
        return "–"
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"
