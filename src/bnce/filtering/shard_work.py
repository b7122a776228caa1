"""Shards, from their files to the files of their parts: each gives the same bytes wherever and whenever it is filtered.

Three threads work side by side: one reads shards and has their blocks cut, one scores them, and one writes them. So
the next shard is read, and the last one finished, while the model computes.

Outputs appear under their names when all of them are whole. A report, written last, says that the shard is done.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bnce import files
from bnce.errors import UserError, argument
from bnce.filtering.choice import Choice, Distribution
from bnce.filtering.cutting import CutBlock, cut_block
from bnce.filtering.engine import Engine, Scoring, open_engine
from bnce.filtering.handover import Handover, ahead
from bnce.filtering.shards import JSON, Block, Shard, find_damage, read_all_blocks
from bnce.filtering.writing import Form, Output, Scores
from bnce.machine.workers import map_in_order
from bnce.text.sources import Advance, named

MAX_TOLD = 100  # problems that a report lists
MAX_UNWRITTEN = 32  # scored blocks: the model goes on while a disk syncs the files of the last shard
MAX_SAMPLED_SHARDS = 100
REPORTS = ".bnce"

# What has been done since it was last told: bytes of shards, documents, words.
Tell = Callable[[int, int, int], None]
Notice = Callable[[str], None]
Pairs = Iterator[tuple[Block, CutBlock]]
Scored = Handover[tuple[Block, CutBlock, Scores]]
Written = Future[dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """What is done with the records of all shards."""

    out: Path
    form: Form
    choice: Choice
    rest: bool = False  # whether documents that are not kept are written, too
    skip: bool = False  # whether records that cannot be read are left out

    def paths(self, shard: Shard) -> list[Path | None]:
        """Say where each part of a shard goes; None for nowhere."""
        name, parts = self.form.name_of(shard), self.choice.parts
        if len(parts) == 1:
            return [self.out / name]
        if len(parts) == 2:
            return [self.out / name, self.out / parts[1] / name if self.rest else None]
        return [self.out / part / name for part in parts]

    def report(self, shard: Shard) -> Path:
        """Say where the report of a shard is."""
        return self.out / REPORTS / f"{self.form.name_of(shard)}.json"


class Counts:
    """What is counted of a shard."""

    def __init__(self, choice: Choice) -> None:
        self.parts = {part: [0, 0] for part in choice.parts}
        self.num_documents = self.num_words = self.num_tokens = self.num_unknown = self.num_empty = 0
        self.num_problems = 0
        self.problems: list[str] = []
        self.log_prob = 0.0
        self.distribution = Distribution()

    def add(self, cut: CutBlock, scores: Scores, part_N: Any) -> None:
        """Count the documents of a block."""
        tokens_N = cut.num_words_N + cut.num_ends_N
        self.num_documents += len(cut.row_N)
        self.num_words += int(cut.num_words_N.sum())
        self.num_tokens += int(tokens_N.sum())
        self.num_unknown += int(cut.num_unknown_N.sum())
        self.num_empty += int(np.count_nonzero(tokens_N == 0))
        known = np.isfinite(scores.perplexity)
        self.log_prob -= float((np.log(scores.perplexity[known]) * tokens_N[known]).sum())
        self.distribution.counts.update(Distribution.of(scores.perplexity).counts)
        for number, name in enumerate(self.parts):
            self.parts[name][0] += int(np.count_nonzero(part_N == number))
            self.parts[name][1] += int(cut.num_words_N[part_N == number].sum())

    def to_dict(self) -> dict[str, Any]:
        """Give what a report has."""
        record = {name: value for name, value in vars(self).items() if name != "distribution"}
        return record | {"distribution": {str(place): count for place, count in self.distribution.counts.items()}}


def filter_alone(shard: Shard, scoring: Scoring, plan: Plan, settings: str) -> dict[str, Any]:
    """Filter a shard on whatever machine, where the model is opened, with nobody to help."""
    with _one_at_a_time:
        engine = open_engine(scoring)
        with ahead(read_pairs([shard], engine, 1)) as pairs:
            (report,) = filter_shards([shard], pairs, engine, plan, settings)
    return report


_one_at_a_time = threading.Lock()  # an engine serves one thread


def filter_shards(
    shards: Sequence[Shard],
    pairs: Pairs,
    engine: Engine,
    plan: Plan,
    settings: str,
    tell: Tell = lambda num_bytes, num_documents, num_words: None,
    notice: Notice = lambda sentence: None,
) -> Iterator[dict[str, Any]]:
    """Filter shards, whose blocks `pairs` gives; while one is scored, a thread writes the last. Give the reports."""

    in_work: deque[Scored] = deque(maxlen=2)

    def score(shard: Shard, before: Written | None) -> Written:
        counts, scored = Counts(plan.choice), Scored(MAX_UNWRITTEN)
        in_work.append(scored)
        written = writer.submit(_write, shard, scored, before, engine, plan, settings, counts, tell)

        def skipped(sentence: str) -> None:
            counts.num_problems += 1
            if len(counts.problems) < MAX_TOLD:
                counts.problems.append(sentence)
                notice(sentence)

        def emit(block: Block, cut: CutBlock, scores: Scores) -> None:
            if not scored.put((block, cut, scores)):
                written.result()  # it ended too early, and says why

        engine.score_blocks(_readable(pairs, shard, plan.skip, skipped), emit)
        scored.end()
        return written

    last: Written | None = None
    with ThreadPoolExecutor(1, "bnce-writing") as writer:
        try:
            for shard in shards:
                before, last = last, score(shard, last)
                if before is not None:
                    yield before.result()
            if last is not None:
                yield last.result()
        except BaseException as error:
            # The shard before one with an error is finished; whoever stops the command waits for nothing.
            for scored in [*in_work][-1:] if isinstance(error, Exception) else in_work:
                scored.close()
            raise


def _write(
    shard: Shard,
    scored: Scored,
    before: Written | None,
    engine: Engine,
    plan: Plan,
    settings: str,
    counts: Counts,
    tell: Tell,
) -> dict[str, Any]:
    """Write the blocks of a shard and then its report, which is given back."""
    begin = time.perf_counter()
    paths = plan.paths(shard)
    with contextlib.closing(scored):
        if before is not None:
            before.result()  # nothing is written after a shard that could not be
        for path in (*paths, plan.report(shard)):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            output = None
            if find_damage(shard, engine.scoring.fields) is None:  # else there is nothing to write
                partials = [None if path is None else stack.enter_context(files.atomic_file(path)) for path in paths]
                output = stack.enter_context(Output(shard, plan.form, partials))
            for block, cut, scores in scored:
                part_N = plan.choice.choose(scores.perplexity)
                if output is not None:
                    output.write(block, cut, scores, part_N)
                counts.add(cut, scores, part_N)
                tell(0, len(cut.row_N), int(cut.num_words_N.sum()))
    assert block.end is not None
    stamp = block.end.stamp
    report = {"name": shard.name, "source": shard.path, "stamp": stamp, "settings": settings, **counts.to_dict()}
    report["probabilities"] = engine.probabilities
    report["seconds"] = round(time.perf_counter() - begin, 3)
    files.write_json(plan.report(shard), report, indent=None)
    return report


def sample(
    shards: list[Shard], engine: Engine, num_documents: int, workers: Executor, skip: bool
) -> tuple[np.ndarray, CutBlock | None]:
    """Score the first documents of shards that lie evenly among all; give perplexities, and the first documents cut."""
    chosen = shards[:: max(1, math.ceil(len(shards) / MAX_SAMPLED_SHARDS))]
    quota = math.ceil(num_documents / len(chosen))
    found: list[np.ndarray] = []
    first: CutBlock | None = None

    def emit(block: Block, cut: CutBlock, scores: Scores) -> None:
        nonlocal first
        first = cut if first is None else first
        found.append(scores.perplexity)

    for shard in chosen:
        with ahead(_first(read_pairs([shard], engine, workers), shard, skip, quota), 1) as pairs:
            engine.score_blocks(pairs, emit)
    return np.concatenate([np.zeros(0), *found]), first


def read_pairs(
    shards: Sequence[Shard], engine: Engine, workers: int | Executor, advance: Advance | None = None
) -> Generator[tuple[Block, CutBlock]]:
    """Read the blocks of one shard after the other, and have them cut."""
    blocks, ahead_of_them = itertools.tee(read_all_blocks(shards, engine.scoring.fields, advance))
    cut_texts = functools.partial(cut_block, cutter=engine.cut)
    with contextlib.closing(map_in_order(cut_texts, (block.texts for block in ahead_of_them), workers)) as cuts:
        yield from zip(blocks, cuts, strict=True)


def _readable(pairs: Pairs, shard: Shard, skip: bool, skipped: Notice) -> Iterator[tuple[Block, CutBlock]]:
    """Pass on the blocks of one shard; what cannot be read in it ends the work, or is told and skipped."""
    where = f"{named(shard.path)}, {'line' if shard.form == JSON else 'row'}"
    for block, cut in pairs:
        problems = [f"{where} {one.number} {one.reason}" for one in (*block.problems, *cut.problems)]
        if block.end is not None and block.end.damage is not None:
            problems.append(block.end.damage)
        for sentence in problems:
            if not skip:
                raise UserError(f"{sentence} To continue without it, give {argument('errors', 'skip')}.")
            skipped(sentence)
        yield block, cut
        if block.end is not None:
            return


def _first(
    pairs: Generator[tuple[Block, CutBlock]], shard: Shard, skip: bool, quota: int
) -> Generator[tuple[Block, CutBlock]]:
    """Pass on so many documents."""
    with contextlib.closing(pairs):
        for block, cut in _readable(pairs, shard, skip, lambda sentence: None):
            yield block, shorten(cut, quota)
            quota -= len(cut.row_N)
            if quota <= 0:
                return


def shorten(cut: CutBlock, number: int) -> CutBlock:
    """Take the first documents of a block."""
    if len(cut.row_N) <= number:
        return cut
    arrays = {name: value[:number] for name, value in vars(cut).items() if name.endswith("_N")}
    ids = None if cut.ids is None else cut.ids[: int(arrays["length_N"].sum())]
    return replace(cut, **arrays, ids=ids)
