"""Rescored lists as files: the best as Kaldi text or SCTK transcripts, or all with all scores as JSON lines or TSV."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bnce import files
from bnce.errors import UserError
from bnce.rescoring.nbest import ROLES, NBest, Source
from bnce.rescoring.rescore import Scores
from bnce.scoring.weights import Weights

_ENDINGS = {".trn": "trn", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".tsv": "tsv"}


def out_format(path: Path | None) -> str:
    """Tell the format to write by the ending of the file; standard output gets Kaldi text."""
    return "kaldi" if path is None else _ENDINGS.get(Source(path).ending, "kaldi")


def check_writable(nbest: NBest, form: str) -> None:
    """Refuse names that the format would turn into others, before anything is scored."""
    if form not in ("kaldi", "trn"):
        return
    for utterance in nbest.utterances:
        if re.search(r"[\s()]" if form == "trn" else r"\s", utterance.name):
            raise UserError(
                f"The utterance '{utterance.name}' has a blank or a bracket in its name, which a {form} file cannot "
                "hold: write to a file that ends in .jsonl."
            )


def write_lists(scores: Scores, weights: Weights, form: str) -> Iterator[str]:
    """Give the lines of a file."""
    if form == "jsonl":
        yield from _json_lines(scores, weights)
    elif form == "tsv":
        for number, row in enumerate(scores.rows(weights)):
            if number == 0:
                yield "\t".join(row) + "\n"
            yield "\t".join("" if value is None else str(value) for value in row.values()) + "\n"
    else:
        places = (scores.best(weights) - scores.begins).tolist()
        for utterance, place in zip(scores.nbest.utterances, places, strict=True):
            name, text = utterance.name, utterance.texts[place]
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
        known = {} if reference is None else {"ref": reference}
        yield files.to_json({"utt": name, **known, "hyps": hypotheses}) + "\n"
