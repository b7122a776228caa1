"""What `bnce serve` does under load on loopback: requests a second, latency, memory, and what bad clients change.

    python benchmarks/serve.py RUN
    python benchmarks/serve.py RUN --out benchmarks/results/serve.md

The server is a process of its own, and so is each of the load's kinds. A client keeps one connection and sends its next
request when the last is answered, so as many requests are under way as there are clients. Every answer must be a 200.
Bad clients send broken JSON, bytes that are none, bodies of three megabytes, and headers and bodies that never end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from bnce.run_directory import RunDirectory

NUM_CLIENTS = 200
NUM_ROUNDS = 5
SECONDS = 3.0
SENTENCE_WORDS = 20

BAD = [
    (b'{"sentences": ["a"', b"application/json", 400),
    (b"\x00\xff\xfe\x80" * 300, b"application/json", 400),
    (b'{"sentences": ["' + b"aa " * 2**20 + b'"]}', b"application/json", 413),
    (b"sentences=a", b"application/x-www-form-urlencoded", 415),
]


def request(path: str, body: bytes, kind: bytes = b"application/json") -> bytes:
    """Write one HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nContent-Type: "
    return head.encode() + kind + b"\r\n\r\n" + body


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> int:
    """Send a request and read the answer to its end; gives the status."""
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.split(b":")[1]))
    return int(head.split()[1])


def load(port: int, requests: list[bytes], num_clients: int, seconds: float) -> list[float]:
    """Ask as many clients do for some seconds; gives the latencies, of which there are as many as answers."""
    latencies: list[float] = []

    async def client(number: int) -> None:
        chosen = random.Random(number)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        while time.perf_counter() < end:
            begin = time.perf_counter()
            status = await exchange(reader, writer, chosen.choice(requests))
            if status != 200:
                raise RuntimeError(f"a good request got {status}")
            latencies.append(time.perf_counter() - begin)
        writer.close()

    async def all_clients() -> None:
        await asyncio.gather(*(client(number) for number in range(num_clients)))

    end = time.perf_counter() + seconds
    asyncio.run(all_clients())
    return latencies


def disturb(port: int, seconds: float) -> int:
    """Be the bad clients; gives how many requests were refused as they should be."""
    refused = 0
    stalled = [b"POST /sco", request("/score", b"x" * 500)[:-499]]

    async def bad_client(body: bytes, kind: bytes, expected: int) -> None:
        nonlocal refused
        while time.perf_counter() < end:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            status = await exchange(reader, writer, request("/score", body, kind))
            if status != expected:
                raise RuntimeError(f"a bad request got {status}, not {expected}")
            refused += 1
            writer.close()
            await asyncio.sleep(0.1)

    async def slow_client(data: bytes) -> None:
        nonlocal refused
        while time.perf_counter() < end:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if await exchange(reader, writer, data) != 408:
                raise RuntimeError("a slow request did not get a 408")
            refused += 1
            writer.close()

    async def all_clients() -> None:
        bad = [bad_client(*case) for case in BAD]
        await asyncio.gather(*bad, *(slow_client(data) for data in stalled for _ in range(20)))

    end = time.perf_counter() + seconds
    asyncio.run(all_clients())
    return refused


def flood(port: int, long: bytes, short: bytes) -> tuple[int, int, float]:
    """Let every client send the largest request at once, thrice, and one client short ones beside.

    Gives how many were answered and how many told to come back (503), and the short one's longest latency in seconds.
    """
    statuses: Counter[int] = Counter()
    short_latencies: list[float] = []

    async def long_client() -> None:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
            statuses[await exchange(reader, writer, long)] += 1
            writer.close()

    async def short_client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while statuses.total() < 3 * NUM_CLIENTS:
            begin = time.perf_counter()
            if await exchange(reader, writer, short) != 200:
                raise RuntimeError("a short request was refused")
            short_latencies.append(time.perf_counter() - begin)
            await asyncio.sleep(0.05)
        writer.close()

    async def all_clients() -> None:
        await asyncio.gather(short_client(), *(long_client() for _ in range(NUM_CLIENTS)))

    asyncio.run(all_clients())
    if set(statuses) - {200, 503}:
        raise RuntimeError(f"large requests got {dict(statuses)}")
    return statuses[200], statuses[503], max(short_latencies)


@contextmanager
def serving(run: Path, threads: int) -> Iterator[tuple[int, int]]:
    """Start a server; gives its process and port."""
    options = ["--port", "0", "--json", "--threads", str(threads), "--body-seconds", "2"]
    command = [sys.executable, "-m", "bnce", "serve", str(run), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
        finally:
            process.terminate()


def memory_mib(process: int, key: str) -> float:
    """Read what a process holds (VmRSS), or the most it held (VmHWM)."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def kinds_of_request(run: Path) -> dict[str, list[bytes]]:
    """Make requests of each kind, of words by their frequency."""
    opened = RunDirectory.open(run)
    generator = np.random.default_rng(1)
    share = opened.target_counts / opened.target_counts.sum()
    words = np.array(opened.vocabulary.words)

    def sentence() -> str:
        return " ".join(generator.choice(words[2:], SENTENCE_WORDS, p=share[2:] / share[2:].sum()))

    def nbest() -> list[dict[str, str]]:
        start = sentence()
        return [{"text": f"{start} {ending}"} for ending in sentence().split()]

    bodies = {
        "/score, a sentence": ("/score", lambda: {"sentences": [sentence()]}),
        "/score, a sentence, exact beside": ("/score", lambda: {"sentences": [sentence()], "exact": True}),
        "/rescore, 20 hypotheses": ("/rescore", lambda: {"utterances": [{"hypotheses": nbest()}]}),
        "/next, 10 words": ("/next", lambda: {"prompt": sentence()}),
    }
    return {
        name: [request(path, json.dumps(make()).encode()) for _ in range(50)] for name, (path, make) in bodies.items()
    }


def spread(figures: Sequence[float]) -> str:
    """Write the median of some figures with the least and the most."""
    low, middle, high = (np.quantile(figures, share) for share in (0, 0.5, 1))
    digits = 0 if middle >= 100 else 1
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


def _machine() -> str:
    """Name the processor where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def main() -> None:
    """Measure every kind, with and without bad clients, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kinds = kinds_of_request(options.run)
    mixed = [one for requests in kinds.values() for one in requests]
    kinds |= {"all of these": mixed, "all of these, bad clients among them": mixed}
    figures: dict[str, list[list[float]]] = {name: [] for name in kinds}
    num_bad = 0
    with serving(options.run, options.threads) as (process, port), ProcessPoolExecutor(2) as others:
        before = memory_mib(process, "VmRSS")
        for _ in range(NUM_ROUNDS):
            for name, requests in kinds.items():
                alone = others.submit(load, port, requests, 1, SECONDS / 4).result()
                bad = others.submit(disturb, port, SECONDS) if "bad" in name else None
                latencies = others.submit(load, port, requests, NUM_CLIENTS, SECONDS).result()
                milliseconds = [1000 * float(np.quantile(latencies, share)) for share in (0.5, 0.99)]
                figures[name].append([len(latencies) / SECONDS, *milliseconds, 1000 * float(np.median(alone))])
                num_bad += 0 if bad is None else bad.result()
                print(name, [round(figure, 1) for figure in figures[name][-1]], flush=True)
        peak = memory_mib(process, "VmHWM")
        large = request("/score", json.dumps({"sentences": [" ".join(["the"] * 40)] * 500}).encode())
        short = request("/next", b'{"prompt": "the"}')
        num_answered, num_refused, longest = others.submit(flood, port, large, short).result()
        flood_peak = memory_mib(process, "VmHWM")
    rows = [f"| {name} | {' | '.join(map(spread, zip(*rounds, strict=True)))} |" for name, rounds in figures.items()]
    opened = RunDirectory.open(options.run)
    config, machine = opened.config, _machine()
    report = f"""# Serving: load

    python benchmarks/serve.py RUN --out benchmarks/results/serve.md

Machine: {machine}, shared by server and clients; {options.threads} thread(s) for the model.
Python {platform.python_version()}, PyTorch {torch.__version__}. The run: {config.recipe}, {config.model.name},
{config.loss.name}, V = {len(opened.vocabulary):,}.

{NUM_CLIENTS} clients at once, each with a connection of its own and a request under way all the time; sentences have
{SENTENCE_WORDS} words. Every round of {NUM_ROUNDS} runs every row for {SECONDS:g} s in turn; figures are medians of the
rounds with the least and the most. Every answer to these clients was a 200. The bad ones sent {num_bad} requests
(broken JSON, other bytes, 3 MB, forms, and 40 connections that stall in header or body); each got its 4xx.

| requests | requests/s | latency, median ms | 99th percentile, ms | median ms of one client alone |
|---|---:|---:|---:|---:|
{chr(10).join(rows)}

Memory (resident): {before:,.0f} MiB when ready, {peak:,.0f} MiB at most.

Then all {NUM_CLIENTS} clients send requests of 20,000 words, the most that is taken, three each: {num_answered} were
answered and {num_refused} got a 503 with Retry-After, since no more than 200,000 words may wait. A client beside them
that asked for next words was answered within {longest:.2f} s every time. Memory: {flood_peak:,.0f} MiB at most.
"""
    if options.out:
        options.out.write_text(report, encoding="utf-8")
    else:
        print(report)


if __name__ == "__main__":
    main()
