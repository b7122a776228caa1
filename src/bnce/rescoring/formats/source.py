"""What all readers of n-best lists share: a file's lines, numbers that must be finite, and scores by name."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bnce.errors import UserError, shown
from bnce.files import parse_object
from bnce.text.sources import named, read_lines
from bnce.text.unpack import PACKED

# The two scores that have options of their own, and the names under which lists have them: the first one counts.
AM, OLD_LM = "am", "old_lm"
ROLES: Mapping[str, tuple[str, ...]] = {
    AM: ("am_score", "ac_score", "acoustic_score", "asr_score", "am", "score"),
    OLD_LM: ("lm_score", "old_lm_score", "old_lm", "lm"),
}
APART = "score."  # before the name of a score that is called like something else
UTTERANCE_NAMES = ("utt", "utt_id", "uttid", "id", "key", "audio_filepath")
TEXT_NAMES = ("text", "hyp", "hypothesis", "pred_text", "rec_text")


class Source:
    """A list before it is read: a file, standard input, or a directory. Its lines are read once."""

    def __init__(self, path: str | Path) -> None:
        self.path = os.fspath(path)

    def __str__(self) -> str:
        return named(self.path)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return os.path.isdir(self.path)

    @functools.cached_property
    def lines(self) -> list[str]:
        """All lines."""
        return list(read_lines(self.path))

    @property
    def ending(self) -> str:
        """The ending of the file's name, that of packing aside, in small letters."""
        stem, ending = os.path.splitext(self.path.lower())
        return os.path.splitext(stem)[1] if ending in PACKED else ending

    def filled(self) -> Iterator[tuple[int, str]]:
        """Give every line that is not blank with its number."""
        return ((line, text) for line, text in enumerate(self.lines, 1) if text.strip())

    def first_lines(self, most: int = 100) -> list[str]:
        """Give the first lines that are not blank, by which a format is recognised."""
        return [text for _, text in itertools.islice(self.filled(), most)]

    def objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Read a manifest, which has one JSON object per utterance, each with its line."""
        for line, text in self.filled():
            try:
                yield line, parse_object(text)
            except ValueError as error:
                raise UserError(f"{self.at(line)} is not a JSON object ({error}): give one per utterance.") from error

    def at(self, line: int) -> str:
        """Name a line in a message."""
        return f"{self}, line {line}"


def keyed_lines(source: Source) -> Iterator[tuple[int, str, str]]:
    """Read `key words…` lines with their numbers; blank ones are left out, and a key may stand alone."""
    for line, text in enumerate(source.lines, 1):
        if words := text.split():
            yield line, words[0], " ".join(words[1:])


def number(value: Any, where: str) -> float:
    """Read a score, which must be a finite number."""
    try:
        # Python reads 1_000 as a number; no recogniser writes that.
        odd = isinstance(value, bool) or (isinstance(value, str) and "_" in value)
        found = math.nan if odd else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise UserError(f"{where} has the score {shown(value)}: it must be a finite number.")
    return found


def whole(text: str, where: str) -> str:
    """Refuse halves of letters, which escapes such as \\ud800 can make and no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where} has the text {shown(text)}, which has half of a character (a lone surrogate): write the whole "
            "character."
        ) from error
    return text


def role_names(names: Sequence[str]) -> dict[str, str]:
    """Name the scores of a hypothesis: the first of a role's names becomes the role, others keep their own.

    One that is called like a role which another has is told apart from it.
    """
    found = {}
    for role, known in ROLES.items():
        first = next((name for name in known if name in names), None)
        if first is not None:
            found[first] = role
    apart = tell_apart([name for name in names if name not in found], [*found.values()])
    return found | apart


def tell_apart(names: Sequence[str], taken: Collection[str]) -> dict[str, str]:
    """Put `score.` before those names of scores that are taken, and give all of them under their old names."""
    free = {name for name in names if name not in taken}
    found = {name: name for name in names}
    for name in names:
        while found[name] in taken or (found[name] != name and found[name] in free):
            found[name] = f"{APART}{found[name]}"
    return found
