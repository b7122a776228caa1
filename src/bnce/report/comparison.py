"""Runs side by side: one row of raw numbers per run, in the paper's order, and what sets rows apart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnce.errors import UserError
from bnce.machine.threads import tell_place
from bnce.registry import BASELINE
from bnce.report.conditions import Conditions, find_differences, gather_conditions
from bnce.report.names import LossName, ModelName, name_loss, name_model
from bnce.report.quality import Point, seconds_to_reach, target_perplexity
from bnce.report.row import Row
from bnce.report.runs import Run, count, curve, number, printable, read_runs, text

_ARCHITECTURE = ("name", "order", "embedding_size", "hidden_size", "bottleneck_size", "num_layers", "context")
_STEP = ("batch_size", "num_steps", "precision")


@dataclass(frozen=True)
class Entry:
    """One run in the comparison: its row, its names and the files behind them."""

    row: Row
    model: ModelName
    loss: LossName
    run: Run


@dataclass(frozen=True)
class Comparison:
    """Everything a table or a page of the report is made from."""

    title: str
    entries: tuple[Entry, ...]
    conditions: Conditions

    @property
    def rows(self) -> list[Row]:
        """The rows in the table's order."""
        return [entry.row for entry in self.entries]

    def as_record(self) -> dict[str, Any]:
        """Raw numbers for JSON; every condition is a list, with one value where all runs agree."""
        return {
            "title": self.title,
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "conditions": {key: list(value) for key, value in dataclasses.asdict(self.conditions).items()},
        }


def compare_runs(paths: Iterable[str | Path]) -> Comparison:
    """Read run directories and put them in the order of the paper's tables."""
    entries = [_make_entry(run) for run in read_runs(paths)]
    entries.sort(key=lambda entry: (entry.model.order, entry.loss.order))
    labels = _distinct_labels(entries)
    targets = _softmax_qualities(entries)
    rows = [
        _with_quality(
            dataclasses.replace(entry.row, label=label, speedup_over_softmax=speedup),
            curve(entry.run, "seconds", "ppl_f"),
            targets.get(_quality_setting(entry)),
        )
        for entry, label, speedup in zip(entries, labels, _speedups_over_softmax(entries), strict=True)
    ]
    differences = find_differences(rows)
    rows = [
        dataclasses.replace(row, comparable=not found, difference=found or None)
        for row, found in zip(rows, differences, strict=True)
    ]
    entries = [dataclasses.replace(entry, row=row) for entry, row in zip(entries, rows, strict=True)]
    conditions = gather_conditions(rows, [entry.run for entry in entries])
    corpora = conditions.corpora
    title = f"Language models on {corpora[0]}" if len(corpora) == 1 else "Language models compared"
    return Comparison(printable(title), tuple(entries), conditions)


def _make_entry(run: Run) -> Entry:
    try:
        model, loss = name_model(run.settings("model")), name_loss(run.settings("loss"))
    except UserError as error:
        raise UserError(f"The run '{run.path}' cannot be compared. {error}") from error
    last = run.metrics[-1] if run.metrics else {}
    figures = last if run.evaluation is None else run.evaluation
    summary = run.summary
    # A running one's was written before its first step, and if the run was killed, so it stays.
    ended: Mapping[str, Any] = {} if text(summary, "status") == "running" else summary
    num_tokens = None if run.evaluation is None else count(run.evaluation, "num_tokens")
    peaks = [peak for record in run.metrics if (peak := count(record, "peak_memory_bytes")) is not None]
    corpus, device = text(run.config, "corpus"), text(summary, "device")
    sentences = figures.get("by_sentence")
    if not isinstance(sentences, Mapping):  # they were left out
        sentences = {}

    def reached(in_summary: str, in_metrics: str) -> float | None:
        """How far the run was when its perplexities were measured: at the last evaluation, or at its end."""
        sources = [number(ended, in_summary), number(last, in_metrics)]
        return _first(*(reversed(sources) if run.evaluation is None else sources))

    train_tokens = reached("tokens", "tokens")
    row = Row(
        label=f"{model.shown} ({loss.shown})",
        run=run.name,
        model=str(run.settings("model")["name"]),
        loss=str(run.settings("loss")["name"]),
        num_noise=loss.num_noise,
        ppl_n=number(figures, "ppl_n"),
        ppl_f=number(figures, "ppl_f"),
        ppl_f_no_unk=number(figures, "ppl_f_no_unk"),
        ppl_n_by_sentence=number(sentences, "ppl_n"),
        ppl_f_by_sentence=number(sentences, "ppl_f"),
        bits_per_byte=number(figures, "bits_per_byte"),
        # A run that is still going has not summed up its speed yet.
        words_per_second=_first(number(ended, "words_per_second"), number(last, "words_per_second")),
        num_parameters=count(summary, "num_parameters"),
        log_z_mean_nats=number(figures, "log_z_mean"),
        log_z_std_nats=number(figures, "log_z_std"),
        log_z_constant_nats=_first(number(figures, "log_z"), number(run.settings("loss"), "log_z")),
        epochs=reached("epochs", "epoch"),
        train_seconds=reached("train_seconds", "seconds"),
        train_tokens=None if train_tokens is None else int(train_tokens),
        peak_memory_bytes=max(peaks, default=None),
        corpus=Path(corpus).name if corpus else None,
        split="valid" if run.evaluation is None else text(run.evaluation, "split") or "test",
        num_tokens=num_tokens,
        oov_share=_oov_share(run.evaluation or {}),
        text_sha256=text(summary, "valid_text_sha256") if run.evaluation is None else text(figures, "text_sha256"),
        vocab_size=count(summary, "vocab_size"),
        vocabulary_digest=text(summary, "vocabulary_digest"),
        device=None if device is None else tell_place(device, count(summary, "processes") or 1),
        torch=text(summary, "torch"),
        bnce=text(summary, "bnce"),
        commit=text(summary, "commit"),
        seed=count(summary, "seed"),
        command=text(summary, "command"),
        status=text(summary, "status"),
    )
    return Entry(row, model, loss, run)


def _oov_share(evaluation: Mapping[str, Any]) -> float | None:
    """Divide the unknown words by all words, sentence ends left out."""
    found = (count(evaluation, key) for key in ("num_oov", "num_tokens", "num_sentences"))
    num_oov, num_tokens, num_sentences = found
    if num_oov is None or num_tokens is None or num_sentences is None:
        return None
    return num_oov / max(1, num_tokens - num_sentences)


def _first(preferred: float | None, otherwise: float | None) -> float | None:
    return otherwise if preferred is None else preferred


def _distinct_labels(entries: Sequence[Entry]) -> list[str]:
    """Tell equal labels apart by directory name, and directories of equal name by the path that was given."""
    plain = [entry.row.label for entry in entries]
    named = [f"{entry.row.label}, {entry.row.run}" for entry in entries]
    full = [f"{entry.row.label}, {printable(str(entry.run.path))}" for entry in entries]
    labels = []
    for choices in zip(plain, named, full, strict=True):
        taken = next((i for i, all_labels in enumerate((plain, named)) if all_labels.count(choices[i]) == 1), 2)
        labels.append(choices[taken])
    return labels


def _speedups_over_softmax(entries: Sequence[Entry]) -> list[float | None]:
    """Divide each speed by that of the fastest softmax run of the same model and step on the same device."""
    softmax: dict[tuple[object, ...], float] = {}
    for entry in entries:
        speed = entry.row.words_per_second
        if entry.row.loss == BASELINE and speed:
            softmax[_step_setting(entry)] = max(speed, softmax.get(_step_setting(entry), 0.0))
    return [
        speed / softmax[_step_setting(entry)]
        if (speed := entry.row.words_per_second) is not None and _step_setting(entry) in softmax
        else None
        for entry in entries
    ]


def _softmax_qualities(entries: Sequence[Entry]) -> dict[tuple[object, ...], float]:
    """Find the validation PPLf to reach for every setting that has a finished softmax run: the best, and 5%."""
    targets: dict[tuple[object, ...], float] = {}
    for entry in entries:
        target = target_perplexity(curve(entry.run, "seconds", "ppl_f"))
        # One that is still on its way is easy to be as good as.
        if entry.row.loss == BASELINE and entry.row.status == "finished" and target is not None:
            targets[_quality_setting(entry)] = min(target, targets.get(_quality_setting(entry), math.inf))
    return targets


def _with_quality(row: Row, points: Sequence[Point], target: float | None) -> Row:
    """Say when a run with this validation curve was at the target, if it has both."""
    if target is None or not points:
        return row
    return dataclasses.replace(
        row,
        softmax_quality_ppl_f=target,
        seconds_to_softmax_quality=seconds_to_reach(points, target),
        reached_at_first_evaluation=points[0][1] <= target,
    )


def _step_setting(entry: Entry) -> tuple[object, ...]:
    """Name what runs must share for the speeds of their losses to be compared."""
    model, training = entry.run.settings("model"), entry.run.settings("training")
    sizes = [*(model.get(key) or 0 for key in _ARCHITECTURE), *(training.get(key) for key in _STEP)]
    return (*map(str, sizes), entry.row.vocab_size, entry.row.device)


def _quality_setting(entry: Entry) -> tuple[object, ...]:
    """Name what runs must share for their validation perplexities over time to be compared, too: the text they are on.

    How much of the training text a run saw, and how often, is its own way to that quality.
    """
    row, max_valid_tokens = entry.row, str(entry.run.settings("training").get("max_valid_tokens"))
    return (*_step_setting(entry), row.corpus, row.vocabulary_digest, max_valid_tokens)
