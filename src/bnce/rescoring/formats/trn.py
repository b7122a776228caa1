"""SCTK's transcripts: `words… (utterance)`. A name that is repeated has several hypotheses, the best first."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bnce.errors import UserError
from bnce.rescoring.formats.source import Extras, Source
from bnce.rescoring.nbest import NBest, Utterance, make_nbest, neighbour

COMMENT = ";;"

_LINE = re.compile(r"(.*?)\(([^()\s]+)\)\s*")
MARKS = re.compile(r"(?:^|\s)(?:\{|\}|/|@|\([^()\s]+\))(?=\s|$)")


def recognise(source: Source) -> bool:
    """Tell transcripts by the name in brackets at the end of every line."""
    lines = [line for line in source.first_lines() if not line.startswith(COMMENT)]
    return bool(lines) and all(_LINE.fullmatch(line) for line in lines)


def read(source: Source, extras: Extras) -> NBest:
    """Read hypotheses; those of one utterance stand in their order."""
    utterances: dict[str, Utterance] = {}
    line_before = 0
    for line, name, text in lines_of(source):
        utterance = neighbour(source, utterances, Utterance(name, after_blank=line > line_before + 1, line=line))
        line_before = line
        utterance.add(text, {})
    return make_nbest(source, utterances.values(), {}, "trn")


def lines_of(source: Source) -> Iterator[tuple[int, str, str]]:
    """Give every transcript with its line and its utterance; comments and blank lines are left out."""
    for line, text in enumerate(source.lines, 1):
        if not text.strip() or text.startswith(COMMENT):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise UserError(f"{source.at(line)} does not end in an utterance in brackets: give 'words… (utterance)'.")
        if mark := MARKS.search(match[1]):
            raise UserError(
                f"{source.at(line)} has SCTK's mark '{mark[0].strip()}' for alternatives or optional words, which "
                "bnce does not know: choose one wording."
            )
        yield line, match[2], " ".join(match[1].split())
