"""The formats of n-best lists, each a row of `FORMATS`: how to know it, and how to read its hypotheses.

- ESPnet's decode directories: `1best_recog/{text,score}`, `2best_recog/…`, also below `logdir/output.1`, ….
  `text` has `utt words…` lines, `score` has `utt number` lines, where a number may be written as `tensor(-3.5)`.
- JSON lines (`json_lists.py`).
- TSV: utterance, scores, hypothesis. A first line that begins with `utt` names the columns. Without it there are two
  scores, the acoustic one and that of the old language model.
- Kaldi text: `utt-1 hypothesis…`, or `utt hypothesis…` with the key repeated; scores in files with the same keys.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bnce.errors import UserError, argument, counted, unknown_name
from bnce.rescoring.json_lists import (
    REFERENCE_NAMES,
    UTTERANCE_NAMES,
    is_json,
    parse_json,
    read_objects,
    reference_in,
    utterance_name,
)
from bnce.rescoring.nbest import AM, OLD_LM, Hypothesis, NBest, Source, assemble, check_letters, number

_RANK = re.compile(r"([1-9]\d*)best_recog")
_TENSOR = re.compile(r"tensor\(\s*([^\s,()]+)\s*(?:,[^()]*)?\)")
_NUMBERED = re.compile(r"(.+)-(\d+)")
_COLUMNS = ["utt", AM, OLD_LM, "hypothesis"]


@dataclass(frozen=True)
class Format:
    """One format: what messages call it, how it is recognised, and what reads it."""

    shown: str
    recognise: Callable[[Source], bool]
    parse: Callable[..., Iterator[Hypothesis]]  # of a Source, and of the files of scores if these are apart
    endings: tuple[str, ...] = ()  # of file names, packing aside, that are of this format
    scores_apart: bool = False  # whether scores are in files of their own
    any_number: bool = False  # whether numbers that are no scores may stand beside scores


def read_nbest(
    path: str | Path,
    form: str = "auto",
    *,
    score_files: Mapping[str, str] | None = None,
    fields: Collection[str] = (),
    costs: bool = False,
) -> NBest:
    """Read a list; `fields` are further scores by name, `costs` says that scores are costs: lower is better."""
    source = Source(path)
    name = _recognise(source) if form == "auto" else form
    if name not in FORMATS:
        raise unknown_name("format of n-best lists", name, FORMATS)
    kind = FORMATS[name]
    if score_files and not kind.scores_apart:
        raise UserError(
            f"{argument('score_files')} NAME=FILE is for Kaldi text, and {source} is read as {name}: give only the "
            f"NAME of a score in it, or {argument('form', 'kaldi')}."
        )
    hypotheses = kind.parse(source, score_files or {}) if kind.scores_apart else kind.parse(source)
    return assemble(source, hypotheses, name, fields if kind.any_number else None, costs)


def read_references(path: str | Path, utterances: Iterable[str]) -> list[str]:
    """Read references, and give those of the named utterances in their order; others are left alone."""
    source = Source(path)
    references: dict[str, str] = {}
    for where, key, text in _said(source) if is_json(source) else source.keyed_lines():
        if key in references:
            raise UserError(f"{where} has '{key}' again: give one reference per utterance.")
        check_letters(key + text, where)
        references[key] = text
    for name in utterances:
        if name not in references:
            raise UserError(
                f"{source} has no reference for '{name}': give one for every utterance of the list, as "
                "'utterance words…' lines."
            )
    return [references[name] for name in utterances]


def _said(source: Source) -> Iterator[tuple[str, str, str]]:
    for where, record in read_objects(source):
        reference = reference_in(record, (*REFERENCE_NAMES, "text"), where)
        if reference is None:
            raise UserError(f"{where} has no reference: give it as 'ref'.")
        yield where, utterance_name(record, where), reference


def _recognise(source: Source) -> str:
    """Tell the format by the file's name and by its first lines."""
    by_name = (name for name, kind in FORMATS.items() if source.ending in kind.endings and not _is_directory(source))
    return next(by_name, None) or next(name for name, kind in FORMATS.items() if kind.recognise(source))


def _is_directory(source: Source) -> bool:
    return os.path.isdir(source.path)


def _neighbours(hypotheses: Iterable[Hypothesis]) -> Iterator[Hypothesis]:
    """Refuse an utterance that comes again after another: two lists in one file would become one."""
    seen: dict[str, None] = {}
    for one in hypotheses:
        last = next(reversed(seen), one.utterance)
        if one.utterance in seen and one.utterance != last:
            raise UserError(
                f"{one.where} has '{one.utterance}' again, after '{last}': put all hypotheses of an utterance on "
                "neighbouring lines, the best first."
            )
        seen[one.utterance] = None
        yield one


def _looks_like_table(source: Source) -> bool:
    """Tell a table by its header or its four columns."""
    lines = [text for _, text in source.lines[:100]]
    return bool(lines) and (_is_header(lines[0]) or all(line.count("\t") == 3 for line in lines))


def _is_header(line: str) -> bool:
    return "\t" in line and line.split("\t")[0].strip().lower() in UTTERANCE_NAMES


def _parse_table(source: Source) -> Iterator[Hypothesis]:
    columns, lines = _COLUMNS, source.lines
    if lines and _is_header(lines[0][1]):
        where, header = lines[0]
        columns, lines = [cell.strip() for cell in header.split("\t")], lines[1:]
        if len(set(columns)) < len(columns) or "" in columns:
            raise UserError(
                f"{where} names the columns {', '.join(columns)}: give utterance, scores and hypothesis, each with a "
                "name of its own."
            )
    for where, text in lines:
        name, *cells = text.split("\t")
        if len(cells) != len(columns) - 1:
            raise UserError(
                f"{where} has {len(cells) + 1} columns instead of {len(columns)}: give {', '.join(columns)}, separated "
                "by tabs."
            )
        if not name.strip():
            raise UserError(f"{where} has no utterance: give its name in the first column.")
        scores = {column: cell.strip() or None for column, cell in zip(columns[1:-1], cells, strict=False)}
        yield Hypothesis(where, name.strip(), cells[-1], scores)


def _parse_kaldi(source: Source, score_files: Mapping[str, str]) -> Iterator[Hypothesis]:
    lines = list(source.keyed_lines())
    is_numbered = _are_numbered(key for _, key, _ in lines)
    files = {name: _read_scores(Source(path)) for name, path in score_files.items()}
    num_hypotheses = Counter(key for _, key, _ in lines)
    seen: Counter[str] = Counter()
    hypotheses = []
    for where, key, text in lines:
        if is_numbered and seen[key]:
            raise UserError(
                f"{where} has '{key}' again: keys that end in numbers are read as 'utterance-number', each once. If "
                "they are whole utterance names, give JSON lines."
            )
        for name, by_key in files.items():
            _check_scores(score_files[name], by_key, key, 1 if is_numbered else num_hypotheses[key])
        scores = {name: by_key[key][seen[key]] for name, by_key in files.items()}
        seen[key] += 1
        hypotheses.append(Hypothesis(where, key.rpartition("-")[0] if is_numbered else key, text, scores))
    yield from hypotheses if is_numbered else _neighbours(hypotheses)


def _are_numbered(keys: Iterable[str]) -> bool:
    """Tell whether keys are `utt-1`, `utt-2`, …: all end in a number, and each utterance's first is 1."""
    first: dict[str, str] = {}
    for key in keys:
        match = _NUMBERED.fullmatch(key)
        if match is None:
            return False
        first.setdefault(match[1], match[2])
    return all(rank == "1" for rank in first.values())


def _read_scores(source: Source) -> dict[str, list[float]]:
    """Read `key score` lines; a key that is repeated has a score each time."""
    scores: dict[str, list[float]] = {}
    for where, key, text in source.keyed_lines():
        match = _TENSOR.fullmatch(text)
        value = match[1] if match else text
        if len(value.split()) != 1:
            raise UserError(f"{where} has {1 + len(value.split())} columns: give a key and one score per line.")
        scores.setdefault(key, []).append(number(value, where))
    return scores


def _check_scores(path: str, by_key: Mapping[str, Sequence[float]], key: str, num_hypotheses: int) -> None:
    """Refuse more or fewer scores than hypotheses: which belongs to which could not be told."""
    if len(by_key.get(key, [])) != num_hypotheses:
        raise UserError(
            f"'{path}' has {counted(len(by_key.get(key, [])), 'score')} for '{key}', but there "
            f"{'is 1 hypothesis' if num_hypotheses == 1 else f'are {num_hypotheses} hypotheses'}: give one score per "
            "hypothesis."
        )


def _parse_espnet(source: Source) -> Iterator[Hypothesis]:
    """Read all ranks of all jobs."""
    if not _is_directory(source):
        raise UserError(f"{source} is not a directory: give the one that has 1best_recog in it.")
    jobs: dict[str, Path] = {}
    for job in _jobs(Path(source.path)):
        before: Mapping[str, Hypothesis] | None = None
        for rank, directory in enumerate(_ranks(job), 1):
            own = _read_rank(directory)
            for key, one in own.items():
                if before is None and jobs.setdefault(key, job) != job:
                    raise UserError(
                        f"{one.where} has '{key}', which another job has, too: give the directory of one decode."
                    )
                if before is not None and key not in before:
                    raise UserError(
                        f"{one.where} has '{key}', which {rank - 1}best_recog does not have: copy all files."
                    )
                yield one
            before = own


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


def _read_rank(directory: Path) -> dict[str, Hypothesis]:
    text, score = Source(directory / "text"), Source(directory / "score")
    hypotheses: dict[str, Hypothesis] = {}
    for where, key, words in text.keyed_lines():
        if key in hypotheses:
            raise UserError(f"{where} has '{key}' again: give one hypothesis per utterance.")
        hypotheses[key] = Hypothesis(where, key, words, {})
    if not Path(score.path).exists():
        return hypotheses
    scores = _read_scores(score)
    for key in hypotheses:
        _check_scores(score.path, scores, key, 1)
    for key in scores:
        if key not in hypotheses:
            raise UserError(f"{score} has a score for '{key}', which {text} does not have: give its hypothesis.")
    return {key: one._replace(scores={"score": scores[key][0]}) for key, one in hypotheses.items()}


# In the order in which they are tried: Kaldi text, which is what anything may be, comes last.
FORMATS = {
    "espnet": Format("an ESPnet decode directory", _is_directory, _parse_espnet),
    "jsonl": Format("JSON lines", is_json, parse_json, (".jsonl", ".json", ".ndjson"), any_number=True),
    "tsv": Format("TSV", _looks_like_table, lambda source: _neighbours(_parse_table(source)), (".tsv",)),
    "kaldi": Format("Kaldi text", lambda source: True, _parse_kaldi, scores_apart=True),
}
