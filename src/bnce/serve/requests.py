"""From the bytes of a body to a request: what is too much is refused before anything is built for each item of it.

A megabyte holds half a million items. pydantic would write an error of its own about each, which takes seconds and
gigabytes; here they are counted first.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Executor
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from bnce.serve.limits import Limits, RefusedError, refuse_many
from bnce.serve.messages import NextRequest, RescoreRequest, ScoreRequest

Request = TypeVar("Request", ScoreRequest, RescoreRequest, NextRequest)

# Bytes that are read before a thread would have begun.
SHORT_BYTES = 10_000
# More than any object of a request has.
MAX_FIELDS = 16


class RequestReader:
    """Reads requests within limits; long ones beside the loop."""

    def __init__(self, limits: Limits, side_thread: Executor) -> None:
        self._limits, self._side_thread = limits, side_thread

    async def read(self, kind: type[Request], body: bytes) -> Request:
        """Make a request of a body, or refuse it."""
        if len(body) <= SHORT_BYTES:
            return self._read(kind, body)
        return await asyncio.get_running_loop().run_in_executor(self._side_thread, self._read, kind, body)

    def _read(self, kind: type[Request], body: bytes) -> Request:
        record = _parse(body)
        self._count(kind, record)
        try:
            return kind.model_validate(record)
        except ValidationError as error:
            raise wrong_field(error.errors(include_url=False, include_input=False)[0]) from None

    def _count(self, kind: type[BaseModel], record: Any) -> None:
        """Refuse more items than there may be; what is not a list of items is told later."""
        if not isinstance(record, dict):
            return
        if kind is ScoreRequest:
            for name in ("sentences", "texts"):
                refuse_many("sentences", _length(record.get(name)), self._limits.max_sentences)
        elif kind is RescoreRequest:
            utterances = record.get("utterances")
            if isinstance(utterances, list):
                # Each has a hypothesis at least.
                refuse_many("utterances", len(utterances), self._limits.max_hypotheses)
                lists = [one.get("hypotheses") for one in utterances if isinstance(one, dict)]
                refuse_many("hypotheses", sum(map(_length, lists)), self._limits.max_hypotheses)


def wrong_field(error: Any) -> RefusedError:
    """Say in one sentence what pydantic says of a field."""
    place = ".".join(str(part) for part in error["loc"]) or "the body"
    told = "there is no such field" if error["type"] == "extra_forbidden" else error["msg"]
    return RefusedError(422, f"{_shorten(place)}: {told}; see /docs.")


def _parse(body: bytes) -> Any:
    if not body:
        raise RefusedError(422, "the body: Field required; see /docs.")
    try:
        return json.loads(body, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise RefusedError(400, f"The body is not JSON: {error.msg} at character {error.pos}.") from None
    except RecursionError:
        raise RefusedError(400, "The body cannot be read as JSON: it is nested too deeply.") from None
    except ValueError:  # a number of thousands of digits
        raise RefusedError(400, "The body cannot be read as JSON: a number in it is too long.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_FIELDS:
        raise RefusedError(
            422, f"An object in the body has {len(pairs)} fields: no object may have more than {MAX_FIELDS}; see /docs."
        )
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RefusedError(422, f"{_shorten(twice)}: The field occurs twice in one object; give it once.")
    return record


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _shorten(name: str) -> str:
    # Names of fields come from the client; half a surrogate pair, which JSON can spell, cannot be written back.
    name = name.encode("utf-8", "replace").decode()
    return name if len(name) <= 100 else f"{name[:99]}…"
