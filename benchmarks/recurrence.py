"""All steps of an LSTM or RNN in one launch, against a product and a small kernel per step: errors and times.

python benchmarks/recurrence.py --out benchmarks/results               # on a Hopper GPU, at most 90 seconds
python benchmarks/recurrence.py --ways "one launch" stages --seconds 50  # only these

Every way runs in a process of its own with a time limit, because a kernel that waits for itself never ends. Errors are
those of outputs, states and gradients against float64, the largest over all of them, beside the step-by-step way's own.
Times are medians of replayed graphs: `forward` and `backward` are the steps alone, `all` is what a training step sees
(padding, input products, gradients of the weights). Graphs are replayed with changing inputs, twice, and must give the
same bits. `stages` reads the clock in the kernels, and then leaves out one part of them after the other.

Legend: T time steps, B streams, E input, H hidden.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from bnce.kernels import recurrence
from bnce.kernels.hopper import nvrtc, persistent
from bnce.kernels.recurrence_sizes import Sizes
from bnce.models import recurrent

T = 20
SHAPES = [
    ("lstm", 400, 200, 600),
    ("lstm", 800, 200, 600),
    ("lstm", 1600, 200, 600),
    ("rnn", 400, 200, 600),
    ("rnn", 800, 200, 600),
    ("rnn", 1600, 200, 600),
    ("rnn", 500, 500, 1500),
    ("lstm", 500, 500, 1500),
]
ODD = [("lstm", 37, 10, 41, 1), ("lstm", 37, 10, 200, 7), ("rnn", 37, 10, 41, 1), ("rnn", 37, 10, 200, 7)]
# Constants of the module that each way sets.
WAYS: dict[str, dict[str, object]] = {
    "one launch": {},
    "steps": {},
    "stages": {},
    "one launch, each loads all": {"CLUSTERS": {"lstm_backward": 4}},
}
# What is left out of the kernels' text, to see what it takes. Where a text is not in a kernel, nothing changes.
LEFT_OUT: dict[str, list[tuple[str, str]]] = {
    "waiting": [("load_acquire(arrived + number * COUNTER_STRIDE) < target", "false")],
    "fence": [("red.release.gpu", "red.relaxed.gpu")],
    "loads": [
        ("if (arriving) wait_for(at.barrier + 8 * block, parity);", ""),
        ("barrier_expect(at.barrier + 8 * block, BLOCK_BYTES);", ";"),
        ("        copy_block", "        if (number < 0) copy_block"),
    ],
    "products": [("multiply_16(sum, weights.part[block * 4 + k], right + 2 * k);", ";")],
    "cells": [("return tanh_approx(x);", "return x;"), ("0.5f * tanh_approx(0.5f * x) + 0.5f", "x")],
    "inputs": [("        copy_16(to + row * ROW_BYTES", "        if (count < 0) copy_16(to + row * ROW_BYTES")],
    "results": [
        ("        write_16(target", "        if (count < 0) write_16(target"),
        ("if (stream < now.count) write_8(gate_TBG", "if (stream < now.count - N) write_8(gate_TBG"),
        ("if (stream < now.count) *(u32*)(sum_grad_TBH", "if (stream < now.count - N) *(u32*)(sum_grad_TBH"),
        ("                if (stream < now.count) {\n", "                if (stream < now.count - N) {\n"),
    ],
    "sums": [
        ("barrier_expect(at.barrier + 8 * BLOCKS, P * SUM_BYTES);", ""),
        ("send(to + j * 1024", "if (T < 0) send(to + j * 1024"),
        ("wait_for(at.barrier + 8 * BLOCKS, parity);", ""),
    ],
}
# Where thread 0 reads the clock, by what has been done until then, in the order of a step.
STAGES = {
    "group waited for": [
        ("block_sync();  // from now on nobody reads what the step before left in shared memory", True)
    ],
    "first block there": [
        ("                if (t + 1 < T) {\n                    load_rows", False),
        ("                if (t + 1 < T) {\n                    u32 to", False),
        ("if (t) load_step(now, t - 1);", False),
    ],
    "products done": [
        ("// Of the gates, lanes below 16 have", False),
        ("// To the CTA whose", False),
        ("parity ^= t > 0;", True),
        ("parity ^= 1;\n            } else", False),
    ],
    "sums added up": [("wait_for(at.barrier + 8 * BLOCKS, parity);", True)],
    "cells done": [
        ("            block_sync();\n            if (t + 1 < T) {", False),
        ("\n            if (t + 1 < T) arrive(", False),
        ("\n            if (t) arrive(", False),
    ],
    "arrived": [("arrive(arrived, now.number);", True)],
    "results written": [("        }\n        block_sync();  // before the next pass", False)],
}
MAX_CTAS, MAX_STEPS, NUM_COUNTERS = 132, 64, 1 << 14
WAY_SECONDS = {"one launch": 45, "steps": 30, "stages": 45}


def median_ms(run: Callable[[], object], num_rounds: int = 7, num_replays: int = 10) -> float:
    """Capture a function and time its replays."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    times = []
    for _ in range(num_rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(num_replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / num_replays)
    return statistics.median(times)


class Network:
    """One layer with its inputs, run forwards and backwards by whichever way is chosen."""

    def __init__(self, name: str, B: int, E: int, H: int, num_steps: int = T, has_resets: bool = False) -> None:
        torch.manual_seed(1)
        self.name, self.H = name, H
        self.cell = (nn.LSTM if name == "lstm" else nn.RNN)(E, H).cuda()
        self.weights = list(self.cell.all_weights[0])
        self.input = torch.randn(num_steps, B, E, device="cuda", requires_grad=True)
        self.state = [torch.randn(1, B, H, device="cuda").tanh() for _ in range(2 if name == "lstm" else 1)]
        self.grad = torch.randn(num_steps, B, H, device="cuda").bfloat16()
        self.reset = torch.rand(num_steps, B, device="cuda") < 0.1 if has_resets else None

    def run(self) -> list[Tensor]:
        """Give the output, the states after it and all gradients."""
        with torch.autocast("cuda", dtype=torch.bfloat16):
            wide, last = recurrence.run_layer(self.weights, self.input, tuple(self.state), self.reset)
        output = wide[..., : self.H]
        return [output.detach(), *last, *torch.autograd.grad(output, [self.input, *self.weights], self.grad)]

    def exact(self) -> list[Tensor]:
        """Do the same in float64."""
        cell = type(self.cell)(self.cell.input_size, self.H).cuda().double()
        cell.load_state_dict(self.cell.state_dict())
        given = self.input.detach().double().requires_grad_()
        with torch.backends.cudnn.flags(enabled=False):
            output, after = recurrent.run_layer(cell, given, tuple(part.double() for part in self.state), self.reset)
            grads = torch.autograd.grad(output, [given, *cell.all_weights[0]], self.grad.double())
        return [output.detach(), *(part.detach() for part in after), *grads]

    def errors(self) -> list[float]:
        """Compare both."""
        return [
            float((found - exact).norm() / exact.norm()) for found, exact in zip(self.run(), self.exact(), strict=True)
        ]

    def steps(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """The steps alone, forwards and backwards, over inputs that are put back each time."""
        with torch.no_grad():
            num_steps, B, _ = self.input.shape
            sizes = Sizes.choose(self.name, self.input, self.H, torch.bfloat16, has_resets=False)
            wide, num_gates, like = sizes.wide_H, sizes.num_gates, {"device": "cuda", "dtype": torch.bfloat16}
            weight = sizes.pad_weight(self.weights[1], torch.bfloat16)
            given = torch.randn(num_steps, B, num_gates * wide, **like)
            hidden = torch.zeros(num_steps + 1, B, wide, **like)
            grad = torch.randn(num_steps, B, wide, **like)
            sums, cell = given.clone(), torch.zeros(num_steps + 1, B, wide, device="cuda")
        one = sizes.in_one_launch
        if self.name == "lstm":
            forward = persistent.lstm_forward if one else recurrence._lstm_steps
            backward = persistent.lstm_backward if one else recurrence._lstm_steps_back
            forward(sums, weight, hidden, hidden, cell, None)
            values = sums.clone()

            def back() -> None:
                sums.copy_(values)
                backward(sums, weight, grad, cell, None)

            def there() -> None:
                sums.copy_(given)
                forward(sums, weight, hidden, hidden, cell, None)

            return there, back

        def rnn_there() -> None:
            sums.copy_(given)
            (persistent.rnn_forward if one else recurrence._rnn_steps)(sums, weight, hidden, hidden, None)

        def rnn_back() -> None:
            sums.copy_(given)
            if one:
                persistent.rnn_backward(sums, weight, grad, hidden, None)
            else:
                sums.copy_(grad)
                recurrence._rnn_steps_back(sums, weight, hidden, None)

        rnn_there()
        return rnn_there, rnn_back

    def repeats(self) -> bool:
        """Replay a graph with changing inputs, twice over; say whether every bit came again."""
        outputs: list[Tensor] = []

        def run() -> None:
            outputs[:] = self.run()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        seen: list[list[Tensor]] = []
        same = True
        for turn in range(2):
            for seed in range(10):
                torch.manual_seed(seed)
                with torch.no_grad():
                    self.input.copy_(torch.randn_like(self.input))
                for _ in range(3):
                    graph.replay()
                if not turn:
                    seen.append([part.clone() for part in outputs])
                else:
                    same &= all(torch.equal(part, old) for part, old in zip(outputs, seen[seed], strict=True))
        eager = self.run()
        return same and all(torch.equal(part, now) for part, now in zip(outputs, eager, strict=True))


def measure(way: str) -> None:
    """Check and time one way at all shapes; a line of JSON per result."""

    def tell(**values: object) -> None:
        print(json.dumps({"way": way, **values}), flush=True)

    def attempt(kind: str, shape: list[object], do: Callable[[], dict[str, object]]) -> None:
        began = time.perf_counter()
        try:
            found = do()
            torch.cuda.synchronize()
        except Exception as error:
            tell(kind=kind, shape=shape, failed=f"{type(error).__name__}: {error}"[:600])
            traceback.print_exc()
            if "CUDA" in str(error):
                raise SystemExit(1) from error
        else:
            tell(kind=kind, shape=shape, took=round(time.perf_counter() - began, 2), **found)

    in_one_launch = way != "steps"
    os.environ["BNCE_PERSISTENT"] = str(int(in_one_launch))
    for name, value in WAYS[way].items():
        setattr(persistent, name, value)
    persistent.SPIN_LIMIT = 1 << 21
    if in_one_launch:
        _say_plans(tell)
    main = way in ("steps", "one launch")
    if way == "stages":
        for shape in (SHAPES[0], SHAPES[3]):
            attempt("stages", list(shape), lambda n=shape: _stages(Network(*n)))
        for left_out in LEFT_OUT:
            # CTAs of a cluster cannot run ahead of each other.
            only = {"waiting": "rnn", "sums": "lstm", "inputs": "lstm", "results": "lstm"}.get(left_out, "")
            for shape in (shape for shape in (SHAPES[0], SHAPES[3]) if shape[0].startswith(only)):
                name, B, E, H = shape
                attempt("part", [name, B, H, left_out], lambda n=shape, out=left_out: _without(Network(*n), out))
        return
    for name, B, E, H, steps in ODD if main else []:
        for has_resets in (False, True):
            network = Network(name, B, E, H, steps, has_resets)
            attempt("error", [name, B, H, steps, has_resets], lambda network=network: {"errors": network.errors()})
    shapes = SHAPES if way == "steps" else SHAPES[:6] if main else [SHAPES[0], SHAPES[1]]
    for name, B, E, H in shapes:
        network = Network(name, B, E, H)
        attempt("error", [name, B, H, T, False], lambda network=network: {"errors": network.errors()})
        if in_one_launch:
            attempt("repeat", [name, B, H], lambda network=network: {"same": network.repeats()})
        attempt("time", [name, B, H], lambda network=network: _times(network))


def _say_plans(tell: Callable[..., None]) -> None:
    original, max_ctas = persistent._Ready.__init__, nvrtc.Kernel.max_ctas

    def count(self: nvrtc.Kernel, device: torch.device) -> int:
        try:
            return max_ctas(self, device)
        except nvrtc.CannotCompileError as error:
            tell(kind="count", shape=[self.name], failed=str(error))
            return 96

    nvrtc.Kernel.max_ctas = count  # type: ignore[method-assign]

    def init(self: persistent._Ready, *args: object) -> None:
        began = time.perf_counter()
        original(self, *args)  # type: ignore[arg-type]
        plan = self.plan
        tell(
            kind="plan",
            shape=[plan.name, plan.H, args[2]],
            groups=plan.num_groups,
            passes=plan.num_passes,
            N=plan.N,
            ctas=plan.num_ctas,
            limit=self.kernel.max_ctas(torch.device("cuda", 0)),
            took=round(time.perf_counter() - began, 2),
        )

    persistent._Ready.__init__ = init  # type: ignore[method-assign]


def _steps_ms(network: Network) -> tuple[bool, float, float]:
    sizes = Sizes.choose(network.name, network.input, network.H, torch.bfloat16, has_resets=False)
    forward, backward = network.steps()
    like = torch.empty(*network.input.shape[:2], sizes.num_gates * sizes.wide_H, device="cuda", dtype=torch.bfloat16)
    other = torch.zeros_like(like)
    copy = median_ms(lambda: like.copy_(other))
    twice = 2 if network.name == "rnn" and not sizes.in_one_launch else 1
    return sizes.in_one_launch, median_ms(forward) - copy, median_ms(backward) - twice * copy


def _times(network: Network) -> dict[str, object]:
    in_one_launch, forward, backward = _steps_ms(network)
    assert not persistent._FAILED, persistent._FAILED
    return {"one_launch": in_one_launch, "forward": forward, "backward": backward, "all": median_ms(network.run)}


@contextlib.contextmanager
def _changed(change: Callable[[str], str]) -> Iterator[None]:
    """Change the kernels' text for a while."""
    original = nvrtc.source
    nvrtc.source = lambda names, definitions: change(original(names, definitions))  # type: ignore[assignment]
    persistent._READY.clear()
    try:
        yield
    finally:
        nvrtc.source = original
        persistent._READY.clear()


def leave_out(text: str, part: str) -> str:
    """Give the kernels' text without a part."""
    assert any(old in text for old, _ in LEFT_OUT[part]), part
    for old, new in LEFT_OUT[part]:
        text = text.replace(old, new)
    return text


def _without(network: Network, left_out: str) -> dict[str, object]:
    with _changed(lambda text: leave_out(text, left_out)):
        _, forward, backward = _steps_ms(network)
    return {"forward": forward, "backward": backward}


def read_clock(text: str) -> str:
    """Give the kernels' text with thread 0 writing down when it has got to each stage, behind the counters."""
    for number, anchors in enumerate(STAGES.values()):
        place = f"arrived[{NUM_COUNTERS} + ((u64)block_number() * {MAX_STEPS} + t) * 8 + {number}]"
        stamp = f"if (thread_number() == 0) {place} = clock64();"
        for anchor, is_after in anchors:
            # Braces, because an anchor may be all that an `if` covers.
            text = text.replace(anchor, f"{{ {anchor}\n{stamp} }}" if is_after else f"{stamp}\n{anchor}")
    return text


def _stages(network: Network) -> dict[str, object]:
    """Cycles between the stages of a step: medians over steps, of the mean over CTAs."""
    cycles: dict[str, object] = {}
    with _changed(read_clock):
        # Once compiled, and before anything runs, there must be room for what is written down.
        Sizes.choose(network.name, network.input, network.H, torch.bfloat16, has_resets=False)
        for ready in persistent._READY.values():
            ready.arrived = torch.zeros(NUM_COUNTERS + MAX_CTAS * MAX_STEPS * 8, dtype=torch.int64, device="cuda")
        forward, backward = network.steps()
        for name, run in ("forward", forward), ("backward", backward):
            for _ in range(3):
                run()
            key = next(key for key in persistent._READY if key[0] == f"{network.name}_{name}")
            ready = persistent._READY[key]
            stamps = ready.arrived[NUM_COUNTERS:].view(MAX_CTAS, MAX_STEPS, 8)[: ready.plan.num_ctas].cpu().double()
            cycles[name] = between(stamps, range(T) if name == "forward" else range(T - 1, -1, -1))
    return cycles


def between(stamps: Tensor, order: Iterable[int]) -> dict[str, int]:
    """Say how many cycles each stage took after the one before it, in a step from the middle."""
    steps = list(order)[3:-2]
    ends, found = stamps.mean(0), {}
    numbers = [number for number in range(len(STAGES)) if bool(ends[steps[0], number])]
    for place, number in enumerate(numbers):
        before = [(step, numbers[place - 1]) if place else (last, numbers[-1]) for last, step in pairwise(steps)]
        took = [float(ends[step, number] - ends[at]) for step, at in zip(steps[1:], before, strict=True)]
        found[list(STAGES)[number]] = round(statistics.median(took))
    return found


def run_all(ways: list[str], num_seconds: int, out: Path | None) -> None:
    """Run every way in a process of its own and print a table."""
    began, rows = time.perf_counter(), []
    for way in ways:
        left = num_seconds - (time.perf_counter() - began)
        limit = min(WAY_SECONDS.get(way, 20), left)
        if limit < 8:
            print(f"{way}: no time left")
            continue
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, __file__, "--way", way], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            text, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            text, errors = process.communicate()
            print(f"{way}: stopped after {limit:.0f} s")
        print(f"{way}: status {process.returncode}, {time.perf_counter() - started:.1f} s")
        if errors.strip():
            print(errors[-1500:])
        rows += [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "recurrence.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    _print(rows)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.perf_counter() - began:.0f} s in all")


def _print(rows: list[dict[str, object]]) -> None:
    for row in rows:
        if row["kind"] == "plan" and row["way"] == "one launch":
            print(
                f"{row['way']}: plan {row['shape']}: ",
                {k: row[k] for k in ("groups", "passes", "N", "ctas", "limit", "took")},
            )
    plain = {
        str(row["shape"]): row["errors"]
        for row in rows
        if row["kind"] == "error" and row["way"] == "steps" and "errors" in row
    }
    for row in rows:
        if "failed" in row:
            print(f"{row['way']}: {row['kind']} {row['shape']} FAILED: {row['failed']}")
        elif row["kind"] == "error" and row["way"] != "steps":
            own = plain.get(str(row["shape"]), [float("nan")] * 9)
            ratios = [a / b for a, b in zip(row["errors"], own, strict=False)]  # type: ignore[call-overload]
            verdict = "ok" if max(ratios) < 1.5 else "WRONG?"
            text = f"largest error {max(row['errors']):.1e}, of the steps' own {max(ratios):.2f} {verdict}"  # type: ignore[call-overload]
            print(f"{row['way']}: {row['shape']}: {text}")
        elif row["kind"] == "repeat" and not row["same"]:
            print(f"{row['way']}: {row['shape']}: NOT THE SAME BITS in two replays")
    print(f"{'':26s} {'network':22s} {'forward':>9s} {'backward':>9s} {'all':>9s}   (ms)")
    for row in rows:
        if row["kind"] in ("time", "part") and "forward" in row:
            shape = " ".join(str(part) for part in row["shape"])  # type: ignore[attr-defined]
            total = f"{row['all']:9.4f}" if "all" in row else " " * 9
            one = "" if row.get("one_launch", True) else " (steps)"
            name = row["way"] if row["kind"] == "time" else "  without"
            print(f"{name:26s} {shape:22s} {row['forward']:9.4f} {row['backward']:9.4f} {total}{one}")
    for row in rows:
        if row["kind"] == "stages" and "forward" in row:
            for direction in ("forward", "backward"):
                print(f"cycles {row['shape']} {direction}: {row[direction]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="Directory for the results.")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="Ways to measure.")
    parser.add_argument("--seconds", type=int, default=90, help="Stop after N seconds.")
    parser.add_argument("--way", choices=WAYS, help="Measure one way in this process.")
    given = parser.parse_args()
    if given.way is None:
        run_all(given.ways, given.seconds, given.out)
    else:
        measure(given.way)
