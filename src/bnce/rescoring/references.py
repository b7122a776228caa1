"""What was said: Kaldi text or JSON lines; one reference per utterance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bnce.errors import UserError
from bnce.rescoring.formats import json_lines
from bnce.rescoring.formats.source import UTTERANCE_NAMES, Source, keyed_lines, whole
from bnce.rescoring.nbest import Utterance

_TEXT_NAMES = (*json_lines.REFERENCE_NAMES, "text")


def read_references(path: str | Path, utterances: Sequence[Utterance]) -> list[str]:
    """Read references and give the utterances' own, in their order; others in the file are left alone."""
    source = Source(path)
    references: dict[str, str] = {}
    for line, key, text in _objects(source) if json_lines.recognise(source) else keyed_lines(source):
        if key in references:
            raise UserError(f"{source} has '{key}' again on line {line}: give one reference per utterance.")
        references[key] = text
    for utterance in utterances:
        if utterance.name not in references:
            raise UserError(
                f"{source} has no reference for '{utterance.name}': give one for every utterance of the list, "
                "as 'utterance words…' lines."
            )
    return [references[utterance.name] for utterance in utterances]


def _objects(source: Source) -> Iterator[tuple[int, str, str]]:
    for line, record in source.objects():
        name = next((record[name] for name in UTTERANCE_NAMES if name in record), None)
        reference = next((record[name] for name in _TEXT_NAMES if name in record), None)
        if not isinstance(name, str | int) or isinstance(name, bool) or not isinstance(reference, str):
            raise UserError(f"{source.at(line)} has no utterance and reference: give them as 'utt' and 'ref'.")
        yield line, whole(str(name), source.at(line)), " ".join(whole(reference, source.at(line)).split())
