"""ESPnet's decode directories: `1best_recog/{text,score}`, `2best_recog/…`, also below `logdir/output.1`, ….

`text` has `utt words…` lines, `score` has `utt number` lines, where a number may be written as `tensor(-3.5)`.
"""

from __future__ import annotations

import re
from pathlib import Path

from bnce.errors import UserError
from bnce.rescoring.formats.source import AM, Source, keyed_lines, number
from bnce.rescoring.nbest import NBest, Utterance, make_nbest

_RANK = re.compile(r"([1-9]\d*)best_recog")
_TENSOR = re.compile(r"tensor\(\s*([^\s,()]+)\s*(?:,[^()]*)?\)")


def recognise(source: Source) -> bool:
    """Tell a decode directory by what is in it; no other format is a directory."""
    return source.is_directory


def read(source: Source) -> NBest:
    """Read all ranks of all jobs."""
    if not source.is_directory:
        raise UserError(f"{source} is not a directory: give the one that has 1best_recog in it.")
    utterances: dict[str, Utterance] = {}
    for job in _jobs(Path(source.path)):
        own: dict[str, Utterance] = {}
        ranks = _ranks(job)
        for rank, directory in enumerate(ranks, 1):
            _read_rank(directory, rank, own)
        for name, utterance in own.items():
            if name in utterances:
                raise UserError(
                    f"'{ranks[0] / 'text'}', line {utterance.line} has '{name}', which another job has, too: give the "
                    "directory of one decode."
                )
            utterances[name] = utterance
    return make_nbest(source, utterances.values(), {AM: "score"}, "espnet")


def _jobs(directory: Path) -> list[Path]:
    """Find the directories that have ranks: this one, or those of the jobs that shared the work."""
    for jobs in ([directory], directory.glob("output.*"), directory.glob("logdir/output.*")):
        found = [job for job in jobs if job.is_dir() and any(_RANK.fullmatch(one.name) for one in job.iterdir())]
        if found:
            return sorted(found, key=lambda job: (len(job.name), job.name))
    raise UserError(
        f"'{directory}' has no 1best_recog, neither itself nor below output.1 or logdir/output.1: give the directory "
        "of a decode."
    )


def _ranks(job: Path) -> list[Path]:
    found = {int(match[1]): one for one in job.iterdir() if (match := _RANK.fullmatch(one.name))}
    for rank in range(1, max(found) + 1):
        if rank not in found:
            raise UserError(f"'{job}' has no {rank}best_recog, but {max(found)}best_recog: copy all of them.")
    return [found[rank] for rank in sorted(found)]


def _read_rank(directory: Path, rank: int, utterances: dict[str, Utterance]) -> None:
    text, score = Source(directory / "text"), Source(directory / "score")
    scores: dict[str, float] = {}
    if Path(score.path).exists():
        for line, key, value in keyed_lines(score):
            if key in scores:
                raise UserError(f"{score.at(line)} has '{key}' again: give one score per utterance.")
            match = _TENSOR.fullmatch(value)
            scores[key] = number(match[1] if match else value, score.at(line))
    seen = set()
    for line, key, words in keyed_lines(text):
        if key in seen:
            raise UserError(f"{text.at(line)} has '{key}' again: give one hypothesis per utterance.")
        seen.add(key)
        utterance = utterances.setdefault(key, Utterance(key, line=line)) if rank == 1 else utterances.get(key)
        if utterance is None or len(utterance.texts) != rank - 1:
            raise UserError(f"{text.at(line)} has '{key}', which {rank - 1}best_recog does not have: copy all files.")
        if scores and key not in scores:
            raise UserError(f"{text.at(line)} has '{key}', which {score} does not have: give every hypothesis a score.")
        utterance.add(words, {AM: scores[key]} if scores else {})
    for key in scores:
        if key not in seen:
            raise UserError(f"{score} has a score for '{key}', which {text} does not have: give its hypothesis.")
