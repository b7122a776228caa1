"""`bnce filter`: shards of documents in, shards with perplexities out, continued where a command was broken off.

DIR/NAME                  a shard's documents with their scores, under its own name; or those that are kept
DIR/rest/NAME             those that are not, if they are asked for
DIR/head|middle|tail/NAME where there are two limits
DIR/.bnce/NAME.json       what was done with a shard and how, written last

A shard is done when its report is there and the outputs that this names. Outputs appear by renaming when all of them
are whole: where a command was killed in between, the shard is done again, and takes their place.
"""

from __future__ import annotations

import contextlib
import itertools
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
from bnce.data.shards import Block, Output, Shard, find_shards, read_blocks, read_texts, with_scores
from bnce.errors import UserError
from bnce.scoring.loading import fingerprint, model_files
from bnce.text.sources import named, source_bytes

NUM_SAMPLED, MAX_SAMPLED_SHARDS = 5000, 100
NUM_CHECKED = 200  # documents on which another precision is compared with float32
MAX_PROBLEMS = 100  # that are listed
MAX_EXACT = 100_000  # perplexities that are kept as they are, for exact percentiles
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
REPORTS = ".bnce"
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
    progress: Callable[[int, int], object] = lambda done, total: None  # bytes of shards
    notice: Callable[[str], object] = lambda sentence: None

    @property
    def added(self) -> tuple[str, ...]:
        """The fields that no record may have before."""
        return () if self.scores_only else NAMES

    def paths(self, shard: Shard) -> list[Path | None]:
        """Say where each part of a shard goes; None for nowhere."""
        if len(self.limits) == 2:
            return [self.out / part / shard.name for part in PARTS[2]]
        return [self.out / shard.name, *([self.out / "rest" / shard.name if self.rest else None] * len(self.limits))]

    def report(self, shard: Shard) -> Path:
        """Say where the report of a shard is."""
        return self.out / REPORTS / f"{shard.name}.json"


@dataclass
class Tally:
    """What is counted of documents; tallies add up."""

    totals: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)  # of perplexities, to three digits
    problems: list[str] = field(default_factory=list)
    exact: list[float] | None = field(default_factory=list)  # perplexities; None: too many, or of an earlier command

    @classmethod
    def of(cls, scores: Scores, part_N: NDArray[np.int64], parts: Sequence[str]) -> Tally:
        """Count some documents, each of which is in a part."""
        perplexity_N = scores.columns[NAMES[0]]
        known = perplexity_N[np.isfinite(perplexity_N)].tolist()
        totals = {name: int(getattr(scores, f"{name}_N").sum()) for name in ("num_words", "num_tokens", "num_unknown")}
        totals |= {"num_documents": len(part_N), "num_empty": int((scores.num_tokens_N == 0).sum())}
        for number, part in enumerate(parts):
            totals[f"{part}.num_documents"] = int((part_N == number).sum())
            totals[f"{part}.num_words"] = int(scores.num_words_N[part_N == number].sum())
        counted = Counter(totals)
        counted["log_prob"] = float(scores.log_prob_N.sum())  # type: ignore[assignment]
        return cls(counted, Counter(f"{value:.3g}" for value in known), [], known)

    def add(self, other: Tally) -> None:
        """Count what another has counted, too."""
        self.totals.update(other.totals)
        self.counts.update(other.counts)
        self.problems += other.problems[: MAX_PROBLEMS - len(self.problems)]
        both = None if self.exact is None or other.exact is None else [*self.exact, *other.exact]
        self.exact = both if both is None or len(both) <= MAX_EXACT else None

    def percentiles(self) -> dict[str, float]:
        """Give perplexities by percentile: exactly, or to three digits."""
        if not self.counts:
            return {}
        if self.exact is not None:
            values = np.percentile(self.exact, PERCENTILES).tolist()
        else:
            places = sorted(self.counts, key=float)
            sum_P = np.cumsum([self.counts[place] for place in places])
            values = [float(places[at]) for at in np.searchsorted(sum_P, np.array(PERCENTILES) / 100 * sum_P[-1])]
        return {str(one): float(f"{value:.{DIGITS}g}") for one, value in zip(PERCENTILES, values, strict=True)}

    def to_dict(self, parts: Sequence[str]) -> dict[str, Any]:
        """Give sums and what follows from them."""
        of, totals = ("num_documents", "num_words"), self.totals
        names = ("num_documents", "num_words", "num_tokens", "num_unknown", "num_empty", "num_problems")
        num_tokens, num_words = totals["num_tokens"], totals["num_words"]
        return {
            **{name: totals[name] for name in names},
            "perplexity": math.exp(-totals["log_prob"] / num_tokens) if num_tokens else None,
            "unknown_rate": totals["num_unknown"] / num_words if num_words else None,
            "parts": {part: {name: totals[f"{part}.{name}"] for name in of} for part in parts},
            "percentiles": self.percentiles(),
            "percentiles_are_exact": self.exact is not None,
            "problems": self.problems,
        }


def run(job: Job) -> dict[str, Any]:
    """Filter all shards that are not done yet; tell what was done with all shards of the command."""
    shards = find_shards(job.sources)
    _check_places(job, shards)
    settings = _check_settings(job)
    mine = shards[job.shard[0] - 1 :: job.shard[1]]
    done = {shard: report for shard in mine if (report := _read_report(job, shard, settings)) is not None}
    todo = [shard for shard in mine if shard not in done]
    tally, mode, check = Tally(), None, None
    for report in done.values():
        kept = {name: report[name] for name in ("totals", "counts", "problems")}
        tally.add(Tally(**kept, exact=None))
        mode = report["mode"]
    num_before, num_bytes = tally.totals["num_words"], 0
    num_all_bytes = sum(source_bytes(shard.path) for shard in todo)

    def advance(number: int) -> None:
        nonlocal num_bytes
        num_bytes += number
        job.progress(num_bytes, num_all_bytes)

    if todo:
        job.scorer.is_for_much = True
        mode, check = job.scorer.model.choose_mode(job.scorer.mode), _check_precision(job, todo)
        for shard in todo:
            tally.add(_filter(job, shard, settings, advance))
    about = {"mode": mode, "num_shards": len(mine), "limits": list(job.limits), "precision_check": check}
    return {**about, **tally.to_dict(PARTS[len(job.limits)]), "num_new_words": tally.totals["num_words"] - num_before}


def look(job: Job) -> dict[str, Any]:
    """Score a sample and write nothing: the first documents of shards that lie evenly among all."""
    shards, tally = find_shards(job.sources), Tally()
    for texts in _sample(job, shards, NUM_SAMPLED):
        scores = job.scorer.score(job.scorer.cut(texts))
        tally.add(Tally.of(scores, np.zeros(len(texts), dtype=np.int64), PARTS[0]))
    mode = job.scorer.model.choose_mode(job.scorer.mode)
    about = {"mode": mode, "precision_check": _check_precision(job, shards)}
    return {**about, **tally.to_dict(PARTS[0])}


def _check_places(job: Job, shards: Sequence[Shard]) -> None:
    """Refuse outputs that would take the place of something else, or would be found as sources."""
    out = os.path.realpath(job.out)
    hint = "give another output directory."
    for source in filter(os.path.isdir, job.sources):
        if os.path.commonpath([os.path.realpath(source), out]) == os.path.realpath(source):
            raise UserError(f"The output directory '{job.out}' is inside the source '{source}': {hint}")
    for shard in shards:
        if os.path.commonpath([out, os.path.realpath(shard.path)]) == out:
            raise UserError(f"The output directory '{job.out}' contains the source shard '{shard.path}': {hint}")
    outputs = (path for shard in shards for path in job.paths(shard) if path is not None)
    files.refuse_overwriting(outputs, [*(shard.path for shard in shards), *model_files(job.scorer.path)])


def _check_settings(job: Job) -> dict[str, Any]:
    """List what decides the outputs, and refuse a directory in which a shard was made with something else."""
    given: dict[str, Any] = {"model": fingerprint(job.scorer.path), "mode": job.scorer.mode or "auto"}
    given |= {"precision": job.scorer.precision, "field": job.field, "limits": list(job.limits)}
    given |= {"rest": job.rest, "scores_only": job.scores_only}
    report = next((job.out / REPORTS).rglob("*.json"), None)
    found = given if report is None else files.read_object(report)["settings"]
    for name, value in given.items():
        if found.get(name) != value:
            raise UserError(
                f"'{job.out}' was made with {name} {found.get(name)!s:.80}, and this command has {value!s:.80}: "
                "give the same settings to continue it, or another output directory."
            )
    return given


def _read_report(job: Job, shard: Shard, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Read the report of a shard that is done: with these settings, as the shard is now, and with its outputs."""
    if not job.report(shard).exists():
        return None
    report = files.read_object(job.report(shard))
    if report["source"] != shard.path and report["stamp"] != shard.stamp:
        raise UserError(
            f"'{shard.name}' in '{job.out}' was made from '{report['source']}', not from '{shard.path}': give another "
            "output directory, or all shards in one command."
        )
    is_same = report["settings"] == settings and report["stamp"] == shard.stamp
    is_there = all((job.out / name).exists() for name in report["outputs"])
    return report if is_same and is_there and (job.skip or not report["problems"]) else None


def _filter(job: Job, shard: Shard, settings: dict[str, Any], advance: Callable[[int], None]) -> Tally:
    """Filter one shard; its outputs appear when they are whole, and then its report."""
    stamp, tally, parts, outputs = shard.stamp, Tally(), PARTS[len(job.limits)], dict[int, Output]()
    with contextlib.ExitStack() as stack:
        for block in read_blocks(shard, job.field, job.added, advance):
            rows, texts, problems = read_texts(block, job.field, job.added)
            for sentence in _told(job, shard, block, problems):
                tally.add(Tally(Counter(num_problems=1), problems=[sentence]))
                job.notice(sentence)
            if block.first == 1 and block.damage is None:
                for number, path in enumerate(job.paths(shard)):
                    if path is not None:
                        outputs[number] = stack.enter_context(_opened(job, shard, path))
            scores = job.scorer.score(job.scorer.cut(texts))
            # A document without words is like those of the highest perplexity.
            known_N = np.nan_to_num(scores.columns[NAMES[0]], nan=math.inf)
            part_N = np.searchsorted(np.array(job.limits), known_N, side="left")
            tally.add(Tally.of(scores, part_N, parts))
            if rows:
                records = with_scores(block, rows, scores, job.scores_only)
                for number, output in outputs.items():
                    output.write(records, np.flatnonzero(part_N == number))
        _check_settings(job)  # which another command may have made different meanwhile
    mode = job.scorer.model.choose_mode(job.scorer.mode)
    names = [str(path.relative_to(job.out)) for path in job.paths(shard) if path is not None and outputs]
    about = {"source": shard.path, "stamp": stamp, "settings": settings, "mode": mode, "outputs": names}
    counted = {"totals": tally.totals, "counts": tally.counts, "problems": tally.problems}
    files.make_directory(job.report(shard).parent)
    files.write_json(job.report(shard), {**about, **counted}, indent=None)
    return tally


@contextlib.contextmanager
def _opened(job: Job, shard: Shard, path: Path) -> Iterator[Output]:
    """Open a part of a shard, which appears when it is whole."""
    files.make_directory(path.parent)
    with files.atomic_file(path) as partial, Output(shard, partial, job.scores_only) as output:
        yield output


def _told(job: Job, shard: Shard, block: Block, problems: Sequence[str]) -> list[str]:
    """Say what cannot be read in a block, or end the command."""
    told = [f"{named(shard.path)}, {'row' if shard.is_parquet else 'line'} {problem}" for problem in problems]
    told += [] if block.damage is None else [block.damage]
    if told and not job.skip:
        raise UserError(f"{told[0]} To continue without it, give --errors skip.")
    return told


def _sample(job: Job, shards: Sequence[Shard], number: int) -> Iterator[list[str]]:
    """Give the texts of the first documents of shards."""
    chosen = shards[:: max(1, math.ceil(len(shards) / MAX_SAMPLED_SHARDS))]
    for shard in chosen:
        quota = math.ceil(number / len(chosen))
        for block in read_blocks(shard, job.field, job.added):
            _, texts, problems = read_texts(block, job.field, job.added)
            _told(job, shard, block, problems)
            yield texts[:quota]
            quota -= len(texts)
            if quota <= 0:
                break


def _check_precision(job: Job, shards: Sequence[Shard]) -> dict[str, float] | None:
    """Compare perplexities with those in float32; None where these are the same."""
    scorer = job.scorer
    if scorer.precision == "float32":
        return None
    exact = DocumentScorer(scorer.path, mode=scorer.mode, device=scorer.device)
    texts = list(itertools.chain.from_iterable(_sample(job, shards[:1], NUM_CHECKED)))
    found, expected = (np.array(one(texts)[NAMES[0]], dtype=np.float64) for one in (scorer, exact))
    difference = np.abs(found / expected - 1)
    known = difference[np.isfinite(difference)]
    return {"num_documents": len(known), "mean": float(known.mean()), "max": float(known.max())} if len(known) else None
