"""Scores that a language model gave before, in a file: what was scored once is not scored again.

An SQLite file, because it takes more scores at any time and a stopped command leaves it whole. A score belongs to the
model's fingerprint, how it was asked (version, mode, normaliser), and the hypothesis.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bnce.errors import UserError
from bnce.reading import digest_record
from bnce.text.normalise import Normaliser
from bnce.version import __version__

Scored = tuple[float, int]  # ln p of the whole hypothesis, and how many of its words are OOV

_TABLE = """
CREATE TABLE IF NOT EXISTS scores (
    model TEXT NOT NULL, text TEXT NOT NULL, ln_prob REAL NOT NULL, num_oov INTEGER NOT NULL, PRIMARY KEY (model, text)
) WITHOUT ROWID
"""
_PART = 500  # texts that are asked for together: SQLite takes at most 999 values


def describe(fingerprint: str, mode: str, normaliser: Normaliser) -> str:
    """Describe a model and how it is asked, as the key of its scores."""
    # Kinds of normalisers with the same settings read a text differently.
    how = {"kind": type(normaliser).__name__, **normaliser.to_dict()}
    asked = {"model": fingerprint, "mode": mode, "normaliser": how, "bnce": __version__}
    return digest_record(asked)


class ScoreCache:
    """The scores of one model in a file that may have those of others, too."""

    def __init__(self, path: str | Path, model: str) -> None:
        self.path, self.model = Path(path), model
        self.num_found = 0  # hypotheses that were found here, as whoever asked counts them
        with self._told():
            self._file = sqlite3.connect(self.path)
            self._file.execute(_TABLE)
            self._file.commit()

    def find(self, texts: Iterable[str]) -> dict[str, Scored]:
        """Give the scores of those texts that have some."""
        asked = list(dict.fromkeys(texts))
        found: dict[str, Scored] = {}
        with self._told():
            for begin in range(0, len(asked), _PART):
                part = asked[begin : begin + _PART]
                places = ",".join("?" * len(part))
                rows = self._file.execute(
                    f"SELECT text, ln_prob, num_oov FROM scores WHERE model = ? AND text IN ({places})",
                    [self.model, *part],
                )
                for text, ln_prob, num_oov in rows:
                    if not isinstance(ln_prob, float) or not isinstance(num_oov, int):
                        raise sqlite3.DatabaseError("a score is not a number")
                    found[text] = ln_prob, num_oov
        return found

    def add(self, scores: Mapping[str, Scored]) -> None:
        """Keep scores."""
        rows = [(self.model, text, *one) for text, one in scores.items()]
        with self._told(), self._file:
            self._file.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?)", rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> ScoreCache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise UserError(
                f"'{self.path}' cannot be used as a file of scores ({error}): give another file, or delete it so that "
                "a new one is made."
            ) from error
