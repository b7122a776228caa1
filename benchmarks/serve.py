"""What `bnce serve` does under load on loopback: requests a second, latency, memory, and what bad clients change.

    python benchmarks/serve.py RUN
    python benchmarks/serve.py RUN --out benchmarks/results/serve.md

The server is a process of its own, and so is each of the load's kinds. A client keeps one connection and sends its next
request when the last is answered, so as many requests are under way as there are clients. Every answer must be a 200.
Bad clients send broken JSON, bytes that are none, bodies of three megabytes, and headers and bodies that never end;
hostile ones send what is small to send and large to read. Requests of all sizes are for the memory: PyTorch keeps
something for every shape that it computes.
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

from bnce.runs.directory import Run

NUM_CLIENTS = 200
NUM_ROUNDS = 5
SECONDS = 3.0
SENTENCE_WORDS = 20

NUM_HOSTILE = 8
NUM_SIZES = 2000

HOSTILE = [
    (b'{"sentences":[' + b"1," * (2**17 - 10) + b"1]}", b"application/json", 422),
    (b'{"utterances":[{"hypotheses":[' + b'{"text":""},' * 20_000 + b"1]}]}", b"application/json", 413),
    (b"{" + b",".join(b'"f%d":1' % number for number in range(20_000)) + b"}", b"application/json", 422),
    (b'{"texts":["' + b"." * (2**18 - 20) + b'"]}', b"application/json", 413),
]
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

    async def all_clients() -> None:
        await asyncio.gather(*(bad_client(*case) for case in BAD))

    end = time.perf_counter() + seconds
    asyncio.run(all_clients())
    return refused


def attack(port: int, seconds: float) -> tuple[int, float]:
    """Send the hostile bodies from several clients; gives how many, and the longest latency of /health meanwhile."""
    num_sent, latencies = 0, [0.0]
    crumbs = b"POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n1\r\n" * 5000

    async def hostile_client(number: int) -> None:
        nonlocal num_sent
        while time.perf_counter() < end:
            body, kind, expected = HOSTILE[number % len(HOSTILE)]
            path = "/rescore" if body.startswith(b'{"utt') else "/score"
            data, expected = (crumbs, 415) if number == NUM_HOSTILE else (request(path, body, kind), expected)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            status = await exchange(reader, writer, data)
            if status != expected:
                raise RuntimeError(f"a hostile request got {status}, not {expected}")
            num_sent += 1
            writer.close()

    async def ask_health() -> None:
        while time.perf_counter() < end:
            begin = time.perf_counter()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if await exchange(reader, writer, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") != 200:
                raise RuntimeError("the server is not well")
            latencies.append(time.perf_counter() - begin)
            writer.close()
            await asyncio.sleep(0.02)

    async def all_clients() -> None:
        await asyncio.gather(ask_health(), *(hostile_client(number) for number in range(NUM_HOSTILE + 1)))

    end = time.perf_counter() + seconds
    asyncio.run(all_clients())
    return num_sent, max(latencies)


def ask_all(port: int, requests: list[bytes], num_clients: int) -> None:
    """Ask every request once, from several clients."""

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
        for one in requests[number::num_clients]:
            status = await exchange(reader, writer, one)
            if status != 200:
                raise RuntimeError(f"a good request got {status}")
        writer.close()

    async def all_clients() -> None:
        await asyncio.gather(*(client(number) for number in range(num_clients)))

    asyncio.run(all_clients())


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
    options = ["--port", "0", "--json"]
    command = [sys.executable, "-m", "bnce", "serve", str(run), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
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
    opened = Run.open(run)
    generator = np.random.default_rng(1)
    share = opened.target_counts / opened.target_counts.sum()
    words = np.array(opened.vocabulary.words)

    def sentence() -> str:
        return " ".join(generator.choice(words[2:], SENTENCE_WORDS, p=share[2:] / share[2:].sum()))

    def nbest() -> list[dict[str, str]]:
        start = sentence()
        return [{"text": f"{start} {ending}"} for ending in sentence().split()]

    bodies = {
        "/score, one sentence": ("/score", lambda: {"sentences": [sentence()]}),
        "/score, one sentence, with `exact`": ("/score", lambda: {"sentences": [sentence()], "exact": True}),
        "/rescore, 20 hypotheses": ("/rescore", lambda: {"utterances": [{"hypotheses": nbest()}]}),
        "/next, 10 words": ("/next", lambda: {"prompt": sentence()}),
    }
    return {
        name: [request(path, json.dumps(make()).encode()) for _ in range(50)] for name, (path, make) in bodies.items()
    }


def requests_of_all_sizes(run: Path) -> list[bytes]:
    """Make requests of all kinds with 1 to 128 sentences or hypotheses of 1 to 128 words."""
    words = Run.open(run).vocabulary.words[2:]
    chosen = random.Random(1)

    def size() -> int:
        return int(2 ** chosen.uniform(0, 7))

    def sentence(most: int) -> str:
        return " ".join(chosen.choices(words, k=chosen.randint(1, most)))

    requests = []
    for number in range(NUM_SIZES):
        count, most = size(), size()
        start = sentence(most)
        path, body = (
            ("/score", {"sentences": [sentence(most) for _ in range(count)]}),
            ("/score", {"sentences": [sentence(20) for _ in range(min(count, 20))], "exact": True}),
            ("/rescore", {"utterances": [{"hypotheses": [{"text": f"{start} {sentence(6)}"} for _ in range(count)]}]}),
            ("/next", {"prompt": start}),
        )[number % 4]
        requests.append(request(path, json.dumps(body).encode()))
    return requests


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
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of one row in one round")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    seconds = options.seconds
    kinds = kinds_of_request(options.run)
    mixed = [one for requests in kinds.values() for one in requests]
    kinds |= {"all of these": mixed, "all of these, bad clients among them": mixed}
    figures: dict[str, list[list[float]]] = {name: [] for name in kinds}
    num_bad = 0
    with serving(options.run, options.threads) as (process, port), ProcessPoolExecutor(2) as others:
        before = memory_mib(process, "VmRSS")
        for _ in range(options.rounds):
            for name, requests in kinds.items():
                alone = others.submit(load, port, requests, 1, seconds / 4).result()
                bad = others.submit(disturb, port, seconds) if "bad" in name else None
                latencies = others.submit(load, port, requests, NUM_CLIENTS, seconds).result()
                milliseconds = [1000 * float(np.quantile(latencies, share)) for share in (0.5, 0.99)]
                figures[name].append([len(latencies) / seconds, *milliseconds, 1000 * float(np.median(alone))])
                num_bad += 0 if bad is None else bad.result()
                print(name, [round(figure, 1) for figure in figures[name][-1]], flush=True)
        peak = memory_mib(process, "VmHWM")
        others.submit(ask_all, port, requests_of_all_sizes(options.run), 8).result()
        sizes_peak = memory_mib(process, "VmHWM")
        num_hostile, health_seconds = others.submit(attack, port, 3 * seconds).result()
        hostile_peak = memory_mib(process, "VmHWM")
        large = request("/score", json.dumps({"sentences": [" ".join(["the"] * 40)] * 500}).encode())
        short = request("/next", b'{"prompt": "the"}')
        num_answered, num_refused, longest = others.submit(flood, port, large, short).result()
        flood_peak = memory_mib(process, "VmHWM")
    rows = [f"| {name} | {' | '.join(map(spread, zip(*rounds, strict=True)))} |" for name, rounds in figures.items()]
    opened = Run.open(options.run)
    config, machine = opened.config, _machine()
    report = f"""# Serving: load

    python benchmarks/serve.py RUN --out benchmarks/results/serve.md

Machine: {machine}, shared by server and clients; {options.threads} thread(s) for the model.
Python {platform.python_version()}, PyTorch {torch.__version__}. The run: {config.recipe}, {config.model.name},
{config.loss.name}, V = {len(opened.vocabulary):,}.

{NUM_CLIENTS} clients send requests at the same time. Each has its own connection and sends its next request as soon as
the last one is answered. Sentences have {SENTENCE_WORDS} words. There are {options.rounds} rounds. Each round runs
every row for {seconds:g} s, one row after the other. Figures are medians over the rounds, with the lowest and the
highest in brackets. All requests of these clients were answered with status 200. In the last row, other clients sent
{num_bad} bad requests (broken JSON, bytes that are not JSON, 3 MB, forms). Each was answered with status 4xx.

| requests | requests/s | latency, median ms | 99th percentile, ms | median ms of one client alone |
|---|---:|---:|---:|---:|
{chr(10).join(rows)}

Peak resident memory so far: {before:,.0f} MiB when ready, {peak:,.0f} MiB after these rows,
{sizes_peak:,.0f} MiB after {NUM_SIZES:,} requests of all sizes (1 to 128 sentences or hypotheses of 1 to 128 words)
from 8 clients.

Then {NUM_HOSTILE + 1} clients send bodies that are expensive to parse: 256 KiB of numbers, of hypotheses or of
punctuation marks, 20,000 fields, and chunks of one byte. In {3 * seconds:g} s {num_hostile:,} of them were refused,
and each request to /health was answered within {health_seconds:.2f} s. Memory: {hostile_peak:,.0f} MiB.

Then each of the {NUM_CLIENTS} clients sends three requests of 20,000 words, the maximum. {num_answered} requests were
answered. {num_refused} got status 503 with Retry-After, because at most 524,288 words may wait. At the same time
another client asked for next words. Each of its requests was answered within {longest:.2f} s. Memory:
{flood_peak:,.0f} MiB.
"""
    if options.out:
        options.out.write_text(report, encoding="utf-8")
    else:
        print(report)


if __name__ == "__main__":
    main()
