"""Words added to a trained run, as a new run: they share the probability of `<unk>`, which they were in training.

A new word has the rows of `<unk>`, and its bias gives it the share of `<unk>` that its count asks for. So in every
context the new words and `<unk>` have together what `<unk>` had, and the sum over the vocabulary stays what it was,
with the softmax and with the constant Z. `<unk>` keeps at least a tenth, whatever the counts ask for.

Legend: V vocabulary, A words added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnce import files
from bnce.corpus.spelling import SPELLING_FILE, SpellingModel
from bnce.corpus.vocabulary import SPECIALS, UNK, Vocabulary
from bnce.errors import UserError
from bnce.runs.directory import Run, read_summary
from bnce.runs.model_file import calibration_of, read_weights, save_weights
from bnce.text.sources import read_lines

TABLES = ("embedding", "output.weight", "output.bias")
KEPT_UNKNOWN = 0.1  # of <unk>: texts to come have unknown words as well


def add_words(run: Run, out: str | Path, wanted: Mapping[str, int]) -> dict[str, Any]:
    """Write a run with more words to `out`, and say what was done; `run` stays as it is.

    `wanted` says how often each word occurs in a text of the training text's size.
    """
    out = Path(out)
    files.refuse_existing(out)
    if run.config.loss.structure:
        raise UserError(
            f"'{run.path}' was trained with {run.config.loss.name}, which orders its words by their frequencies: words "
            "cannot be added after training. Train with another loss."
        )
    new = {word: count for word, count in wanted.items() if word not in run.vocabulary}
    vocabulary, spelling = Vocabulary([*run.vocabulary.words, *new]), SpellingModel.of_run(run.path)
    tensors, metadata = read_weights(run)
    count_A = np.array(list(new.values()), dtype=np.float64)
    counts = np.append(run.target_counts, count_A)
    counts[UNK] = spread_rows(tensors, run, vocabulary, count_A)
    summary = {
        **read_summary(run.path),
        "vocab_size": len(vocabulary),
        "vocabulary_digest": vocabulary.digest,
        "words_added": {"run": str(run.path), "num_added": len(new)},
    }
    for key in ("num_parameters", "num_table_parameters"):
        if isinstance(summary.get(key), int):
            summary[key] += len(new) * sum(tensors[name][UNK].numel() for name in TABLES)
    with files.atomic_directory(out) as partial:
        if spelling is not None:
            spelling.leaving_out(vocabulary.words).write(partial / SPELLING_FILE)
        counts = counts.round().astype(np.int64)
        made = Run.lay_out(partial, run.config, vocabulary, run.normaliser, counts, texts={})
        save_weights(made, tensors, int(metadata.get("step", 0)), calibration_of(metadata))
        files.write_json(made.path / "summary.json", summary)  # without the figures of the old run's words
    return {
        "num_words_before": len(run.vocabulary),
        "num_words_after": len(vocabulary),
        "added": [{"word": word, "count": count} for word, count in new.items()],
        "already_known": [word for word in wanted if word in run.vocabulary],
        "has_spelling": spelling is not None,
    }


def spread_rows(tensors: dict[str, Tensor], run: Run, words: Vocabulary, count_A: NDArray[np.float64]) -> float:
    """Give other words the rows of a run's tables, in place; returns how often `<unk>` is a target then.

    Words that are lost go to `<unk>`, and new ones, in their order as frequent as `count_A` says, take from it.
    """
    row_V, counts = run.vocabulary.encode(words.words), run.target_counts
    unknown = float(counts[UNK])
    lost = float(counts.sum() - counts[row_V[row_V != UNK]].sum()) - unknown
    share_A = count_A / max(unknown + lost, float(count_A.sum()) / (1 - KEPT_UNKNOWN))
    left = 1 - float(share_A.sum())
    tensors["output.bias"][UNK] += math.log1p(lost / max(1.0, unknown))  # as frequent as all that it stands for
    for name in TABLES:
        tensors[name] = tensors[name][torch.from_numpy(row_V)]
    new_A, bias_V = np.flatnonzero(row_V == UNK)[1:], tensors["output.bias"]  # the first is `<unk>` itself
    bias_V[new_A] += torch.from_numpy(np.log(share_A)).float()
    bias_V[UNK] += math.log(left)
    return left * (unknown + lost)


def read_new_words(path: str, run: Run) -> dict[str, int]:
    """Read words to add and their counts: WORD, or WORD TAB COUNT; without a count a word is as rare as the rarest."""
    most = int(run.target_counts.sum())
    rarest = int(min((count for count in run.target_counts[len(SPECIALS) :] if count), default=1))
    found: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        word, _, count = (part.strip() for part in line.partition("\t"))
        if run.normaliser(word) != [[word]]:
            # No text that is read as the training text was could ever have it.
            read_as = " ".join(part for sentence in run.normaliser(word) for part in sentence)
            raise UserError(
                f"'{path}' has '{word}' on line {number}, but this run reads it as '{read_as}': write words as the run "
                "reads them, one per line."
            )
        if word in found:
            raise UserError(f"'{path}' has '{word}' on line {number} for the second time: remove one of them.")
        if count and not (count.isdecimal() and len(count) <= len(str(most)) and 1 <= int(count) <= most):
            raise UserError(
                f"'{path}' has the count {count[:40]!r} on line {number}: give how often '{word}' occurs in a text of "
                f"the training text's size, from 1 to {most}, or leave it out."
            )
        found[word] = int(count or rarest)
    return found
