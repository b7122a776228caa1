"""`bnce filter`: shards of documents in, shards with perplexities out, continued where a command was broken off.

DIR/NAME                  a shard's documents with their scores, under its own name; or those that are kept
DIR/rest/NAME             those that are not, if they are asked for
DIR/head|middle|tail/NAME where there are two limits
DIR/.bnce/settings.json   what decides the outputs; another command must have the same

A shard is done when all its outputs are there with its own time of change. They appear by renaming when all of them are
whole: where a command was killed in between, or a shard has changed, it is done again, and they are replaced.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce import files
from bnce.data.document_scorer import DIGITS, NAMES, DocumentScorer, Scores
from bnce.data.shards import Block, Shard, Write, find_shards, open_output, read_blocks, with_scores
from bnce.errors import UserError, argument
from bnce.scoring.loading import fingerprint
from bnce.text.sources import Advance, source_bytes

NUM_SAMPLED, MAX_SAMPLED_SHARDS = 5000, 100
MAX_EXACT = 100_000  # perplexities that are kept as they are, for exact percentiles; of more every second, fourth … one
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
PARTS = {0: ("all",), 1: ("kept", "rest"), 2: ("head", "middle", "tail")}  # by the number of limits


@dataclass(frozen=True)
class Job:
    """All that a command asks for; `shard` is (I, N): every N-th shard from the I-th on."""

    sources: Sequence[str]
    out: Path
    scorer: DocumentScorer
    field: str = "text"
    limits: tuple[float, ...] = ()  # of perplexity: documents up to the first, up to the second, and above
    rest: bool = False  # whether documents above one limit are written, too
    scores_only: bool = False
    skip: bool = False  # whether records that cannot be read are left out
    shard: tuple[int, int] = (1, 1)
    progress: Callable[[int, int], None] = lambda number, total: None  # bytes more that were read, of all
    notice: Callable[[str], object] = lambda sentence: None

    def paths(self, shard: Shard) -> dict[int, Path]:
        """Say where each part of a shard that is written goes."""
        if len(self.limits) == 2:
            return {number: self.out / part / shard.name for number, part in enumerate(PARTS[2])}
        return {0: self.out / shard.name, **({1: self.out / "rest" / shard.name} if self.rest else {})}


@dataclass
class Tally:
    """What is counted of documents in some parts."""

    parts: Sequence[str]
    totals: Counter[str] = field(default_factory=Counter)
    log_prob: float = 0.0
    perplexities: list[float] = field(default_factory=list)  # of every so many documents
    step: int = 1

    def add(self, scores: Scores, part_N: NDArray[np.int64]) -> None:
        """Count some documents."""
        self.log_prob += float(scores.log_prob_N.sum())
        for name in ("num_words", "num_tokens", "num_unknown"):
            self.totals[name] += int(getattr(scores, f"{name}_N").sum())
        self.totals["num_documents"] += len(part_N)
        self.totals["num_empty"] += int((scores.num_words_N == 0).sum())
        for number, part in enumerate(self.parts):
            self.totals[f"{part}.num_documents"] += int((part_N == number).sum())
            self.totals[f"{part}.num_words"] += int(scores.num_words_N[part_N == number].sum())
        perplexity_N = scores.columns["perplexity"]
        self.perplexities += perplexity_N[~np.isnan(perplexity_N)][:: self.step].tolist()
        while len(self.perplexities) > MAX_EXACT:
            self.perplexities, self.step = self.perplexities[::2], 2 * self.step

    def to_dict(self) -> dict[str, Any]:
        """Give sums and what follows from them."""
        of, totals = ("num_documents", "num_words"), self.totals
        num_tokens, num_words = totals["num_tokens"], totals["num_words"]
        percentiles = np.percentile(self.perplexities, PERCENTILES).tolist() if self.perplexities else []
        shown = {str(one): float(f"{value:.{DIGITS}g}") for one, value in zip(PERCENTILES, percentiles, strict=False)}
        return {
            **{name: totals[name] for name in (*of, "num_tokens", "num_unknown", "num_empty", "num_problems")},
            "perplexity": math.exp(-self.log_prob / num_tokens) if num_tokens else None,
            "unknown_rate": totals["num_unknown"] / num_words if num_words else None,
            "parts": {part: {name: totals[f"{part}.{name}"] for name in of} for part in self.parts},
            "percentiles": shown,
            "percentiles_are_exact": self.step == 1,
        }


def run(job: Job) -> dict[str, Any]:
    """Filter all shards that are not done yet, and tell what was found in these."""
    shards = find_shards(job.sources)
    _check_places(job, shards)
    settings = _settings(job, shards[0].root)
    _check_settings(job, settings)
    mine = shards[job.shard[0] - 1 :: job.shard[1]]
    todo = [shard for shard in mine if not _is_done(job, shard)]
    tally, mode = Tally(PARTS[len(job.limits)]), None
    num_bytes = sum(source_bytes(shard.path) for shard in todo)
    if todo:
        job.scorer.is_for_much = True
        mode = job.scorer.model.choose_mode(job.scorer.mode)
        for shard in todo:
            _filter(job, shard, settings, tally, lambda number: job.progress(number, num_bytes))
    about = {"mode": mode, "num_shards": len(mine), "num_shards_before": len(mine) - len(todo)}
    return {**about, "limits": list(job.limits), **tally.to_dict()}


def look(job: Job) -> dict[str, Any]:
    """Score a sample and write nothing: the first documents of shards that lie evenly among all."""
    shards, tally = find_shards(job.sources), Tally(PARTS[0])
    chosen = shards[:: math.ceil(len(shards) / MAX_SAMPLED_SHARDS)]
    for shard in chosen:
        num_left = math.ceil(NUM_SAMPLED / len(chosen))
        for block in _read(job, shard, tally):
            texts = block.texts[:num_left]
            tally.add(job.scorer.score(job.scorer.cut(texts)), np.zeros(len(texts), dtype=np.int64))
            num_left -= len(texts)
            if not num_left:
                break
    return {"mode": job.scorer.model.choose_mode(job.scorer.mode), **tally.to_dict()}


def _check_places(job: Job, shards: Sequence[Shard]) -> None:
    """Refuse outputs that would take the place of something else, or would be found as sources."""
    out = os.path.realpath(job.out)
    for source in (*filter(os.path.isdir, job.sources), *(shard.path for shard in shards)):
        place = os.path.realpath(source)
        if os.path.commonpath([out, place]) in (out, place):
            raise UserError(
                f"The output directory '{job.out}' is inside the source '{source}', or this in it: give another one."
            )
    outputs = (path for shard in shards for path in job.paths(shard).values())
    files.refuse_overwriting(outputs, [shard.path for shard in shards])


def _settings(job: Job, root: str) -> dict[str, Any]:
    """List what decides the outputs; under another directory of shards, other ones may have the same names."""
    scorer = job.scorer
    model = {"model": fingerprint(scorer.path), "mode": scorer.mode or "auto", "precision": scorer.precision}
    form = {"limits": list(job.limits), "rest": job.rest, "scores_only": job.scores_only}
    return {**model, "field": job.field, **form, "source_directory": root}


def _check_settings(job: Job, settings: dict[str, Any], *, keep: bool = False) -> None:
    """Refuse a directory that was made with other settings; `keep` those of the first command that makes something."""
    path = job.out / ".bnce" / "settings.json"
    with files.one_maker(path) if keep else contextlib.nullcontext():
        if keep and not path.exists():
            files.write_json(path, settings)
    found = files.read_object(path) if path.exists() else settings
    for name, value in settings.items():
        if found.get(name) != value:
            raise UserError(
                f"'{job.out}' was made with {name} {found.get(name)!s:.80}, and this command has {value!s:.80}: "
                "give the same settings to continue it, or another output directory."
            )


def _is_done(job: Job, shard: Shard) -> bool:
    return all(path.exists() and _time(path) == _time(shard.path) for path in job.paths(shard).values())


def _time(path: str | Path) -> int:
    """Tell when a file was changed, in seconds: not every file system keeps more of a time that it is given."""
    return int(os.stat(path).st_mtime)


def _filter(job: Job, shard: Shard, settings: dict[str, Any], tally: Tally, advance: Advance) -> None:
    """Filter one shard; its outputs appear when they are whole. One that cannot be read at all has none."""
    time, outputs = _time(shard.path), dict[int, Write]()
    with contextlib.ExitStack() as stack:
        for block in _read(job, shard, tally, advance):
            if not outputs and (block.texts or not block.problems):
                for number, path in job.paths(shard).items():
                    outputs[number] = stack.enter_context(_opened(shard, path, time, job.scores_only))
            if not block.texts:
                continue
            scores = job.scorer.score(job.scorer.cut(block.texts))
            # A document without words is like those of the highest perplexity.
            known_N = np.nan_to_num(scores.columns["perplexity"], nan=math.inf)
            part_N = np.searchsorted(np.array(job.limits), known_N, side="left")
            tally.add(scores, part_N)
            records = with_scores(block, scores, job.scores_only)
            for number, write in outputs.items():
                write(records, np.flatnonzero(part_N == number))
        if outputs:
            _check_settings(job, settings, keep=True)  # which another command may have made different meanwhile


@contextlib.contextmanager
def _opened(shard: Shard, path: Path, time: int, scores_only: bool) -> Iterator[Write]:
    """Open a part of a shard, which appears when it is whole, with the shard's time."""
    files.make_directory(path.parent)
    with files.atomic_file(path) as partial:
        with open_output(shard, partial, scores_only) as write:
            yield write
        os.utime(partial, (time, time))


def _read(job: Job, shard: Shard, tally: Tally, advance: Advance | None = None) -> Iterator[Block]:
    """Read a shard, and tell what cannot be read of it, or end the command."""
    for block in read_blocks(shard, job.field, () if job.scores_only else NAMES, advance):
        for problem in block.problems:
            if not job.skip:
                raise UserError(f"{problem} To continue without it, give {argument('errors', 'skip')}.")
            job.notice(problem)
        tally.totals["num_problems"] += len(block.problems)
        yield block
