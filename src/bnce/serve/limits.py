"""What one request, and all of them together, may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from bnce.errors import UserError, argument


def _limit(default: float, low: float, high: float) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True)
class Limits:
    """Bounds that keep memory and waiting times bounded; each is refused by a status of its own.

    Each has bounds itself, which `bnce serve` says and checks: without an end, a wait never ends.
    """

    max_body_bytes: int = _limit(2**20, 1, 2**26)  # 413
    max_body_pieces: int = _limit(4096, 1, 2**20)  # 400: chunks, or packets, of a body
    max_held_bytes: int = _limit(2**26, 1, 2**32)  # 503: bodies of all requests together
    max_sentences: int = _limit(1000, 1, 10**6)  # 413: sentences of a request
    max_hypotheses: int = _limit(2000, 1, 10**6)  # 413: hypotheses of a request
    max_words: int = _limit(20_000, 1, 10**7)  # 413: words of a request
    max_exact_words: int = _limit(4000, 1, 10**7)  # 413: words of a request for normalised probabilities
    max_sentence_words: int = _limit(1000, 1, 10**6)  # 413: words of one sentence, hypothesis or prompt
    max_next: int = _limit(100, 1, 10**6)  # 422: next words
    max_waiting: int = _limit(512, 1, 10**6)  # 503: requests that wait for the model or are with it
    max_waiting_words: int = _limit(200_000, 1, 10**9)  # 503: their words, but one request alone always fits
    max_connections: int = _limit(900, 1, 10**6)  # 503: open ones, idle ones too
    # 408: from a connection's first byte to the end of the header, and then of the body
    body_seconds: float = _limit(10.0, 0.1, 3600)
    request_seconds: float = _limit(30.0, 0.1, 3600)  # 504: waiting and scoring
    max_batch: int = _limit(4096, 1, 10**6)  # words in one pass of the model
    max_wait_ms: float = _limit(3.0, 0, 10_000)  # how long a request waits for others to join it

    def __post_init__(self) -> None:
        for one in fields(self):
            value, low, high = getattr(self, one.name), one.metadata["low"], one.metadata["high"]
            # So that NaN is refused, too.
            if not low <= value <= high:
                raise UserError(f"{argument(one.name)} is {value}: give a number {span(one.name)}.")
        if self.max_wait_ms >= 1000 * self.request_seconds:
            raise UserError(
                f"{argument('max_wait_ms')} is {self.max_wait_ms:g} and {argument('request_seconds')} "
                f"{self.request_seconds:g}, so every request would end before it is scored: give a shorter wait, "
                "or more time for a request."
            )


def span(name: str) -> str:
    """Say from where to where a limit may go."""
    (bounds,) = (one.metadata for one in fields(Limits) if one.name == name)
    return f"from {bounds['low']:,} to {bounds['high']:,}"


class RefusedError(Exception):
    """A request that is not answered: the status and one sentence why."""

    def __init__(self, status: int, sentence: str, retry_seconds: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry_seconds = status, sentence, retry_seconds


def refuse_many(what: str, number: int, limit: int) -> None:
    """Refuse a request that asks for more of something than a limit allows."""
    if number > limit:
        raise RefusedError(
            413, f"The request has {number} {what}: this server accepts at most {limit}; send several requests."
        )
