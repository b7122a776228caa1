"""The conditions under which a table's numbers hold, and which of its rows they keep from being compared."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bnce.report import numbers
from bnce.report.numbers import share
from bnce.report.row import Row
from bnce.report.runs import Run, printable

Value = TypeVar("Value", bound=Hashable)

_DIGEST_LENGTH = 8
# Settings that change no figure of a run, only how often it is looked at and saved.
_WITHOUT_EFFECT = ("evaluations_per_epoch", "checkpoint_seconds")


@dataclass(frozen=True)
class Conditions:
    """Every condition as the list of its different values: one where all runs agree."""

    corpora: tuple[str, ...]
    splits: tuple[str, ...]
    num_tokens: tuple[int, ...]
    oov_shares: tuple[float, ...]
    vocab_sizes: tuple[int, ...]
    devices: tuple[str, ...]
    torch_versions: tuple[str, ...]
    bnce_versions: tuple[str, ...]
    statements: tuple[str, ...]
    warnings: tuple[str, ...]


def find_differences(rows: Sequence[Row]) -> list[str]:
    """Say of each row why its perplexities cannot be compared with those of most rows, empty if they can."""
    digest = _most_common(row.vocabulary_digest for row in rows)
    split = _most_common(row.split for row in rows)
    num_tokens = _most_common(row.num_tokens for row in rows if row.split == split)
    # Ids mean the same words in one vocabulary alone.
    texts: dict[str | None, list[str | None]] = {row.vocabulary_digest: [] for row in rows}
    for row in rows:
        if row.split == split:
            texts[row.vocabulary_digest].append(row.text_sha256)
    differences = []
    for row in rows:
        found = []
        text = _most_common(texts[row.vocabulary_digest])
        if row.vocabulary_digest is not None and row.vocabulary_digest != digest:
            found.append(f"vocabulary {row.vocabulary_digest[:_DIGEST_LENGTH]}, not {str(digest)[:_DIGEST_LENGTH]}")
        if row.split != split:
            found.append(f"figures on {row.split}, not {split}")
        elif row.num_tokens is not None and row.num_tokens != num_tokens:
            found.append(f"{row.num_tokens:,} tokens of {split}, not {num_tokens:,}")
        elif row.text_sha256 is not None and row.text_sha256 != text:
            digests = f"SHA-256 {row.text_sha256[:_DIGEST_LENGTH]}, not {str(text)[:_DIGEST_LENGTH]}"
            found.append(f"another text of {split} ({digests})")
        differences.append("; ".join(found))
    return differences


def gather_conditions(rows: Sequence[Row], runs: Sequence[Run]) -> Conditions:
    """Collect what holds for the rows, and put it into the sentences that stand below every table."""
    conditions = Conditions(
        corpora=_different(row.corpus for row in rows),
        splits=_different(row.split for row in rows),
        num_tokens=_different(row.num_tokens for row in rows),
        oov_shares=_different(row.oov_share for row in rows),
        vocab_sizes=_different(row.vocab_size for row in rows),
        devices=_different(row.device for row in rows),
        torch_versions=_different(row.torch for row in rows),
        bnce_versions=_different(row.bnce for row in rows),
        statements=(),
        warnings=tuple(_warnings(rows)),
    )
    return dataclasses.replace(conditions, statements=tuple(_statements(conditions, rows, runs)))


def _statements(conditions: Conditions, rows: Sequence[Row], runs: Sequence[Run]) -> list[str]:
    corpus = _listed(conditions.corpora)
    splits = _listed(conditions.splits)
    num_tokens = _listed(f"{value:,}" for value in conditions.num_tokens)
    vocab_size = _listed(f"{value:,}" for value in conditions.vocab_sizes)
    oov = _listed(_different(f"{share(value)} of words" for value in conditions.oov_shares))
    statements = [
        f"Corpus: {corpus}, V = {vocab_size}. Trained on {_trained(rows)}. Measured on split {splits}, {num_tokens} "
        f"tokens; <unk> (OOV) {oov}.",
        f"Device: {_listed(conditions.devices)}; torch {_listed(conditions.torch_versions)}, "
        f"bnce {_listed(conditions.bnce_versions)}.",
        "Perplexities are per token, </s> and <unk> included. PPLn uses the constant Z, PPLf the full softmax. log Z "
        "is the natural logarithm, mean ± standard deviation over contexts.",
        "TS is training words per second over the whole run (marks and </s> count as words), without evaluations, "
        "checkpoints and start-up on a GPU. "
        "NoP is the number of parameters. × softmax is the speed relative to the softmax run of the same "
        "model.",
    ]
    if any(row.ppl_f_by_sentence is not None for row in rows):
        statements.append(
            "PPLn and PPLf are in context: a word is predicted from those before it across sentences. PPLf by sentence "
            "is measured without context from earlier sentences, as in rescoring. Do not compare one with the other."
        )

    if "valid" in conditions.splits:
        statements.append("(valid): not evaluated on test yet; the figures are the last ones on validation.")
    if settings := _differing_settings(rows, runs):
        statements.append(f"Rows differ in {'; '.join(settings)}.")
    statements += [f"† {row.label}: {row.difference}." for row in rows if row.difference]
    unfinished = [f"{row.label} ({row.status})" for row in rows if row.status not in (None, "finished")]
    if unfinished:
        statements.append(f"Not finished: {', '.join(unfinished)}.")
    for row, run in zip(rows, runs, strict=True):
        if run.origin:
            statements.append(
                f"{row.label} started from the run {run.origin}; the training of that run is not counted."
            )
        statements += [f"{row.label}: {warning}" for warning in run.warnings]
    return statements


def _trained(rows: Sequence[Row]) -> str:
    """Say on how many tokens the runs were trained, all epochs together."""
    tokens = _different(row.train_tokens for row in rows)
    if not tokens:
        return "a number of tokens that was not recorded"
    told, epochs = f"{_listed(f'{value:,}' for value in tokens)} tokens", _different(row.epochs for row in rows)
    return told if epochs in ((), (1,)) else f"{told} ({_listed(map(numbers.epochs, epochs))} epochs)"


def _differing_settings(rows: Sequence[Row], runs: Sequence[Run]) -> list[str]:
    """Name the settings of training in which rows differ, each value with its row, or how many rows have it."""
    found: dict[str, dict[str, list[str]]] = {}
    for row, run in zip(rows, runs, strict=True):
        for table in ("optimiser", "training"):
            for key, value in run.settings(table).items():
                if key not in _WITHOUT_EFFECT:
                    shown = printable(f"{value:g}" if isinstance(value, float) else str(value))
                    found.setdefault(printable(f"{table}.{key}"), {}).setdefault(shown, []).append(row.label)
    return [
        f"{name} ({', '.join(f'{value} for {_counted(labels)}' for value, labels in values.items())})"
        for name, values in found.items()
        if len(values) > 1
    ]


def _counted(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{len(labels)} rows"


def _warnings(rows: Sequence[Row]) -> list[str]:
    warnings = [
        f"{row.label} cannot be compared fairly with the other runs: {row.difference}."
        for row in rows
        if row.difference
    ]
    devices = _different(row.device for row in rows)
    if len(devices) > 1:
        warnings.append(f"Speeds from different devices cannot be compared: {', '.join(devices)}.")
    return warnings


def _most_common(values: Iterable[Value | None]) -> Value | None:
    """The value most rows have; the first one when several are equally common."""
    ranked = Counter(value for value in values if value is not None).most_common(1)
    return ranked[0][0] if ranked else None


def _different(values: Iterable[Value | None]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(value for value in values if value is not None))


def _listed(values: Iterable[str]) -> str:
    return " / ".join(values) or "not recorded"
