"""What a case came to: one word, and whether that word is a failure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Words in the order of the table's columns.
GOOD = {
    "refused": ("the command ended with status 2, or the server answered with status 4xx, and one sentence said why"),
    "same": "the result is that of the undamaged input",
    "told": "another result, and standard error names the damaged file",
    "unseen": "the result differs, but the input has no checksum or length that could show the damage",
    "done": "the changed option or request is valid, and the command did what it asks for",
    "stopped": "long work, as asked for, that a polite kill ended",
    "ended": "a signal or the death of a worker ended the command within five seconds, and nothing was left behind",
    "equal": "the resumed run is equal to an uninterrupted run",
}
BAD = {
    "traceback": "a traceback, or an error that the program did not expect",
    "silent": "a checksum or a length could show the damage, but there was no message",
    "hang": "the command did not end before the time limit",
    "crash": "the process died",
    "unclear": "neither a result nor one sentence with status 2",
    "litter": "files were left behind, or a device file was replaced",
    "lost": "the resumed run is not equal to an uninterrupted run, or an input was replaced",
    "broken": "the benchmark itself failed",
}


@dataclass(frozen=True)
class Verdict:
    """What a case came to."""

    word: str
    what: str = ""  # what was done
    detail: str = ""  # what came of it

    @property
    def failed(self) -> bool:
        """Whether it must not be."""
        return self.word in BAD


@dataclass(frozen=True)
class Outcome:
    """What a command left."""

    status: int
    stdout: str
    stderr: str


_VOLATILE = re.compile(r"seconds|per_second|memory|^command$|^commit$|^time$|^num_bytes$")


def result(outcome: Outcome) -> Any:
    """Give what a command printed, without what differs from one run to the next."""
    try:
        return _lasting(json.loads(outcome.stdout))
    except ValueError:
        return outcome.stdout


def _lasting(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lasting(item) for key, item in value.items() if not _VOLATILE.search(key)}
    if isinstance(value, list):
        return [_lasting(item) for item in value]
    return value


def judge(
    outcome: Outcome,
    what: str,
    expected: Outcome | None = None,
    *,
    damaged: str = "",
    unseen: bool = False,
    may_stop: bool = False,
    finds: bool = False,
) -> Verdict:
    """Hold an outcome to the one of the undamaged input; `unseen` is for damage that nothing can show.

    `expected` is None where the case asks for something else than the undamaged one. `finds` is for a command whose
    findings are its result: status 1 says that there are some.
    """
    said = outcome.stderr.strip()
    # An error that nobody foresaw is one, however it is told.
    if "Traceback (most recent call last)" in said or "Unexpected error" in said:
        return Verdict("traceback", what, "\n    ".join(line[:200] for line in said.splitlines()[-7:]))
    if complaint := re.search(r"^(?:.*:\d+: )?\S+(?:Warning|Error|Exception): .*", said, flags=re.MULTILINE):
        return Verdict("unclear", what, f"status {outcome.status}, and standard error has: {complaint[0][:300]}")
    if outcome.status == 0:
        if expected is None:
            return Verdict("done", what)
        found, wanted = result(outcome), result(expected)
        if found == wanted:
            return Verdict("same", what)
        if damaged and damaged in said:
            return Verdict("told", what)
        if unseen:
            return Verdict("unseen", what)
        return Verdict("silent", what, _difference(found, wanted))
    if finds and outcome.status == 1 and outcome.stdout:
        return Verdict("refused", what)
    if outcome.status == 2:
        return (
            Verdict("refused", what)
            if is_sentence(said)
            else Verdict("unclear", what, f"not one sentence: {said[-600:]}")
        )
    if may_stop and outcome.status in (130, 143):
        return Verdict("stopped", what)
    return Verdict("unclear", what, f"status {outcome.status}: {said[-300:]}")


def is_sentence(said: str) -> bool:
    """Tell whether a refusal is the last line, and one; what a run said on the way may stand before it."""
    if said.startswith("Usage: ") and "Error" in said:
        return True
    lines = said.split("\n")
    return bool(lines) and lines[-1].startswith("bnce: ") and sum(line.startswith("bnce: ") for line in lines) == 1


def _difference(found: Any, wanted: Any, path: str = "") -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in {**wanted, **found}:
            if found.get(key) != wanted.get(key):
                return _difference(found.get(key), wanted.get(key), f"{path}.{key}")
    return f"{path or 'the output'} is {str(found)[:120]}, not {str(wanted)[:120]}"
