"""Counts in bounded memory: the same whether they stay in it or go through the disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnce.corpus import tally as tally_module
from bnce.corpus.tally import Tally

WORDS = st.text(st.sampled_from("abé中𝔸"), min_size=1, max_size=3)


def add(tally: Tally, counts: dict[str, int]) -> None:
    tally.add(pyarrow.array(list(counts), pyarrow.string()), np.array(list(counts.values()), dtype=np.int64))


def test_frequent_words_first_and_ties_by_spelling(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    add(tally, {"b": 1, "the": 4, "rare": 1})
    add(tally, {"the": 5, "b": 1, "a": 2, "elsewhere": 0})
    assert tally.most_frequent() == (["the", "a", "b", "rare"], 4)
    assert tally.most_frequent(limit=2) == (["the", "a"], 4)
    assert tally.most_frequent(min_count=2) == (["the", "a", "b"], 4)
    assert tally.most_frequent(limit=0) == ([], 4)
    assert tally.most_frequent(limit=100).words == tally.most_frequent().words


def test_no_words(tmp_path: Path) -> None:
    assert Tally(tmp_path).most_frequent() == ([], 0)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    blocks=st.lists(st.dictionaries(WORDS, st.integers(1, 5)), min_size=1, max_size=8),
    max_bytes=st.sampled_from([0, 40, 2**20]),
    limit=st.sampled_from([None, 1, 3]),
    min_count=st.sampled_from([1, 3]),
)
def test_counts_add_up(
    tmp_path: Path, blocks: list[dict[str, int]], max_bytes: int, limit: int | None, min_count: int
) -> None:
    expected: Counter[str] = Counter()
    tally = Tally(tmp_path, max_bytes)
    for block in blocks:
        add(tally, block)
        expected.update(block)
    kept = sorted((word for word in expected if expected[word] >= min_count), key=lambda word: (-expected[word], word))
    assert tally.most_frequent(limit, min_count) == (kept[:limit], len(expected))


def test_memory_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to disk, are read in small batches, and no more than a few words are ever held."""
    monkeypatch.setattr(tally_module, "_BATCH_ROWS", 16)
    tally = Tally(tmp_path, max_bytes=2000)
    expected: Counter[str] = Counter()
    generator = np.random.default_rng(1)
    largest = 0
    for _ in range(200):
        block = Counter(f"w{number}" for number in generator.zipf(1.3, size=50) % 3000)
        add(tally, block)
        expected.update(block)
        largest = max(largest, sum(table.nbytes for table in tally._waiting))
    assert len(list(tmp_path.glob("*.counts"))) > 3
    assert largest < 3 * 2000 + 2000
    whole = Tally(tmp_path / "never used")
    for word, count in expected.items():
        add(whole, {word: count})
    assert tally.most_frequent(40, 2) == whole.most_frequent(40, 2)
    assert tally.most_frequent() == whole.most_frequent()
    rows = [table.num_rows for table in tally._merged()]
    assert sum(rows) == len(expected)
    assert max(rows) <= 16 * len(tally._runs)
