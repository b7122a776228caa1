"""The tables of docs/results.md that follow the paper: speed, the whole text, Tables 2 and 4, SGD."""

from __future__ import annotations

from collections.abc import Iterator

from bench import PAPER_WORDS_PER_SECOND, VOCAB_SIZES

from bnce.language_model import count_parameters
from bnce.recipes import load_recipe

from .paper_tables import TABLE_2, TABLE_4
from .sources import (
    H200,
    Block,
    Row,
    Said,
    above,
    experiment,
    lines_of,
    markdown,
    millions,
    number,
    said,
    table,
    text_of,
    the_one,
    thousands,
    times,
)

PAGE = "docs/results.md"
MODELS = {"ffnn": "5-gram FFNN", "rnn": "RNN", "relu-rnn": "ReLu-RNN", "lstm": "LSTM", "relu-lstm": "ReLu-LSTM"}
LOSSES = {"softmax": "softmax", "snce": "S-NCE, K = {}", "bnce": "B-NCE", "chunk-bnce": "chunk B-NCE"}
SPEEDS = [("ltcb", model, "bnce") for model in MODELS] + [
    ("ltcb", "relu-lstm", "chunk-bnce"),
    ("obwb", "relu-lstm", "bnce"),
    ("obwb", "lstm", "bnce"),
]
Bracketed = dict[tuple[str, str], tuple[float | None, float]]


def quotes() -> Iterator[Block | Said]:
    """Give what docs/results.md quotes of speeds and experiments, but its verdicts on the paper."""
    yield from _speed()
    yield from _whole_text()
    ltcb, obwb, sgd = (experiment(name) for name in ("ltcb", "obwb", "sgd"))
    head = "| model | loss | PPLn | PPLf | TS (words/s) | × softmax | NoP | log Z | seconds |"
    yield _block("table-2", "ltcb", markdown(head, "llrrrrrrr", _paper_rows("ltcb", ltcb, TABLE_2, 1)))
    change = {
        model: above(ltcb[model, "chunk-bnce"]["ppl_f"], ltcb[model, "softmax"]["ppl_f"])
        for model in MODELS
        if (model, "chunk-bnce") in ltcb
    }
    yield said(
        PAGE,
        "the PPLf of chunk B-NCE is {}% lower for the ReLu-RNN and {}% lower for the ReLu-LSTM. It is {}% higher for "
        "the RNN and {}% higher for the LSTM.",
        *(
            f"{change[model] * sign:.1f}"
            for model, sign in (("relu-rnn", -1), ("relu-lstm", -1), ("rnn", 1), ("lstm", 1))
        ),
    )
    rows = [
        [*_names(row, place), ppl(row["ppl_n"]), ppl(row["ppl_f"]), millions(row["words_per_second"]),
         f"{row['speedup_over_softmax']:.1f}", log_z(row), seconds(row, 1)]
        for place, row in enumerate(sgd.values())
    ]  # fmt: skip
    head = "| model | loss | PPLn | PPLf | TS (words/s) | × softmax | log Z | seconds |"
    yield _block("sgd", "sgd", markdown(head, "llrrrrrr", rows))
    by_sgd = sgd["relu-lstm", "bnce"]
    lower = [-above(by_sgd["ppl_f"], sgd["relu-lstm", loss]["ppl_f"]) for loss in ("softmax", "snce")]
    paper = [above(TABLE_2["relu-lstm", "bnce"][1], TABLE_2["relu-lstm", loss][1]) for loss in ("softmax", "snce")]
    yield said(
        PAGE,
        "B-NCE ends {}% below the softmax and {}% below S-NCE (in the paper {}% above and {}% below)",
        *(f"{value:.1f}" for value in (*lower, paper[0], -paper[1])),
    )
    yield said(PAGE, "B-NCE's PPLn is {}% below its PPLf: the", f"{-above(by_sgd['ppl_n'], by_sgd['ppl_f']):.1f}")
    head = "| model | loss | PPLn | PPLf | TS (words/s) | × softmax | NoP | log Z | seconds |"
    yield _block("table-4", "obwb", markdown(head, "llrrrrrrr", _paper_rows("obwb", obwb, TABLE_4, 2)))
    dense, bnce, chunk = (obwb["relu-lstm", loss] for loss in ("softmax", "bnce", "chunk-bnce"))
    yield said(
        PAGE,
        "Here the softmax takes {} s and B-NCE {} s: B-NCE is **{} times as fast**, and its PPLf is {}% higher. "
        "Chunk B-NCE is {} times as fast, and its PPLf is {}% higher.",
        f"{dense['train_seconds']:.0f}",
        f"{bnce['train_seconds']:.1f}",
        times(bnce["speedup_over_softmax"]),
        f"{above(bnce['ppl_f'], dense['ppl_f']):.1f}",
        times(chunk["speedup_over_softmax"]),
        f"{above(chunk['ppl_f'], dense['ppl_f']):.1f}",
    )


def _speed() -> Iterator[Block | Said]:
    taken = table(text_of("h200/paper-c547e02.md"), "table | model")
    by = {(row["table"], row["model"], row["loss"]): row for row in taken}
    rows = []
    for place, model, loss in SPEEDS:
        row = by[place, model, loss]
        speeds = millions(1e6 * number(row["words/s"])), times(number(row["× softmax"]))
        name = f"{place.upper()} {MODELS[model]}, {LOSSES[loss]}"
        rows.append([name, *speeds, row["× paper"].replace("—", "–")])
    head = "| | words/s | × softmax, same run | × the paper's Titan X |"
    yield Block(PAGE, "speed", f"{H200}/paper-c547e02.md", markdown(head, "lrrr", rows))
    yield said(PAGE, "slowest round is at most {}% of", f"{max(number(row['±']) for row in taken):.1f}")
    seeds = [experiment(name) for name in ("ltcb-all", "ltcb-all-2")]
    dense = sorted(runs["relu-lstm", "softmax"]["words_per_second"] for runs in seeds)
    yield said(
        PAGE,
        "They train at {} words/s with B-NCE and at {} to {} words/s with the softmax.",
        millions(seeds[0]["relu-lstm", "bnce"]["words_per_second"]),
        *map(millions, dense),
    )
    num_parameters = sum(count_parameters(load_recipe("obwb", model="relu-lstm").model, VOCAB_SIZES["obwb"]).values())
    yield said(
        PAGE,
        "ReLu-LSTM with B-NCE is {} GiB; its parameters are {} GiB of that.",
        f"{number(by['obwb', 'relu-lstm', 'bnce']['peak memory']):.2f}",
        f"{4 * num_parameters / 2**30:.2f}",
    )
    (forms,) = table(text_of("h200/softmax.md"), "| V | D")
    yield said(
        PAGE,
        "take {} ms with our fused implementation, {} ms with PyTorch's compiled cross entropy, {} ms with the plain "
        "one, {} ms with Liger and {} ms with Cut Cross-Entropy",
        *(f"{number(forms[name].strip('*')):.3g}" if digits else f"{number(forms[name].strip('*')):.2f}"
          for name, digits in (("fused", 0), ("compiled", 0), ("plain", 1), ("liger", 1), ("cce", 1))),
    )  # fmt: skip
    times_of = {
        (row["way"], *row["shape"]): row for row in lines_of("h200/recurrence.jsonl") if row.get("kind") == "time"
    }
    lstm = times_of["one launch", "lstm", 400, 600]
    yield said(PAGE, "the recurrent steps take {} ms", f"{lstm['forward'] + lstm['backward']:.2f}")
    step = number(by["ltcb", "relu-lstm", "bnce"]["ms per step"])
    yield said(PAGE, "and the whole step {} ms.", f"{step:.2f}")
    for name, num_streams in (("rnn", 400), ("lstm", 400), ("lstm", 800), ("rnn", 1600), ("lstm", 1600)):
        rows = [times_of[way, name, num_streams, 600] for way in ("one launch", "steps")]
        figures = [f"{row[part]:.3f}" for row in rows for part in ("forward", "backward")]
        words = f"{name.upper()}, B = {num_streams:,}: {{}} and {{}}, by steps {{}} and {{}};"
        yield said("docs/lab-notebook.md", words, *figures)
    yield said(
        PAGE,
        "chunk B-NCE is {} times as fast. (The softmax run",
        times(number(by["ltcb", "relu-lstm", "chunk-bnce"]["× softmax"])),
    )


def _whole_text() -> Iterator[Block | Said]:
    seeds = [{loss: row for (_, loss), row in experiment(name).items()} for name in ("ltcb-all", "ltcb-all-2")]
    rows = []
    for loss, name in LOSSES.items():
        for seed, runs in enumerate(seeds, start=1):
            if loss in runs:
                row, bold = runs[loss], "**" if loss == "chunk-bnce" else ""
                shown = f"{bold}{name.format(row['num_noise'])}{bold}" if seed == 1 else ""
                rows.append([shown, str(seed), ppl(row["ppl_n"]), f"{bold}{ppl(row['ppl_f'])}{bold}", log_z(row),
                             millions(row["words_per_second"]), seconds(row, 1)])  # fmt: skip
    head = "| loss | seed | PPLn | PPLf | log Z | words/s | seconds of training |"
    sources = f"{H200}/experiments/ltcb-all.json and ltcb-all-2.json"
    yield Block(PAGE, "whole-text", sources, markdown(head, "lrrrrrr", rows))
    faster = [times(runs["chunk-bnce"]["words_per_second"] / runs["softmax"]["words_per_second"]) for runs in seeds]
    ratios = {
        loss: [f"{runs[loss]['ppl_f'] / runs['softmax']['ppl_f']:.3f}" for runs in seeds]
        for loss in ("bnce", "chunk-bnce")
    }
    yield said(PAGE, "no worse than with the softmax, and {} times as fast\n\n", faster[0])
    yield said(PAGE, "than-with-the-softmax-and-{}-times-as-fast)", faster[0].replace(".", ""))
    yield said(
        PAGE,
        "the PPLf of chunk B-NCE is {} and {} times the softmax's. Its PPLn is {} and {}% above its PPLf. It trains at "
        "{} times the softmax's words/s with both seeds. The PPLf of plain B-NCE is {} and {} times the softmax's, at "
        "{} and {} times the speed.",
        *ratios["chunk-bnce"],
        *(f"{above(runs['chunk-bnce']['ppl_n'], runs['chunk-bnce']['ppl_f']):.1f}" for runs in seeds),
        the_one(faster),
        *ratios["bnce"],
        *(times(runs["bnce"]["words_per_second"] / runs["softmax"]["words_per_second"]) for runs in seeds),
    )
    apart = [abs(above(seeds[1][loss]["ppl_f"], seeds[0][loss]["ppl_f"])) for loss in seeds[1]]
    yield said(PAGE, "two seeds of one loss differ by {} to {}%.", f"{min(apart):.1f}", f"{max(apart):.1f}")
    reached = [
        [f"{runs[loss]['seconds_to_softmax_quality']:.1f}" for loss in ("bnce", "chunk-bnce", "softmax")]
        for runs in seeds
    ]
    yield said(
        PAGE,
        "B-NCE {} s, chunk B-NCE {} s, the softmax itself {} s. With seed 2: {}, {} and {} s.",
        *reached[0],
        *reached[1],
    )


def _paper_rows(name: str, runs: dict[tuple[str, str], Row], paper: Bracketed, digits: int) -> list[list[str]]:
    rows = []
    for key, row in runs.items():
        ppl_n, ppl_f = paper.get(key, (None, None))
        speed = PAPER_WORDS_PER_SECOND[name].get(key[0], {}).get(key[1])
        faster = "–" if row["speedup_over_softmax"] is None else times(row["speedup_over_softmax"])
        rows.append([
            *_names(row, [one for one in runs if one[0] == key[0]].index(key)),
            ppl(row["ppl_n"]) + _bracket(ppl_n and ppl(ppl_n)),
            ppl(row["ppl_f"]) + _bracket(ppl_f and ppl(ppl_f)),
            millions(row["words_per_second"]) + _bracket(speed and thousands(speed)),
            faster,
            _size(row["num_parameters"]),
            log_z(row),
            seconds(row, digits),
        ])  # fmt: skip
    return rows


def _names(row: Row, place: int) -> list[str]:
    first = place == 0 or row["loss"] == "softmax"
    return [MODELS[row["model"]] if first else "", LOSSES[row["loss"]].format(row["num_noise"])]


def _size(number: int) -> str:
    return f"{number / 1e6:.1f}M" if number < 5e8 else f"{number / 1e9:.2f}B"


def _bracket(figure: str | float | None) -> str:
    return f" ({figure})" if figure else ""


def _block(name: str, runs: str, text: str) -> Block:
    return Block(PAGE, name, f"{H200}/experiments/{runs}.json", text)


def ppl(value: float | None) -> str:
    """Write a perplexity; the softmax has no PPLn."""
    return "–" if value is None else f"{value:.1f}"


def log_z(row: Row) -> str:
    """Write mean and deviation of ln Z(context)."""
    return f"{row['log_z_mean_nats']:.2f} ± {row['log_z_std_nats']:.2f}"


def seconds(row: Row, digits: int) -> str:
    """Write the time of training, from 100 seconds on without a fraction."""
    return f"{row['train_seconds']:.{digits if row['train_seconds'] < 100 else 0}f}"
