"""The paper's two tables as a speed measurement: every model and loss at its sizes, beside its own words per second."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from bnce.config import RunConfig
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES
from bnce.machine.memory import release_memory
from bnce.measure.bench import bench, conditions
from bnce.recipes.recipe import load_recipe

VOCAB_SIZES = {"ltcb": 80_000, "obwb": 793_471}

# Tables 2 and 4 of Oualil & Klakow (2017), column TS: words per second on a Titan X.
PAPER_WORDS_PER_SECOND = {
    "ltcb": {
        "ffnn": {"softmax": 8.4e3, "snce": 29.1e3, "bnce": 35.1e3},
        "rnn": {"softmax": 5.9e3, "snce": 37.8e3, "bnce": 43.7e3},
        "relu-rnn": {"softmax": 8.6e3, "snce": 30.9e3, "bnce": 36.7e3},
        "lstm": {"softmax": 8.9e3, "snce": 27.2e3, "bnce": 37.1e3},
        "relu-lstm": {"softmax": 8.2e3, "snce": 26.9e3, "bnce": 32.0e3},
    },
    "obwb": {
        "ffnn": {"snce": 12.3e3, "bnce": 13.4e3},
        "rnn": {"snce": 24.9e3, "bnce": 27.8e3},
        "relu-rnn": {"snce": 20.1e3, "bnce": 23.1e3},
        "lstm": {"snce": 12.0e3, "bnce": 13.1e3},
        "relu-lstm": {"snce": 13.0e3, "bnce": 14.7e3},
    },
}
# The paper's sizes with the row-wise optimiser, whose step costs more than that of SGD.
ROWWISE = ("optimiser.name=rowwise", "optimiser.learning_rate=0.2", "optimiser.gradient=tokens")


def bench_paper(
    device: torch.device,
    *,
    num_rounds: int = 5,
    round_seconds: float = 0.3,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure both tables, a model at a time: the losses of one model take turns, and then make room for the next."""
    groups = [(table, body.name) for table in VOCAB_SIZES for body in BODIES if table in body.tables]
    rows, ceilings = [], []
    for number, (table, model) in enumerate(groups):
        configs: list[tuple[RunConfig, int]] = [
            (load_recipe(table, model=model, loss=loss.name, settings=ROWWISE), VOCAB_SIZES[table])
            for loss in LOSSES
            if table in loss.tables
        ]
        result = bench(configs, device, num_rounds=num_rounds, round_seconds=round_seconds)
        ceilings.append(result["matmul_teraflops"])
        for item in result["measurements"]:
            paper = PAPER_WORDS_PER_SECOND[table].get(model, {}).get(item["loss"])
            item["table"] = table
            item["speedup_over_paper"] = item["words_per_second"] / paper if paper else None
            rows.append(item)
        release_memory(device)
        progress(number + 1, len(groups))
    return {
        "suite": "paper",
        **conditions(device, num_rounds, round_seconds),
        "matmul_teraflops": None if None in ceilings else statistics.median(ceilings),
        "measurements": rows,
    }


def to_markdown(result: dict[str, Any]) -> str:
    """Write the measurements as a Markdown table with their conditions."""
    lines = [
        "| table | model | loss | words/s | ± | ms per step | × softmax | × paper | share of matmul rate | peak memory "
        "|",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for item in result["measurements"]:
        memory = item["peak_memory_bytes"]
        lines.append(
            f"| {item['table']} | {item['model']} | {item['loss']} | {item['words_per_second'] / 1e6:.3f}M "
            f"| {100 * item['spread']:.1f}% | {1000 * item['step_seconds']:.3f} "
            f"| {_ratio(item['speedup_over_softmax'], 1)} | {_ratio(item['speedup_over_paper'], 0)} "
            f"| {_percent(item['matmul_share'])} | {'—' if memory is None else f'{memory / 2**30:.2f} GiB'} |"
        )
    ceiling = result["matmul_teraflops"]
    rate = "" if ceiling is None else f", matrix products reach {ceiling:.0f} TFLOP/s (bf16, 8192³)"
    lines += [
        "",
        f"{result['device']}, torch {result['torch']}, bnce {result['bnce']}{rate}. Median of {result['num_rounds']} "
        f"rounds of {result['round_seconds']:g} s, ± half their range. A step computes body, loss, backward pass, "
        "clipping and the update (row-wise Adagrad for the tables, Adam for the body), in bf16 with float32 parameters "
        "on a GPU. Words are drawn from Zipf's law. × paper is the speed divided by the paper's speed on a Titan X "
        "(Tables 2 and 4, column TS).",
    ]
    return "\n".join(lines) + "\n"


def _ratio(value: float | None, digits: int) -> str:
    return "—" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.0f}%"
