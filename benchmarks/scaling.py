"""A simulation, not a measurement: words per second of R = 1 … 64 processes, each with a GPU of its own.

python benchmarks/scaling.py --out benchmarks/results

It takes the step times that one H200 was measured with (benchmarks/results/h200/paper.json) and the bytes that
docs/scaling.md counts, and assumes the rest:

- A process computes its groups one after the other, each in the measured time of a step. That time has the update in
  it, so with four groups it is counted four times, which is too slow; finding the different words of a step and copying
  rows is not in it, which is too fast.
- A process sends and receives at the full stated bandwidth at once, whatever the others do, and every process has a
  link of its own. NVLink with 64 GPUs needs racks that are built so.
- A collective takes its bytes divided by the bandwidth, and a latency for each doubling of R. A step has five: row
  numbers, rows, row gradients, body and norm.
- Words follow Zipf's law, and C is what a run sets then: `bound_rows`, the expected number of different words and six
  standard deviations.
- No process waits for a slower one, and reading text takes no time.
- More processes have more groups in a step, so they need fewer but larger steps for a text. What that does to the
  model is not in these figures.

"body hidden" sends the gradient of the body while the step computes, as far as that lasts. The trainer does not do
this: it is a bound on what overlapping can bring.

Legend: R processes, C rows that one process asks another for at most, F columns of all tables, P parameters of the
body, T time steps, B streams.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bnce.language_model import count_parameters
from bnce.noise import unigram
from bnce.processes.placement import Placement
from bnce.processes.traffic import ALIGNED
from bnce.processes.working_tables import bound_rows
from bnce.recipes.recipe import load_recipe

MEASURED = Path(__file__).parent / "results" / "h200" / "paper.json"
MODEL = "relu-lstm"
PROCESSES = (1, 2, 4, 8, 16, 32, 64)
NUM_COLLECTIVES = 5


@dataclass(frozen=True)
class Link:
    """What a process sends through."""

    name: str
    bytes_per_second: float
    latency_seconds: float  # of a collective, for each doubling of R


LINKS = (Link("NVLink, 450 GB/s", 450e9, 10e-6), Link("Ethernet, 12.5 GB/s", 12.5e9, 30e-6))


@dataclass(frozen=True)
class Job:
    """What one process computes in a step, and what its exchanges depend on."""

    table: str
    loss: str
    vocab_size: int
    words: int  # of one group
    group_seconds: float
    num_columns: int  # F
    num_body: int  # P


@dataclass(frozen=True)
class Sent:
    """Bytes that one process sends in a step."""

    rows: float  # with their numbers and gradients
    body: float


def sent_bytes(*, num_columns: int, num_body: int, R: int, C: int, number_bytes: int) -> Sent:
    """Count by the formula of docs/scaling.md; the body's numbers have four bytes always."""
    rows = C * (R - 1) * (4 + 2 * number_bytes * num_columns)
    return Sent(rows, 2 * 4 * num_body * (R - 1) / R)


def step_seconds(compute: float, sent: Sent, link: Link, R: int, *, hidden: bool) -> float:
    """Add up a step; a hidden body takes only what it lasts longer than the computing."""
    latency = NUM_COLLECTIVES * link.latency_seconds * (R - 1).bit_length()
    rows, body = (part / link.bytes_per_second for part in (sent.rows, sent.body))
    return (max(compute, body) if hidden else compute + body) + rows + latency


@functools.cache
def capacity(vocab_size: int, num_words: int, R: int) -> int:
    """Give C for words that follow Zipf's law."""
    noise = unigram(vocab_size / torch.arange(1, vocab_size + 1))
    return bound_rows(noise, num_words, Placement.of(vocab_size, R, torch.device("cpu")))


def jobs(measured: dict[str, Any]) -> Iterator[tuple[Job, int, int]]:
    """Find the measured steps of the ReLu-LSTM, each with its T and B."""
    for row in measured["measurements"]:
        if row["model"] != MODEL or row["loss"] not in ("bnce", "chunk-bnce"):
            continue
        config = load_recipe(row["table"], model=MODEL).model
        T, B = row["num_steps"], row["batch_size"]
        yield (
            Job(
                row["table"],
                row["loss"],
                row["vocab_size"],
                T * B,
                row["step_seconds"],
                -(-(config.embedding_size + config.bottleneck_size + 1) // ALIGNED) * ALIGNED,
                count_parameters(config, row["vocab_size"])["body"],
            ),
            T,
            B,
        )


def table(measured: dict[str, Any]) -> str:
    """Lay out words per second, and beneath it the bytes."""
    head = ["link", "model", "loss", "groups per process", "wire", "overlap", *(f"R = {R}" for R in PROCESSES)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * 6}{'---:|' * len(PROCESSES)}"]
    volumes = {}
    for link, (job, T, B), groups, wire, hidden in itertools.product(
        LINKS, list(jobs(measured)), (1, 4), ("float32", "bf16"), (False, True)
    ):
        cells = []
        for R in PROCESSES:
            C = capacity(job.vocab_size, groups * B * (T + 1), R)
            number_bytes = 4 if wire == "float32" else 2
            sent = sent_bytes(num_columns=job.num_columns, num_body=job.num_body, R=R, C=C, number_bytes=number_bytes)
            seconds = step_seconds(groups * job.group_seconds, sent, link, R, hidden=hidden)
            cells.append(f"{R * groups * job.words / seconds / 1e6:.1f}M")
            volumes[job.table, groups, wire, R] = C, sent
        first = [link.name, job.table, job.loss, str(groups), wire, "body hidden" if hidden else "none"]
        lines.append(f"| {' | '.join([*first, *cells])} |")
    lines += ["", caption(measured), "", "Sent by one process in a step:", ""]
    lines += [
        "| model | groups per process | wire | R | C | rows, MB | body, MB |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for (name, groups, wire, R), (C, sent) in volumes.items():
        if R in (2, 8, 64):
            sizes = f"{sent.rows / 1e6:.1f} | {sent.body / 1e6:.1f}"
            lines.append(f"| {name} | {groups} | {wire} | {R} | {C:,} | {sizes} |")
    return "\n".join(lines) + "\n"


def caption(measured: dict[str, Any]) -> str:
    """Say what the figures are made of."""
    latencies = ", ".join(f"{1e6 * link.latency_seconds:.0f} µs ({link.name.split(',')[0]})" for link in LINKS)
    return (
        "**This is a simulation, not a measurement.** It gives words per second with R processes. Each process has "
        f"its own GPU and its own link. Step times are those of one {measured['device']} (`h200/paper.json`, "
        "ReLu-LSTM), times the groups per process. Bytes are those of the formula in docs/scaling.md, with C from "
        "`bound_rows` for words that follow Zipf's law. The simulation assumes: every process has the full bandwidth "
        f"in both directions at the same time; a step has {NUM_COLLECTIVES} collectives, each with a latency of "
        f"{latencies} for every doubling of R; no process waits for a slower one; finding the different words and "
        "copying rows take no time. `wire` is the format of rows and their gradients; the body is sent in float32. "
        "`body hidden` assumes that the gradient of the body is sent while the step computes, so only the part that "
        "takes longer than the step counts. The trainer does not do this. With R processes, a step has R times as many "
        "groups. The figures do not show how this changes the quality of the model."
    )


def main(arguments: list[str] | None = None) -> None:
    """Compute, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a directory for scaling.md")
    options = parser.parse_args(arguments)
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    text = f"    python benchmarks/scaling.py --out benchmarks/results\n\n{table(measured)}"
    print(text, end="")
    if options.out is not None:
        (options.out / "scaling.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
