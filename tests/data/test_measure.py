"""Every row has the sum over its own words, and all rows have what `score` says of the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from run_files import write_mixture

from bnce import Model, UserError, load, surprisal

from .models import KINDS, WORDS, make_model, write_model

MODEL = make_model()


class Row(NamedTuple):
    """A word, and what it belongs to."""

    word: str
    text: object = None
    sentence: object = None
    is_glued: bool = False


TEXTS = ["If England, a b. C d? e 'f' b", "a. b c d.", "England"]
ROWS = [Row(word, number) for number, text in enumerate(TEXTS) for word in text.replace("If ", "").split()]


def measured(
    model: Model, rows: Sequence[Row], split: bool = True, mode: Any = "normalised", **options: Any
) -> dict[str, list[float]]:
    """Measure rows, whose sentences are to be found or are known."""
    words, texts, sentences, glued = (list(values) for values in zip(*rows, strict=True))
    found = surprisal(
        model, words, text=texts, sentence=None if split else sentences, glued=glued, mode=mode, **options
    )
    return {name: values.tolist() for name, values in found.items()}


def by_score(model: Model, text: str, mode: Any) -> float:
    """What `score --split --carry text` says of a text but for its sentence ends, in bits."""
    scored = model.stream(model.normaliser(text), mode=mode, carry=True)
    return -sum(float(one.log_probs[:-1].sum()) for one in scored) / math.log(2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_of_a_text_is_what_score_says(kind: str) -> None:
    model = make_model(kind)
    for mode in ("normalised", "unnormalised") if model.kind != "n-gram" else ("normalised",):
        found = measured(model, ROWS, mode=mode)
        assert len(found["surprisal_bits"]) == len(ROWS)
        for number, text in enumerate(TEXTS):
            total = np.nansum([found["surprisal_bits"][place] for place, row in enumerate(ROWS) if row.text == number])
            expected = by_score(model, text.replace("If ", ""), mode)
            assert total == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_a_word_with_its_marks_and_without_them() -> None:
    found = measured(MODEL, [Row("a"), Row("England,"), Row("—"), Row("b'c"), Row(""), Row("d.")], entropy=True)
    assert measured(MODEL, [Row("a\ud800")])["is_unknown"] == [True], "half of a character"
    assert list(found)[2] == "entropy_bits"
    assert np.isnan(found["entropy_bits"]).tolist() == [False] * 4 + [True, False]
    (scored,) = MODEL.score(["a england, —  b'c d."], mode="normalised", carry=True)
    bits = -scored.log_probs / math.log(2)
    assert scored.words == ["a", "england", ",", "—", "b'c", "d", ".", "</s>"]
    assert found["surprisal_bits"][:2] == pytest.approx([bits[0], bits[1] + bits[2]], abs=1e-5)
    assert found["word_surprisal_bits"][:2] == pytest.approx([bits[0], bits[1]], abs=1e-5)
    assert np.isnan(found["surprisal_bits"]).tolist() == [False, False, True, True, True, False]
    assert found["surprisal_bits"][5] == pytest.approx(bits[5] + bits[6], abs=1e-5)
    assert found["word_surprisal_bits"][5] == pytest.approx(bits[5], abs=1e-5)
    assert found["is_unknown"] == [False, False, True, True, False, False]
    assert found["num_tokens"] == [1, 2, 1, 1, 0, 2]
    counts = np.arange(30)[::-1]
    assert found["log10_frequency"][1] == pytest.approx(math.log10(counts[5] / counts.sum()))
    assert np.isnan(found["log10_frequency"][2:5]).all()


def test_unknown_words_are_spelt_or_empty() -> None:
    rows = [Row("a"), Row("zebra,"), Row("b")]
    empty, spelt = measured(MODEL, rows), measured(MODEL, rows, spell=True)
    assert math.isnan(empty["surprisal_bits"][1])
    assert empty["is_unknown"] == spelt["is_unknown"] == [False, True, False]
    (scored,) = MODEL.score(["a zebra, b"], mode="normalised", spell=True)
    bits = -scored.log_probs / math.log(2)
    expected = [bits[0], bits[1] + bits[2], bits[3]]
    assert spelt["surprisal_bits"] == pytest.approx(expected, abs=1e-5)
    assert empty["surprisal_bits"][2] == pytest.approx(bits[3], abs=1e-5)


def test_a_mixture_whose_parts_know_other_words(tmp_path: Path) -> None:
    other = [*WORDS[:5], "zebra", *WORDS[6:]]
    parts = [write_model("lstm", tmp_path), write_model("rnn", tmp_path, words=other)]
    model = load(write_mixture(tmp_path / "mixture.toml", parts, [0.5, 0.5]))
    found = measured(model, [Row("a"), Row("England"), Row("zebra"), Row("b")])
    assert found["is_unknown"] == [False, True, True, False]
    assert np.isnan(found["surprisal_bits"]).tolist() == [False, True, True, False]
    assert measured(model, [Row("England")], spell=True)["surprisal_bits"][0] > 0


def test_sentences_that_are_known() -> None:
    rows = [Row("a", 1, 1), Row("b.", 1, 1), Row("c", 1, 1), Row("d", 1, 2)]
    found = measured(MODEL, rows, split=False)
    first, second = MODEL.score(["a b. c", "d"], mode="normalised", carry=True)
    bits = -np.concatenate([first.log_probs[:-1], second.log_probs[:-1]]) / math.log(2)
    assert found["surprisal_bits"] == pytest.approx([bits[0], bits[1] + bits[2], bits[3], bits[4]], abs=1e-5)


def test_what_is_refused_names_the_row() -> None:
    with pytest.raises(UserError, match=r"Row 3 belongs to the text '1', whose rows ended at row 1: "):
        measured(MODEL, [Row("a", 1), Row("b", 2), Row("c", 1)])
    with pytest.raises(UserError, match=r"'.*' is not a run, and only runs tell entropies: leave out entropy"):
        measured(make_model("n-gram"), ROWS, entropy=True)
    with pytest.raises(UserError, match=r"has no constant Z: use normalised probabilities"):
        measured(make_model(loss="softmax"), ROWS, mode="unnormalised")
