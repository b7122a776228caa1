"""What the server counts, in Prometheus' text format.

Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

from __future__ import annotations

import bisect
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
QUESTIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Histogram:
    """How often a value was at most each of some bounds, with the sum of all values."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """Write it; counts are cumulative, as Prometheus wants them."""
        seen = 0
        inside = f"{labels}," if labels else ""
        outside = f"{{{labels}}}" if labels else ""
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{{inside}le="{bound}"}} {seen}'
        yield f"{name}_sum{outside} {self.total:.9g}"
        yield f"{name}_count{outside} {seen}"


class Metrics:
    """Counts of one server since it started; the loop's thread alone touches them."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.latencies: dict[str, Histogram] = {}
        self.batch_questions = Histogram(QUESTIONS)
        self.num_words = 0

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count one request that has ended."""
        self.requests[endpoint, status] += 1
        self.latencies.setdefault(endpoint, Histogram(SECONDS)).observe(seconds)

    def render(self, num_waiting: int) -> str:
        """Write everything."""
        lines = [*_head("bnce_requests_total", "counter", "Finished requests; 499: the client disconnected.")]
        for (endpoint, status), count in sorted(self.requests.items()):
            lines.append(f'bnce_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}')
        lines += _head("bnce_request_seconds", "histogram", "Time from the end of the header to the end of the answer.")
        for endpoint, histogram in sorted(self.latencies.items()):
            lines += histogram.lines("bnce_request_seconds", f'endpoint="{endpoint}"')
        lines += _head("bnce_batch_questions", "histogram", "Parts of requests per pass through the model.")
        lines += self.batch_questions.lines("bnce_batch_questions")
        lines += _head("bnce_words_total", "counter", "Words of answered requests, including sentence ends.")
        lines.append(f"bnce_words_total {self.num_words}")

        lines += _head("bnce_waiting_requests", "gauge", "Requests that wait for the model or run in it.")
        lines.append(f"bnce_waiting_requests {num_waiting}")
        lines += _head("process_resident_memory_bytes", "gauge", "Resident memory of the server.")
        lines.append(f"process_resident_memory_bytes {resident_memory_bytes()}")
        return "\n".join(lines) + "\n"


def resident_memory_bytes() -> int:
    """Measure what the process holds in memory now; where the system does not tell, the most it ever held."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
