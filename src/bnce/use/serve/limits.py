"""What one request, and all of them together, may ask of the server."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from bnce.errors import UserError


@dataclass(frozen=True)
class Limits:
    """Bounds that keep memory and waiting times bounded; each is refused by a status of its own."""

    max_body_bytes: int = 2**20  # 413
    max_body_pieces: int = 4096  # 400: chunks, or packets, of a body
    max_held_bytes: int = 2**26  # 503: bodies of all requests together
    max_sentences: int = 1000  # 413: sentences of a request
    max_hypotheses: int = 2000  # 413: hypotheses of a request
    max_words: int = 20_000  # 413: words of a request
    max_exact_words: int = 4000  # 413: words of a request for normalised probabilities
    max_sentence_words: int = 1000  # 413: words of one sentence, hypothesis or prompt
    max_next: int = 100  # 422: next words
    max_waiting: int = 512  # 503: requests that wait for the model or are with it
    max_waiting_words: int = 200_000  # 503: their words, but one request alone always fits
    max_connections: int = 900  # 503: open ones, idle ones too
    body_seconds: float = 10.0  # 408: from a connection's first byte to the end of the header, and then of the body
    request_seconds: float = 30.0  # 504: waiting and scoring

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise UserError(f"The limit {field.name} is {value}: it must be above 0.")


class RefusedError(Exception):
    """A request that is not answered: the status and one sentence why."""

    def __init__(self, status: int, sentence: str, retry_seconds: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry_seconds = status, sentence, retry_seconds


def refuse_many(what: str, number: int, limit: int) -> None:
    """Refuse a request that asks for more of something than a limit allows."""
    if number > limit:
        raise RefusedError(
            413, f"The request has {number} {what}: this server takes {limit} at most; send several requests."
        )
