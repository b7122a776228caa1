"""`bnce.surprisal`: words in memory, and a result of the same kind."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bnce

from .models import add_surprisal, make_model
from .test_measure import Row, measured

MODEL = make_model()
surprisal = functools.partial(bnce.surprisal, mode="normalised")
WORDS = ["England,", None, "zebra", "a.", "b"]
STORIES = [1, 1, 1, 2, 2]
EXPECTED = measured(MODEL, [Row(word or "", story) for word, story in zip(WORDS, STORIES, strict=True)])


class Frame:
    """What pandas' DataFrame has, as far as it is used here; pandas itself is not always installed."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.values, self.iloc, self.columns = columns, None, list(columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array(self.values[name], dtype=object)

    def assign(self, **columns: Any) -> Frame:
        return Frame({**self.values, **columns})


def check(found: Any) -> None:
    for name, values in EXPECTED.items():
        np.testing.assert_allclose(np.array(found[name], dtype=float), values, rtol=1e-6)


def test_lists_and_numpy_arrays() -> None:
    found = surprisal(MODEL, WORDS, text=STORIES)
    assert list(found) == list(EXPECTED)
    check(found)
    assert (found["is_unknown"].dtype, found["num_tokens"].dtype) == (np.bool_, np.int64)
    check(surprisal(MODEL, np.array([word or "" for word in WORDS]), text=np.array(STORIES)))
    check(surprisal(MODEL, [word or math.nan for word in WORDS], text=STORIES))
    empty = surprisal(MODEL, [])
    assert {name: len(values) for name, values in empty.items()} == dict.fromkeys(EXPECTED, 0)


def test_pandas_by_what_it_can_do() -> None:
    frame = Frame({"story": STORIES, "word": [math.nan if word is None else word for word in WORDS]})
    found = surprisal(MODEL, frame, text="story")
    assert isinstance(found, Frame)
    assert found.columns == ["story", "word", *EXPECTED]
    check(found.values)


def test_pandas_itself() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"story": STORIES, "word": WORDS}, index=list("vwxyz"))
    found = surprisal(MODEL, frame, text=["story"])
    assert found.index.tolist() == list("vwxyz")
    check(found)
    check(surprisal(MODEL, frame["word"], text=frame["story"]))


def test_arrow() -> None:
    table = pa.table({"story": STORIES, "word": WORDS})
    found = surprisal(MODEL, table, text="story")
    assert found.column_names == ["story", "word", *EXPECTED]
    assert found["surprisal_bits"].to_pylist()[1] is None
    check({name: found[name].to_numpy() for name in EXPECTED})
    check(surprisal(MODEL, table["word"], text=table["story"]))


SHOWN = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["x" * 10_000, "é" * 5000, "a\0b", "</s>"])


@pytest.fixture(scope="module", params=["lstm", "n-gram", "mixture"])
def model(request: pytest.FixtureRequest) -> bnce.Model:
    return make_model(request.param)


@settings(max_examples=30)
@given(words=st.lists(SHOWN, max_size=8), spell=st.booleans())
def test_any_words_have_a_row_each(model: bnce.Model, words: list[str], spell: bool) -> None:
    spell = spell and model.kind == "run"
    found = surprisal(model, words, spell=spell)
    assert {len(values) for values in found.values()} == {len(words)}
    empty = np.isnan(found["surprisal_bits"])
    assert (empty == ((found["num_tokens"] == 0) | (found["is_unknown"] & (not spell)))).all()


def test_words_that_are_glued() -> None:
    words, glued = ["a", "Eng", "land", ",", "b"], [False, False, True, True, True]
    first, second, *others = surprisal(MODEL, ["a", "England", ",", "b"])["surprisal_bits"].tolist()
    table = pa.table({"word": words, "glued": glued})
    frame = Frame({"word": words, "glued": glued})
    for found in (
        surprisal(MODEL, words, glued=glued)["surprisal_bits"],
        surprisal(MODEL, table, glued="glued")["surprisal_bits"].to_numpy(),
        surprisal(MODEL, frame, glued="glued").values["surprisal_bits"],
    ):
        assert found.tolist() == pytest.approx([first, second, math.nan, *others], nan_ok=True)
    assert surprisal(MODEL, words, glued=glued)["num_tokens"].tolist() == [1, 1, 0, 1, 1]
    with pytest.raises(bnce.UserError, match="row 1 has 'maybe' in the column of glued"):
        surprisal(MODEL, ["a"], glued=["maybe"])


def test_options_are_those_of_the_command(tmp_path: Path) -> None:
    path, out = tmp_path / "t.tsv", tmp_path / "o.tsv"
    path.write_text("word\tnumber\na\t1\nzebra\t1\nb\t2\n", encoding="utf-8")
    options = ["--sentence", "number", "--text", "number", "--spell", "--entropy", "--mode", "unnormalised"]
    assert add_surprisal(path, out, *options, "--prefix", "x_").status == 0
    header, *rows = (line.split("\t")[2:] for line in out.read_text(encoding="utf-8").splitlines())
    found = surprisal(
        MODEL,
        ["a", "zebra", "b"],
        sentence=[1, 1, 2],
        text=[1, 1, 2],
        mode="unnormalised",
        spell=True,
        entropy=True,
        prefix="x_",
    )
    assert list(found) == header
    for values, cells in zip(found.values(), zip(*rows, strict=True), strict=True):
        shown = [{"false": 0.0, "true": 1.0, "": math.nan}.get(cell) for cell in cells]
        expected = [float(cell) if value is None else value for value, cell in zip(shown, cells, strict=True)]
        np.testing.assert_allclose(np.array(values, dtype=float), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        ("a word", {}, "'a word' is no column: give a list with one value per word"),
        (["a", 3], {}, "The table, row 2 has 3 as its word: it must be text"),
        (["a"], {"text": [1, 2]}, "There are 1 words, and text is 2 values: give one per word"),
        (["a"], {"text": "story"}, "'story' is no column: give a list"),
        (pa.table({"word": ["a"]}), {"text": "story"}, "The table has no column 'story'"),
        (pa.table({"word": ["a"]}), {"text": [1]}, "The table has no column 1: its columns are"),
        (pa.table({"word": ["a"], "num_tokens": [1]}), {}, "The table already has a column 'num_tokens'"),
    ],
)
def test_what_is_refused(words: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(bnce.UserError, match=told):
        surprisal(MODEL, words, **options)
