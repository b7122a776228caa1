"""What docs/results.md says of the paper's conclusions, one by one, and of the gap between PPLn and PPLf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .paper_runs import MODELS, PAGE, ppl
from .paper_tables import TABLE_2, TABLE_4
from .sources import H200, Block, Row, Said, above, experiment, markdown, said, times

Runs = dict[tuple[str, str], Row]
FAILED = ("relu-rnn", "snce")  # of Table 2
SHARES = {"1/4 (27.2M words)": "ltcb-quarter", "1/2 (54.5M)": "ltcb", "all (109.0M)": "ltcb-all-3"}


def quotes() -> Iterator[Block | Said]:
    """Give the figures of the verdicts, row by row, and of the table below them."""
    ltcb, obwb, sgd = (experiment(name) for name in ("ltcb", "obwb", "sgd"))
    whole = [experiment(name) for name in ("ltcb-all", "ltcb-all-2", "ltcb-all-3")]
    yield from _against_snce(ltcb, obwb, sgd)
    speedups = [ltcb[model, "bnce"]["speedup_over_softmax"] for model in MODELS]
    at_800k = times(obwb["relu-lstm", "bnce"]["speedup_over_softmax"])
    yield said(PAGE, "| {} to {} times (Table 2), {} times at V", *_range(map(float, speedups)), at_800k)
    yield from _against_softmax(ltcb, obwb, sgd, whole)
    yield from _constant(ltcb, obwb, sgd, whole)
    yield from _bottleneck(ltcb, obwb)
    yield from _gap(whole)


def _against_snce(ltcb: Runs, obwb: Runs, sgd: Runs) -> Iterator[Said]:
    fair = [model for model in MODELS if (model, "snce") != FAILED]
    yield said(
        PAGE,
        "PPLf lower for four models of Table 2 (by {} to {}%; PPLn by {} to {}%; the fifth, S-NCE's ReLu-RNN, "
        "failed), for all five of Table 4 ({} to {}%) and for the ReLu-LSTM with SGD ({}%; the paper {}%); {} to {} "
        "and {} to {} times as fast. With SGD on the RNN, where neither had converged, it is {}% *higher*",
        *_range((-_change(ltcb, model) for model in fair), 0),
        *_range(-_change(ltcb, model, "ppl_n") for model in fair),
        *_range((-_change(obwb, model) for model in MODELS), 0),
        f"{-_change(sgd, 'relu-lstm'):.1f}",
        f"{-above(TABLE_2['relu-lstm', 'bnce'][1], TABLE_2['relu-lstm', 'snce'][1]):.1f}",
        *_range((_faster(ltcb, model) for model in MODELS), 2),
        *_range((_faster(obwb, model) for model in MODELS), 2),
        f"{_change(sgd, 'rnn'):.1f}",
    )


def _against_softmax(ltcb: Runs, obwb: Runs, sgd: Runs, whole: list[Runs]) -> Iterator[Said]:
    change = [_change(ltcb, model, base="softmax") for model in MODELS]
    paper = [above(TABLE_2[model, "bnce"][1], TABLE_2[model, "softmax"][1]) for model in MODELS]
    yield said(
        PAGE,
        "| {}% below to {}% above (Table 2: FFNN {}, RNN {}, ReLu-RNN {}, LSTM {}, ReLu-LSTM {}); {} and {}% above on "
        "the whole text; {}% above at V = 800,000; with SGD, not converged, {}% below (ReLu-LSTM) and {}% above (RNN)",
        f"{-min(change):.1f}",
        f"{max(change):.1f}",
        *(f"{value:.1f}".replace("-", "−") for value in change),
        *(f"{_change(runs, 'relu-lstm', base='softmax'):.1f}" for runs in whole[:2]),
        f"{_change(obwb, 'relu-lstm', base='softmax'):.1f}",
        f"{-_change(sgd, 'relu-lstm', base='softmax'):.1f}",
        f"{_change(sgd, 'rnn', base='softmax'):.0f}",
    )
    yield said(PAGE, "closer than the paper's {} to {}% |", *_range(paper, 0))


def _constant(ltcb: Runs, obwb: Runs, sgd: Runs, whole: list[Runs]) -> Iterator[Said]:
    chunk = [row for runs in (ltcb, obwb, *whole) for (_, loss), row in runs.items() if loss == "chunk-bnce"]
    drawn = [row for key, row in (*ltcb.items(), *obwb.items()) if key[1] == "snce" and row is not ltcb[FAILED]]
    low, high = _range((gap(runs["relu-lstm", "bnce"]) for runs in whole), 1)
    yield said(
        PAGE,
        "| B-NCE {} to {}% above (Table 2), {} to {}% above on the whole text, {} to {}% below (Table 4); chunk "
        "B-NCE {} to {}% above; S-NCE {} to {}% below (without the ReLu-RNN, which failed). With SGD: B-NCE {}% "
        "below (ReLu-LSTM) and {}% above (RNN), S-NCE {}% above and {}% below",
        *_range(gap(ltcb[model, "bnce"]) for model in MODELS),
        low,
        high,
        *reversed(_range(-gap(obwb[model, "bnce"]) for model in MODELS)),
        *_range(map(gap, chunk)),
        *(f"{value:.2g}" for value in (min(-gap(row) for row in drawn), max(-gap(row) for row in drawn))),
        f"{-gap(sgd['relu-lstm', 'bnce']):.1f}",
        f"{gap(sgd['rnn', 'bnce']):.1f}",
        f"{gap(sgd['relu-lstm', 'snce']):.1f}",
        f"{-gap(sgd['rnn', 'snce']):.1f}",
    )


def _bottleneck(ltcb: Runs, obwb: Runs) -> Iterator[Said]:
    for model in ("rnn", "lstm"):
        pairs = [(ltcb, "softmax"), (ltcb, "bnce"), (obwb, "bnce")]
        yield said(
            PAGE,
            f" {model.upper()}: softmax {{}} → {{}}, B-NCE {{}} → {{}}, at V = 800,000 {{}} → {{}}"
            f"{'. LSTM' if model == 'rnn' else ' |'}",
            *(ppl(runs[name, loss]["ppl_f"]) for runs, loss in pairs for name in (model, f"relu-{model}")),
        )
    fewer = [
        -above(runs["relu-lstm", "bnce"]["num_parameters"], runs["lstm", "bnce"]["num_parameters"])
        for runs in (ltcb, obwb)
    ]
    yield said(
        PAGE,
        "(the ReLu-LSTM has {}% fewer parameters, {}% fewer at V = 800,000; the paper's own Table 4 has {} → {})",
        *(f"{value:.0f}" for value in fewer),
        *(ppl(TABLE_4[model, "bnce"][1]) for model in ("lstm", "relu-lstm")),
    )


def _gap(whole: list[Runs]) -> Iterator[Block | Said]:
    losses = ("snce", "bnce", "chunk-bnce")
    parts = [experiment(name) for name in SHARES.values()]
    yield said(
        PAGE,
        "S-NCE {}, {}, {}%; B-NCE {}, {}, {}%; chunk B-NCE {}, {}, {}% |",
        *(_signed(gap(runs["relu-lstm", loss])) for loss in losses for runs in parts),
    )
    rows = []
    for name, runs in zip(SHARES, parts, strict=True):
        dense = (whole[0] if runs is parts[-1] else runs).get(("relu-lstm", "softmax"))
        both = [_both(runs["relu-lstm", loss]) for loss in losses]
        rows.append([name, *both, ppl(dense["ppl_f"]) if dense else ""])
    head = "| ReLu-LSTM, one epoch of | S-NCE PPLn / PPLf | B-NCE | chunk B-NCE | softmax |"
    sources = (
        f"{H200}/experiments/ltcb-quarter.json, ltcb.json, ltcb-all-3.json; softmax of the last row: ltcb-all.json"
    )
    yield Block(PAGE, "gap", sources, markdown(head, "lrrrr", rows))
    earlier = [whole[0]["relu-lstm", loss] for loss in losses]
    figures = [ppl(row[name]) for row in earlier for name in ("ppl_n", "ppl_f")]
    yield said(PAGE, "at f65e666 it was {} / {}, {} / {} and {} / {}.)", *figures)
    mean = whole[0]["relu-lstm", "chunk-bnce"]["log_z_mean_nats"]
    yield said(PAGE, "the mean of ln Z(context) is {}, a little", f"{mean:.2f}")


def gap(row: Row) -> float:
    """Say by how many per cent PPLn is above PPLf."""
    return above(row["ppl_n"], row["ppl_f"])


def _change(runs: Runs, model: str, name: str = "ppl_f", base: str = "snce") -> float:
    return above(runs[model, "bnce"][name], runs[model, base][name])


def _faster(runs: Runs, model: str) -> float:
    ratio: float = runs[model, "bnce"]["words_per_second"] / runs[model, "snce"]["words_per_second"]
    return ratio


def _range(values: Iterable[float], digits: int = 1) -> tuple[str, str]:
    ordered = sorted(values)
    return f"{ordered[0]:.{digits}f}", f"{ordered[-1]:.{digits}f}"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−") if abs(value) >= 0.05 else "0.0"


def _both(row: Row) -> str:
    return f"{ppl(row['ppl_n'])} / {ppl(row['ppl_f'])}"
