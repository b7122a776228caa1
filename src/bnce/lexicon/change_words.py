"""A run's words changed after training: some added, some dropped, unknown ones given shares; written as a new run.

At the level of single words probability is conserved. What is dropped goes to `<unk>`, under which its occurrences
will be read. What is added comes from `<unk>`, as which it was counted, down to a tenth of that; if it is more, the
rest comes from all words alike.

Legend: V vocabulary, A words added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnce import files
from bnce.corpus.vocabulary import MIN_SIZE, SPECIALS, UNK, Vocabulary
from bnce.errors import UserError
from bnce.kinds.losses import LOSSES
from bnce.lexicon.row_seeding import GIVEN_SIMILARITY, MIN_UNKNOWN, Neighbours, Rows, find_neighbours, seed_rows
from bnce.lexicon.word_list import NewWord
from bnce.reading import read_object
from bnce.runs.directory import LEXICON_FILE, RunDirectory
from bnce.runs.model_file import calibration_of, load_model, read_weights, save_weights
from bnce.runs.unknown_words import UNKNOWN_WORDS_FILE, UnknownWords
from bnce.spelling.model import SPELLING_FILE, SpellingModel

TABLES = ("embedding", "output.weight", "output.bias")  # in the order of `Rows`
KEPT_UNKNOWN = 0.1  # of the count of <unk>: texts to come have unknown words as well


@dataclass(frozen=True)
class Added:
    """A word that was added: the count it was given, and the words it was made from with their similarities."""

    word: str
    count: int
    neighbours: list[tuple[str, float]]


@dataclass(frozen=True)
class LexiconChange:
    """What became of a run's words."""

    added: list[Added]
    already_known: list[str]
    dropped: list[str]
    not_known: list[str]  # asked to be dropped, and not there
    unknown_words: UnknownWords | None
    num_words_before: int
    num_words_after: int
    has_spelling: bool  # whether the new run can spell unknown words

    def to_dict(self) -> dict[str, Any]:
        """Give what was done as JSON has it."""
        return {
            "num_words_before": self.num_words_before,
            "num_words_after": self.num_words_after,
            "added": [
                {
                    "word": added.word,
                    "count": added.count,
                    "neighbours": [{"word": word, "similarity": round(value, 4)} for word, value in added.neighbours],
                }
                for added in self.added
            ],
            "already_known": self.already_known,
            "dropped": self.dropped,
            "not_known": self.not_known,
            "num_unknown_words": 0 if self.unknown_words is None else len(self.unknown_words),
            "has_spelling": self.has_spelling,
        }


def change_words(
    run: RunDirectory,
    out: str | Path,
    *,
    add: Sequence[NewWord] = (),
    drop: Sequence[str] = (),
    unknown_words: UnknownWords | None = None,
    spelling: SpellingModel | None = None,
) -> LexiconChange:
    """Write a run with other words to `out`; `run` stays as it is.

    Ids of words that stay keep their order, and new words come last. Without `unknown_words` a list that is attached
    to `run` goes along; from either, words of the new vocabulary are left out, since they are no longer unknown. The
    same holds for the `spelling` model.
    """
    out = Path(out)
    files.refuse_existing(out)

    if both := {new.word for new in add} & set(drop):
        raise UserError(f"'{min(both)}' is on the list to add and on the list to drop: remove it from one of them.")
    tensors, metadata = read_weights(run)
    new_words = [new for new in add if new.word not in run.vocabulary]
    dropped = [word for word in drop if word in run.vocabulary]
    added, vocabulary, counts = change_tables(run, tensors, new_words, dropped)
    shared = unknown_words or UnknownWords.of_run(run.path)
    spelling = spelling or SpellingModel.of_run(run.path)
    change = LexiconChange(
        added=added,
        already_known=[new.word for new in add if new.word in run.vocabulary],
        dropped=dropped,
        not_known=[word for word in drop if word not in run.vocabulary],
        unknown_words=None if shared is None else _without(shared, vocabulary),
        num_words_before=len(run.vocabulary),
        num_words_after=len(vocabulary),
        has_spelling=spelling is not None,
    )
    with files.atomic_directory(out) as partial:
        made = RunDirectory(partial, run.config, vocabulary, run.normaliser, counts)
        if spelling is not None:
            spelling.leaving_out(vocabulary.words).write(partial / SPELLING_FILE)
        _write(run, made, tensors, metadata, change)
    return change


def change_tables(
    run: RunDirectory, tensors: dict[str, Tensor], new_words: Sequence[NewWord], dropped: Sequence[str]
) -> tuple[list[Added], Vocabulary, np.ndarray]:
    """Change the tables among a run's tensors: drop words it has and add some it has not; returns words and counts."""
    if LOSSES.find(run.config.loss.name).structure is not None:
        if new_words or dropped:
            raise UserError(
                f"'{run.path}' was trained with {run.config.loss.name}, which orders its words by their frequencies: "
                "words cannot be added or dropped after training. Train with another loss, or list words as unknown."
            )
        return [], run.vocabulary, run.target_counts
    counts_V = run.target_counts.astype(np.float64)
    added, rows, new_counts_A = _seed(run, new_words)
    kept_V = np.ones(len(run.vocabulary), dtype=bool)
    kept_V[run.vocabulary.encode(dropped)] = False
    if kept_V.sum() + len(added) < MIN_SIZE:
        raise UserError(f"Dropping {len(dropped)} words leaves only {' and '.join(SPECIALS)}: keep at least one.")
    _give_to_unknown(tensors, counts_V, ~kept_V)
    for place, name in enumerate(TABLES):
        kept = tensors[name][torch.from_numpy(kept_V)]
        tensors[name] = kept if rows is None else torch.cat([kept, rows[place]])
    counts_V = counts_V[kept_V]
    tensors["output.bias"] += _take_from_unknown(tensors["output.bias"], counts_V, float(new_counts_A.sum()))

    words = [word for word, kept in zip(run.vocabulary.words, kept_V, strict=True) if kept]
    vocabulary = Vocabulary([*words, *(new.word for new in new_words)])
    return added, vocabulary, np.concatenate([counts_V, new_counts_A]).round().astype(np.int64)


def _seed(run: RunDirectory, new_words: Sequence[NewWord]) -> tuple[list[Added], Rows | None, np.ndarray]:
    """Make the rows of new words out of the words that the run has, dropped ones too: they were trained as well."""
    if not new_words:
        return [], None, np.zeros(0)
    words = run.vocabulary.words
    counts_V = run.target_counts.astype(np.float64)
    seen = counts_V[len(SPECIALS) :][counts_V[len(SPECIALS) :] > 0]
    # A word that just missed the vocabulary occurs as often as its rarest one.
    rarest = int(seen.min()) if len(seen) else 1
    new_counts = [rarest if new.count is None else new.count for new in new_words]
    largest = max(range(len(new_words)), key=lambda place: new_counts[place])
    if new_counts[largest] > counts_V.sum():
        raise UserError(
            f"The count of '{new_words[largest].word}' is {new_counts[largest]}, but the training text has only "
            f"{int(counts_V.sum())} tokens: give counts for a text of that size."
        )
    found = iter(find_neighbours(words, [new.word for new in new_words if not new.neighbours]))
    neighbours = [_given(run, new) if new.neighbours else next(found) for new in new_words]
    added = [
        Added(new.word, count, list(zip(run.vocabulary.decode(near.ids), near.similarities, strict=True)))
        for new, count, near in zip(new_words, new_counts, neighbours, strict=True)
    ]
    new_counts_A = np.array(new_counts, dtype=np.float64)
    return added, seed_rows(load_model(run), counts_V, new_counts_A, neighbours), new_counts_A


def _given(run: RunDirectory, new: NewWord) -> Neighbours:
    for name in new.neighbours:
        if name not in run.vocabulary or name in SPECIALS:
            raise UserError(
                f"The similar word '{name}' of '{new.word}' is not a word of the run: give words that it knows."
            )
    ids = [int(number) for number in run.vocabulary.encode(new.neighbours)]
    return Neighbours(ids, [GIVEN_SIMILARITY] * len(ids))


def _give_to_unknown(tensors: dict[str, Tensor], counts_V: np.ndarray, dropped_V: np.ndarray) -> None:
    """Add to `<unk>` what is dropped; one that was never trained takes the mean row of the words it now stands for."""
    total = counts_V[dropped_V].sum()
    if not total:
        return
    bias_V = tensors["output.bias"]
    if counts_V[UNK] >= MIN_UNKNOWN:
        bias_V[UNK] += math.log1p(total / counts_V[UNK])
    else:
        share = torch.from_numpy(counts_V[dropped_V] / total).float()
        dropped = torch.from_numpy(np.flatnonzero(dropped_V))
        for name in TABLES[:2]:
            tensors[name][UNK] = share @ tensors[name][dropped]
        log_count = torch.from_numpy(np.log(np.maximum(counts_V[dropped_V], 1.0))).float()
        bias_V[UNK] = float(share @ (bias_V[dropped] - log_count)) + math.log(total + counts_V[UNK])
    counts_V[UNK] += total


def _take_from_unknown(bias_V: Tensor, counts_V: np.ndarray, wanted: float) -> float:
    """Take a count for new words from `<unk>`; return what is to be added to all biases for what it could not give."""
    has = float(counts_V[UNK])
    given = min(wanted, (1 - KEPT_UNKNOWN) * has)
    if given:
        bias_V[UNK] += math.log1p(-given / has)
        counts_V[UNK] -= given
    total = float(counts_V.sum()) + given
    return math.log(total / (total + wanted - given)) if total else 0.0


def _without(shared: UnknownWords, vocabulary: Vocabulary) -> UnknownWords:
    weights = {word: weight for word, weight in shared.weights.items() if word not in vocabulary}
    if not weights and not shared.rest:
        raise UserError("All words of the list of unknown words are known: give words that are not in the vocabulary.")
    return UnknownWords(weights, shared.rest, shared.num_rest)


def _write(
    run: RunDirectory,
    made: RunDirectory,
    tensors: dict[str, Tensor],
    metadata: Mapping[str, str],
    change: LexiconChange,
) -> None:
    """Lay out the new run, without the figures of the old one's words."""
    tables = sum(tensors[name].numel() for name in TABLES)
    summary, before = _read_object(run.path / "summary.json"), _read_object(run.path / LEXICON_FILE)
    counted = summary.get("num_parameters"), summary.get("num_table_parameters", 0)
    if all(isinstance(number, int) for number in counted):
        body = counted[0] - counted[1]
        summary |= {"num_parameters": body + tables, "num_table_parameters": tables}
    summary |= {"vocab_size": len(made.vocabulary), "vocabulary_digest": made.vocabulary.digest}
    done = {"run": str(run.path), "num_added": len(change.added), "num_dropped": len(change.dropped)}
    changes = before.get("changes", [])
    if not isinstance(changes, list):
        raise UserError(f"'{run.path / LEXICON_FILE}' is damaged (its changes are not a list): restore the file.")
    made.write_description()
    if change.unknown_words is not None:
        change.unknown_words.write(made.path / UNKNOWN_WORDS_FILE)
    # After the files whose digests the model file holds.
    save_weights(made, tensors, int(metadata.get("step", 0)), calibration_of(metadata))
    made.write_json("summary.json", summary)
    made.write_json(LEXICON_FILE, {"changes": [*changes, done]})


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_object(path)
    except ValueError as error:
        raise UserError(f"'{path}' is damaged ({error}): restore the file.") from error
