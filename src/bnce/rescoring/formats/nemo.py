"""NeMo's beams: `text<TAB>score` lines, utterance after utterance, without names.

Where one utterance ends is known in one of two ways: all have `beam_size` hypotheses; or a new utterance begins where a
blank line stands, or else where the score rises, and as many begin as the manifest has. It has names and references.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from bnce.errors import UserError, argument
from bnce.rescoring.formats.source import AM, UTTERANCE_NAMES, Extras, Source, number, whole
from bnce.rescoring.nbest import NBest, Utterance, make_nbest


class _Beam(NamedTuple):
    line: int
    text: str
    score: float
    after_blank: bool


def recognise(source: Source) -> bool:
    """Tell beams by their two columns, of which the second is a number."""
    lines = source.first_lines()
    return bool(lines) and all(line.count("\t") == 1 and _is_number(line.split("\t")[1]) for line in lines)


def read(source: Source, extras: Extras) -> NBest:
    """Read beams and share them out among the utterances."""
    if extras.manifest is None and extras.beam_size is None:
        raise UserError(
            f"{source} has NeMo beams, which do not say where an utterance ends: give {argument('beam_size')} or "
            f"{argument('manifest')}."
        )
    if extras.beam_size is not None and extras.beam_size < 1:
        raise UserError(f"{argument('beam_size')} is {extras.beam_size}: give the number of hypotheses per utterance.")
    beams = list(_beams(source))
    named = None if extras.manifest is None else list(_manifest(extras.manifest))
    groups = _share_out(source, beams, None if named is None else len(named), extras)
    utterances = []
    for place, group in enumerate(groups):
        name, reference = (str(place + 1), None) if named is None else named[place]
        utterance = Utterance(name, reference=reference, line=group[0].line)
        for beam in group:
            utterance.add(beam.text, {AM: beam.score})
        utterances.append(utterance)
    return make_nbest(source, utterances, {}, "nemo")


def _beams(source: Source) -> Iterator[_Beam]:
    # An empty hypothesis still has its tab and its score.
    for line, after_blank, text in source.filled():
        cells = text.split("\t")
        if len(cells) != 2:
            raise UserError(
                f"{source.at(line)} has {len(cells)} columns: give a text and its score separated by a tab."
            )
        yield _Beam(line, cells[0], number(cells[1].strip(), source.at(line)), after_blank)


def _manifest(path: str) -> Iterator[tuple[str, str | None]]:
    """Read the names and, where there are some, the references of a manifest."""
    source = Source(path)
    seen: set[str] = set()
    for line, record in source.objects():
        name = next((record[name] for name in ("audio_filepath", *UTTERANCE_NAMES) if name in record), None)
        if not isinstance(name, str) or not name.strip():
            raise UserError(f"{source.at(line)} has no audio_filepath: give the name of the utterance.")
        if name in seen:
            raise UserError(f"{source.at(line)} has '{name}' again: give one line per utterance.")
        seen.add(name)
        reference = record.get("text")
        if reference is not None and not isinstance(reference, str):
            raise UserError(f"{source.at(line)} has a text that is not a string: give the reference, or none.")
        said = None if reference is None else " ".join(whole(reference, source.at(line)).split())
        yield whole(name, source.at(line)), said


def _share_out(source: Source, beams: list[_Beam], num_named: int | None, extras: Extras) -> list[list[_Beam]]:
    size = extras.beam_size
    if size is not None:
        if len(beams) % size:
            raise UserError(
                f"{source} has {len(beams)} hypotheses, which is not a multiple of {size}: the file is incomplete, "
                "or utterances have different numbers of hypotheses. In the second case, give "
                f"{argument('manifest')} without {argument('beam_size')}."
            )
        if num_named is not None and len(beams) // size != num_named:
            raise UserError(
                f"{source} has {len(beams) // size} utterances of {size} hypotheses, but '{extras.manifest}' has "
                f"{num_named} utterances: give the files of one decode."
            )
        return [beams[begin : begin + size] for begin in range(0, len(beams), size)]
    assert num_named is not None
    blanks = [place for place in range(1, len(beams)) if beams[place].after_blank]
    rises = [place + 1 for place, (one, two) in enumerate(pairwise(beams)) if two.score > one.score]
    # Scores fall within an utterance, so that every rise is a beginning; with as many rises, there are no others. But
    # where even shares would begin elsewhere, the scores may as well be in no order.
    even = len(beams) // num_named if num_named and len(beams) % num_named == 0 else 0
    is_uneven = bool(even) and rises != list(range(even, len(beams), even))
    begins = blanks if blanks or is_uneven else rises
    if len(begins) == num_named - 1:
        return [beams[begin:end] for begin, end in pairwise([0, *begins, len(beams)])]
    raise UserError(
        f"{source} has {len(beams)} hypotheses. Their scores rise {len(rises)} times, which does not fit the "
        f"{num_named} utterances of '{extras.manifest}': give {argument('beam_size')}, or a blank line "
        "between utterances."
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
