"""Rescored lists as files: the best as Kaldi text or SCTK transcripts, or all with all scores as JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bnce import files
from bnce.errors import UserError, argument, unknown_name
from bnce.rescoring.formats import trn
from bnce.rescoring.formats.source import ROLES, Source
from bnce.rescoring.nbest import NBest
from bnce.rescoring.rescore import Scores
from bnce.scoring.weights import Weights

OUT_FORMATS = ("kaldi", "trn", "jsonl")

_ENDINGS = {".trn": "trn", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_BLANK = re.compile(r"\s")


def out_format(path: str | None, given: str = "auto") -> str:
    """Tell the format to write, by the file's ending if none is given."""
    if given == "auto":
        return "kaldi" if path is None else _ENDINGS.get(Source(path).ending, "kaldi")
    if given not in OUT_FORMATS:
        raise unknown_name(f"value of {argument('out_format')}", given, ("auto", *OUT_FORMATS))
    return given


def check_writable(nbest: NBest, form: str) -> None:
    """Refuse names and words that the format would turn into others, before anything is scored."""
    if form == "jsonl":
        return
    for utterance in nbest.utterances:
        if _BLANK.search(utterance.name) or (form == "trn" and re.search(r"[()]", utterance.name)):
            raise UserError(
                f"The utterance '{utterance.name}' has a blank or a bracket in its name, which a {form} file cannot "
                f"hold: give {argument('out_format', 'jsonl')}."
            )
        marked = next((text for text in utterance.texts if trn.MARKS.search(text)), None) if form == "trn" else None
        if marked is not None:
            raise UserError(
                f"A hypothesis of '{utterance.name}' is '{marked}', and SCTK reads a word of brackets, slash or @ as a "
                f"mark: give {argument('out_format', 'kaldi')} or {argument('out_format', 'jsonl')}."
            )


def written(scores: Scores, weights: Weights, form: str) -> Iterator[str]:
    """Give the lines of a file."""
    if form == "jsonl":
        yield from _json_lines(scores, weights)
        return
    for name, text in scores.best_texts(weights):
        yield (f"{text} ({name})".lstrip() if form == "trn" else f"{name} {text}".rstrip()) + "\n"


def _json_lines(scores: Scores, weights: Weights) -> Iterator[str]:
    """Write the lists anew, the best hypothesis first, so that they can be read again with all their scores."""
    references = {utterance.name: utterance.reference for utterance in scores.nbest.utterances}
    roles = {name: ROLES[name][0] for name in scores.nbest.score_names if name in ROLES}
    own_names = roles | {column: column for column in scores.other_columns.values()}
    lists: dict[str, list[dict[str, object]]] = {}
    for row in scores.rows(weights):
        values = {own: row[name] for name, own in own_names.items()}
        added = {name: row[name] for name in ("ln_prob", "num_words", "num_oov", "total", "place")}
        lists.setdefault(row["utt"], []).append({"text": row["hypothesis"], **values, **added})
    for name, hypotheses in lists.items():
        reference = references[name]
        said = {} if reference is None else {"ref": reference}
        yield files.to_json({"utt": name, **said, "hyps": hypotheses}) + "\n"
