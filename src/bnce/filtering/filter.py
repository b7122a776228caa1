"""`bnce filter`: shards of documents in, shards with perplexities out, continued where a run was broken off.

DIR/NAME                  a shard's documents with their scores, under its own name; or those that are kept
DIR/rest/NAME             those that are not, if they are asked for
DIR/head|middle|tail/NAME with CCNet's buckets
DIR/thresholds.json       limits that were fitted on a sample
DIR/.bnce/settings.json   what the directory is made with; DIR/.bnce/NAME.json: what was done with a shard, written last
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce import files
from bnce.corpus.sharing import check_shared, see_files
from bnce.errors import UserError, argument
from bnce.files import digest_record, read_object
from bnce.filtering.choice import Choice, Distribution, read_thresholds, write_thresholds
from bnce.filtering.engine import CHECKED_DOCUMENTS, Scoring, check_scoring, open_engine
from bnce.filtering.handover import ahead
from bnce.filtering.shard_work import REPORTS, Plan, filter_alone, filter_shards, read_pairs, sample, shorten
from bnce.filtering.shards import Shard, find_shards
from bnce.machine.threads import num_cores
from bnce.machine.workers import Processes, map_in_order
from bnce.scoring.loading import fingerprint, model_files
from bnce.text.sources import source_bytes

NUM_SAMPLED = 5000
THRESHOLDS_FILE = "thresholds.json"
SETTINGS_FILE = "settings.json"
ERRORS = ("stop", "skip")


@dataclass
class Progress:
    """What is done so far, for whoever shows it; sizes are those of files on disk."""

    show: Callable[[Progress], None] = lambda progress: None
    notice: Callable[[str], None] = lambda sentence: None
    total_bytes: int = 0
    num_bytes: int = 0
    num_documents: int = 0
    num_words: int = 0
    what: str = "filtering"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, num_bytes: int, num_documents: int, num_words: int) -> None:
        """Hear of what was done, by whichever thread."""
        with self._lock:
            self.num_bytes += num_bytes
            self.num_documents += num_documents
            self.num_words += num_words
        if num_documents:
            self.show(self)


@dataclass(frozen=True)
class Job:
    """All that a command asks for; `shard` is (I, N): every N-th shard from the I-th on."""

    sources: Sequence[str]
    scoring: Scoring
    plan: Plan
    thresholds: Path | None = None
    num_sampled: int = NUM_SAMPLED
    shard: tuple[int, int] = (1, 1)
    num_workers: int | None = None
    executor: Executor | None = None
    progress: Progress = field(default_factory=Progress)


@dataclass
class Summary:
    """What was done with all shards of a command, also by earlier ones."""

    reports: list[dict[str, Any]]
    choice: Choice
    check: dict[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Add up the reports."""
        distribution, parts = Distribution(), {name: [0, 0] for name in self.choice.parts}
        names = ("num_documents", "num_words", "num_tokens", "num_unknown", "num_empty", "num_problems")
        totals = dict.fromkeys(names, 0)
        log_prob = 0.0
        for report in self.reports:
            for name in names:
                totals[name] += report[name]
            log_prob += report["log_prob"]
            distribution.counts.update({int(place): n for place, n in report["distribution"].items()})
            for name, counted in report["parts"].items():
                parts[name] = [old + new for old, new in zip(parts[name], counted, strict=True)]
        num_tokens, num_words = totals["num_tokens"], totals["num_words"]
        return {
            "probabilities": next((report.get("probabilities") for report in self.reports), None),
            "num_shards": len(self.reports),
            **totals,
            "perplexity": float(np.exp(-log_prob / num_tokens)) if num_tokens else None,
            "unknown_rate": totals["num_unknown"] / num_words if num_words else None,
            "parts": {name: {"num_documents": count, "num_words": words} for name, (count, words) in parts.items()},
            "limits": list(self.choice.limits),
            "percentiles": list(self.choice.percentiles),
            "quantiles": distribution.quantiles(),
            "problems": [sentence for report in self.reports for sentence in report["problems"]][:100],
            **({} if self.check is None else {"precision_check": self.check}),
        }


def run(job: Job) -> Summary:
    """Filter all shards that are not done yet."""
    shards, plan = _open(job), job.plan
    (plan.out / REPORTS).mkdir(parents=True, exist_ok=True)
    model = _model(job.scoring)
    given = _settings(job, model)
    settings, scoring = digest_record(given), job.scoring
    with _kept_settings(plan.out, given), Processes(_num_workers(job)) as workers:
        choice, check = plan.choice, None
        if not choice.is_fitted or job.thresholds is not None:
            choice, check = _fit(job, shards, model)
        plan = replace(plan, choice=choice)
        mine = _mine(job, shards)
        reports = {shard: report for shard in mine if (report := _done(plan, shard, settings)) is not None}
        todo = [shard for shard in mine if shard not in reports]
        progress = job.progress
        progress.total_bytes = sum(source_bytes(shard.path) for shard in todo)
        progress.num_bytes = 0
        progress.what = "filtering"
        if job.executor is not None:
            reports |= _run_elsewhere(job, plan, settings, todo, job.executor)
        elif todo:
            engine = open_engine(scoring)
            pairs = read_pairs(todo, engine, workers, lambda num_bytes: progress.tell(num_bytes, 0, 0))
            # The workers end first: a thread that waits for a block would hold up whoever stops the command.
            with ahead(pairs) as read, workers:
                first = next(read)
                if check is None:
                    check = engine.check_precision(shorten(first[1], CHECKED_DOCUMENTS))
                blocks = itertools.chain([first], read)
                found = filter_shards(todo, blocks, engine, plan, settings, progress.tell, progress.notice)
                reports |= zip(todo, found, strict=True)
    return Summary([reports[shard] for shard in mine], choice, check)


def look(job: Job) -> tuple[Distribution, Choice, dict[str, float] | None]:
    """Score a sample and write nothing: how perplexities are distributed, and which limits would be fitted."""
    shards = _open(job, writes=False)
    choice = job.plan.choice
    if job.thresholds is not None:
        choice = read_thresholds(job.thresholds, _model(job.scoring))
    found, check = _sample(job, shards)
    if not choice.is_fitted:
        choice = choice.fit(found)
    return Distribution.of(found), choice, check


def _open(job: Job, writes: bool = True) -> list[Shard]:
    shards = find_shards(job.sources)
    job.plan.form.check(shards)
    check_scoring(job.scoring)
    first, number = job.shard
    if not 1 <= first <= number:
        raise UserError(f"{argument('shard')} is {first}/{number}: give I/N with I from 1 to N, such as 3/16.")
    if job.num_sampled < 1:
        raise UserError(f"{argument('sample')} is {job.num_sampled}: give 1 document or more.")
    if job.thresholds is not None and job.plan.choice != Choice():
        raise UserError(
            f"{argument('thresholds')} has limits already: leave out {argument('max_perplexity')}, {argument('keep')} "
            f"and {argument('buckets')}."
        )
    if not writes:
        return shards
    out = os.path.realpath(job.plan.out)
    for source in job.sources:
        # The same command would find its own outputs there.
        if os.path.isdir(source) and os.path.commonpath([os.path.realpath(source), out]) == os.path.realpath(source):
            raise UserError(
                f"The output directory '{job.plan.out}' is inside the source '{source}': give another output directory."
            )
    for shard in shards:
        if os.path.commonpath([out, os.path.realpath(shard.path)]) == out:
            raise UserError(
                f"The output directory '{job.plan.out}' contains the source shard '{shard.path}': give another "
                "output directory."
            )
    outputs = (path for shard in shards for path in job.plan.paths(shard) if path is not None)
    given = [] if job.thresholds is None else [job.thresholds]
    files.refuse_overwriting(outputs, [*(shard.path for shard in shards), *given, *model_files(job.scoring.model)])
    return shards


def _model(scoring: Scoring) -> dict[str, Any]:
    return {"model": fingerprint(scoring.model), **scoring.described()}


def _num_workers(job: Job) -> int:
    """Choose how many processes cut texts: a network on a CPU needs the cores itself, and a thread feeds it."""
    if job.num_workers is not None:
        if job.num_workers < 1:
            raise UserError(f"The number of workers is {job.num_workers}: it must be 1 or more.")
        return job.num_workers
    import torch

    from bnce.machine.devices import find_device

    if Path(job.scoring.model).is_file():
        return num_cores()
    return 1 if find_device(job.scoring.device) == torch.device("cpu") else max(2, num_cores() - 1)


def _settings(job: Job, model: dict[str, Any]) -> dict[str, Any]:
    plan, fields = job.plan, job.scoring.fields
    return {
        **model,
        "parts": list(plan.choice.parts),
        "percentiles": list(plan.choice.percentiles),
        "limits": list(plan.choice.limits),
        "thresholds": None if job.thresholds is None else read_thresholds(job.thresholds, model).limits,
        "field": fields.text,
        "id": fields.id,
        "to": plan.form.to,
        "names": list(plan.form.names),
        "scores_only": plan.form.scores_only,
        "rest": plan.rest,
    }


@contextlib.contextmanager
def _kept_settings(out: Path, given: dict[str, Any]) -> Iterator[None]:
    """Note what the output directory is made with, and refuse one that is made with something else.

    A command that ends before anything is written takes its note back: corrected settings need no new directory.
    """
    path = out / REPORTS / SETTINGS_FILE
    is_new = False
    with files.one_maker(path):
        if not path.exists():
            files.write_json(path, given)
            is_new = True
        found, given = read_object(path), json.loads(files.to_json(given))
    for name in given:
        if found.get(name) != given[name]:
            raise UserError(
                f"'{out}' was made with {name} {_shown(found.get(name))}, and this command has {_shown(given[name])}: "
                "give the same settings to continue it, or another output directory."
            )
    try:
        yield
    except BaseException:
        if is_new:
            with files.one_maker(path):
                if not (out / THRESHOLDS_FILE).exists() and list((out / REPORTS).rglob("*.json")) == [path]:
                    path.unlink()
        raise
    with files.one_maker(path):  # another job with these settings may have taken its note back meanwhile
        if not path.exists():
            files.write_json(path, given)


def _shown(value: Any) -> str:
    """Write a setting for a message, as options are written."""
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{text:.80}" if value not in (None, [], "") else "none"


def words_done(job: Job) -> int:
    """Count the words of the shards that are done already."""
    plan = job.plan
    if not (plan.out / REPORTS / SETTINGS_FILE).exists():
        return 0
    digest = digest_record(_settings(job, _model(job.scoring)))
    found = (_done(plan, shard, digest) for shard in _mine(job, _open(job)))
    return sum(report["num_words"] for report in found if report is not None)


def _mine(job: Job, shards: list[Shard]) -> list[Shard]:
    return shards[job.shard[0] - 1 :: job.shard[1]]


def _fit(job: Job, shards: list[Shard], model: dict[str, Any]) -> tuple[Choice, dict[str, float] | None]:
    """Fit limits on a sample of all shards, unless they are there already; of several processes one does it."""
    path = job.plan.out / THRESHOLDS_FILE
    if job.thresholds is not None:
        return read_thresholds(job.thresholds, model), None
    with files.one_maker(job.plan.out / REPORTS / THRESHOLDS_FILE):
        if path.exists():
            return read_thresholds(path, model), None
        found, check = _sample(job, shards)
        choice = job.plan.choice.fit(found)
        write_thresholds(path, choice, {**model, "num_documents": len(found)})
    return choice, check


def _sample(job: Job, shards: list[Shard]) -> tuple[NDArray[np.float64], dict[str, float] | None]:
    """Score a sample, and see what the precision does to it."""
    job.progress.what = "sampling"
    with Processes(_num_workers(job)) as workers:
        engine = open_engine(job.scoring)
        found, first = sample(shards, engine, job.num_sampled, workers, job.plan.skip)
        return found, None if first is None else engine.check_precision(shorten(first, CHECKED_DOCUMENTS))


def _done(plan: Plan, shard: Shard, settings: str) -> dict[str, Any] | None:
    """Read the report of a shard, if it is done: with these settings, and as the shard is now."""
    path = plan.report(shard)
    if not path.exists():
        return None
    report = read_object(path)
    if report.get("source") != shard.path and report.get("stamp") != shard.stamp:
        raise UserError(
            f"'{plan.form.name_of(shard)}' in '{plan.out}' was made from '{report.get('source')}', not from "
            f"'{shard.path}': give another output directory, or all shards in one command."
        )
    if report.get("settings") != settings or report.get("stamp") != shard.stamp:
        return None
    if not report["num_problems"] and not all(one is None or one.exists() for one in plan.paths(shard)):
        return None
    return report if plan.skip or not report["num_problems"] else None


def _run_elsewhere(
    job: Job, plan: Plan, settings: str, todo: list[Shard], executor: Executor
) -> dict[Shard, dict[str, Any]]:
    """Let the workers of a cluster filter shards, which they must see as this machine does."""
    check_shared(executor, (plan.out / REPORTS).absolute())
    model = Path(job.scoring.model)
    if todo and not see_files(
        executor, [*(shard.path for shard in todo), str(model if model.is_file() else model / "vocab.txt")]
    ):
        raise UserError(
            "A worker does not see the shards or the model as this machine does: put them into a directory that all "
            "workers share, under the same path."
        )
    plan = replace(plan, out=plan.out.absolute())
    work = functools.partial(filter_alone, scoring=job.scoring, plan=plan, settings=settings)
    reports = {}
    for shard, report in zip(todo, map_in_order(work, todo, executor), strict=True):
        reports[shard] = report
        for sentence in report["problems"]:
            job.progress.notice(sentence)
        job.progress.tell(source_bytes(shard.path), report["num_documents"], report["num_words"])
    return reports
