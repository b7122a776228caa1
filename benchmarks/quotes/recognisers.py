"""Rescoring: docs/rescoring.md, and what the README takes from the same results."""

from __future__ import annotations

import re
from collections.abc import Iterator

import resets

from .sources import H200, RESULTS, Block, Row, Said, above, cells, markdown, number, said, table, text_of

PAGE = "docs/rescoring.md"
ROWS = {
    "first best": "first hypotheses",
    "5-gram, books": "5-gram, books",
    "5-gram, books + wiki": "5-gram, books + Wikipedia",
    "ReLu-LSTM 200–600–400, books": "ReLu-LSTM 200–600–400, books",
    "LSTM 512–1024, books": "LSTM 512–1024, books",
    "Transformer 512 × 6, books": "Transformer 512 × 6, books",
    "Transformer 512 × 6, books + wiki": "Transformer 512 × 6, books + Wikipedia",
    "the same, then books": "the same, then books once more",
    "oracle": "oracle: the best hypothesis of each list",
}


def real_lists() -> dict[str, list[str]]:
    """Give word error rates by model: test-other and test-clean of the first recogniser, then of the second."""
    found: dict[str, list[str]] = {}
    for part in parts():
        first, oracle = re.findall(r"(?:First best|oracle) ([\d.]+)%", part)
        for name, rate in (("first best", first), ("oracle", oracle)):
            found.setdefault(name, []).append(rate)
        for row in table(part, "model | WER, constant Z"):
            name = re.sub(r", \d+ epochs?$", "", row["model"])
            found.setdefault(name, []).append(row["WER, constant Z"].rstrip("%"))
    return found


def parts() -> list[str]:
    """Give the parts of the result, one for each recogniser and test set."""
    return [part for part in text_of("h200/recogniser.md").split("\n### ") if part.startswith("espnet")]


def quotes() -> Iterator[Block | Said]:
    """Give what docs/rescoring.md quotes."""
    yield from _real_recognisers()
    yield from _resets()
    (first, alone, order, tuned, _) = (
        row["WER"].rstrip("%") for row in table(text_of("rank.md"), "test-clean, 52,576")
    )
    yield said(
        PAGE,
        "the first hypotheses had a word error rate of {}%. The new model alone reached {}%, order and model {}%, "
        "and with tuned weights {}%",
        *(first, alone, order, tuned),
    )
    score = {row["`bnce score`"]: f"{number(row['perplexity'])}" for row in table(text_of("carry.md"), "`bnce score`")}
    afresh, carried = list(score.values())[:2]
    _, apart, carry, _ = (row["WER"].rstrip("%") for row in table(text_of("carry.md"), "test-other | WER"))
    yield said(
        PAGE,
        "references from {} to {}, but the word error rate hardly changed: {} and {}% (",
        afresh,
        carried,
        apart,
        carry,
    )
    yield from _speed()


def _real_recognisers() -> Iterator[Block | Said]:
    found = real_lists()
    before, after = (f"{number(found[name][0]):.1f}" for name in ("first best", "the same, then books"))
    yield said(PAGE, "On real lists of read books the rate fell from {}% to {}% (", before, after)
    rows = []
    for name, shown in ROWS.items():
        other, clean, other_2, clean_2 = found[name]
        bold = "**" if shown.startswith("the same") else ""
        rows.append([shown, *(f"{bold}{one} / {two}%{bold}" for one, two in ((other, clean), (other_2, clean_2)))])
    head = "| model, training text | 20-best lists with scores | 10-best lists without scores |"
    yield Block(PAGE, "real-recognisers", f"{H200}/recogniser.md", markdown(head, "lrr", rows))
    taken = [row for part in parts() for row in table(part, "model | WER, constant Z")]
    apart = [
        abs(number(row["WER, constant Z"]) - number(row["softmax"]))
        for row in taken
        if row["softmax"] and not row["model"].startswith("the same")
    ]
    yield said(PAGE, "For the other models the two differ by at most {} points", f"{max(apart):.2f}")
    adapted = [row["constant − softmax"] for row in taken if row["model"].startswith("the same")]
    first, second = sorted(number(cell.replace("−", "-")) for cell in adapted)[:2][::-1]
    yield said(
        PAGE, "the constant Z is better by {} and {} points on test-other", *(f"{-one:.2f}" for one in (first, second))
    )
    lstm = next(row for row in taken if row["model"].startswith("LSTM"))
    yield said(
        PAGE,
        "lowers the LSTM's rate on test-other from {} to {}%, beyond chance",
        *(lstm[name].rstrip("%") for name in ("WER, constant Z", "with the 5-gram")),
    )
    best = next(row for row in _mixtures() if row[0] == "none")
    others = [row for row in _mixtures() if row[0] != "none"]
    lower, higher = (
        f"{find(number(row[place]) - number(best[place]) for row in others for place in (4, 7)):+.2f}"
        for find in (min, max)
    )
    yield said(PAGE, "changes the best model's rates by {} to {} points", lower.replace("-", "−"), higher)


def _mixtures() -> list[list[str]]:
    """Read the table of mixtures, two columns of which have the same name."""
    below = text_of("h200/recogniser.md").partition("| second model |")[2].splitlines()[2:]
    return [cells(line) for line in below if line.startswith("|")]


def _resets() -> Iterator[Block | Said]:
    lines = resets.read_lines(RESULTS / "resets.jsonl")
    yield Block(PAGE, "resets", "benchmarks/results/resets.jsonl", resets.markdown(lines))
    rows = {(row["loss"], row["reset_rate"]): row for row in _rows(resets.markdown(lines))}
    change = {
        (rate, place): [above(rows[loss, rate][place], rows[loss, "0"][place]) for loss in ("bnce", "chunk-bnce")]
        for rate in ("0.15", "0.5")
        for place in ("PPLf in context", "PPLf by sentence", "PPLn by sentence")
    }
    lower = sorted(-value for value in change["0.15", "PPLn by sentence"])
    yield said(
        PAGE,
        "A rate of 0.15 lowers PPLf by sentence by {}% and PPLn by sentence by {} to {}%,",
        f"{-min(change['0.15', 'PPLf by sentence']):.0f}",
        *(f"{value:.0f}" for value in lower),
    )
    yield said(PAGE, "PPLf in context rises by {}%. A rate of 0.5", f"{max(change['0.15', 'PPLf in context']):.0f}")
    yield said(PAGE, "PPLf in context rises by {}%. For a model", f"{max(change['0.5', 'PPLf in context']):.0f}")
    without, with_resets = table(text_of("resets.md"), "reset_rate | PPLf")[1:]
    rates = [row[f"WER test-{part}"].rstrip("%") for part in ("other", "clean") for row in (without, with_resets)]
    yield said(
        PAGE, "it made {}% errors without resets and {}% with a rate of 0.15; on test-clean {}% and {}%.", *rates
    )


def _rows(text: str) -> list[Row]:
    """Read the table of resets, whose columns have to be told apart by their place."""
    rows: list[Row] = []
    for line in text.splitlines()[2:]:
        _, loss, rate, _, *figures = cells(line)
        names = ("PPLf in context", "PPLf by sentence", "PPLn in context", "PPLn by sentence")
        rows.append({"loss": loss, "reset_rate": rate, **dict(zip(names, map(number, figures), strict=True))})
    return rows


def _speed() -> Iterator[Said]:
    rows = [
        row
        for row in table(text_of("rescore_speed.md"), "model | probabilities")
        if row["probabilities"] == "constant Z"
    ]
    for words, row in zip(
        (
            "`bnce rescore` used {} CPU seconds for 20-best lists of 5.1 hours of speech (58,780 hypotheses) with a "
            "ReLu-LSTM (200–600–400) over 80,000 words, which is {} of real time, start-up included.",
            "A Transformer (512 × 6) used {} CPU seconds, {} of real time.",
        ),
        rows,
        strict=True,
    ):
        share = number(row["CPU seconds per second of speech"])
        yield said(PAGE, words, f"{number(row['CPU seconds'])}", f"{share:.2g}")
