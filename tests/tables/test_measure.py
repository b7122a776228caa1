"""Every row has the sum over its own words, and all rows have what `score` says of the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bnce import Model, UserError
from bnce.tables import measure as measure_module
from bnce.tables.columns import Measuring, Row
from bnce.tables.measure import Measurer
from bnce.tables.readers import open_reader

from .models import KINDS, make_model, make_run

TEXTS = ["If England, a b. C d? e 'f' b", "a. b c d.", "England"]
ROWS = [Row(word, number) for number, text in enumerate(TEXTS) for word in text.replace("If ", "").split()]


def measured(
    model: Model, rows: Sequence[Row], measuring: Measuring | None = None, split: bool = True
) -> dict[str, list[float]]:
    measuring = measuring or Measuring()
    blocks = list(Measurer(model, measuring, open_reader(model, measuring), split).measure(rows))
    joined = [np.concatenate(columns).tolist() for columns in zip(*blocks, strict=True)]
    return dict(zip(measuring.columns, joined, strict=True))


def by_score(model: Model, text: str, carry: bool, normalised: bool) -> float:
    """What `score --split` says of a text, in bits."""
    reader = model.reader(normalised=normalised, carry=carry)
    sentences = model.normaliser(text)
    return -sum(float(one.log_probs.sum()) for one in reader.score(sentences)) / math.log(2)


@pytest.mark.parametrize("context", ["text", "sentence"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_of_a_text_is_what_score_says(kind: str, context: str, tmp_path: Path) -> None:
    model = make_model(kind, tmp_path)
    for normalised in (True, False) if model.has_constant else (True,):
        found = measured(model, ROWS, Measuring(context=context, normalised=normalised, ends=True))
        assert len(found["surprisal_bits"]) == len(ROWS)
        for number, text in enumerate(TEXTS):
            of_text = [place for place, row in enumerate(ROWS) if row.text == number]
            total = np.nansum([[found[name][place] for place in of_text] for name in ("surprisal_bits", "end_bits")])
            expected = by_score(model, text.replace("If ", ""), context == "text", normalised)
            assert total == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = make_run()
    rows = [*ROWS, Row("", 3), Row("a", 3), Row("zebra", 3), Row("b.", 3), Row("", 3), Row("c", 3)]
    for context in ("text", "sentence"):
        whole = measured(model, rows, Measuring(context=context, ends=True))
        for size in (1, 2, 3, 5):
            monkeypatch.setattr(measure_module, "BLOCK_ROWS", size)
            parts = measured(model, rows, Measuring(context=context, ends=True))
            for name, values in whole.items():
                np.testing.assert_allclose(parts[name], values, rtol=1e-5, atol=1e-5)
        monkeypatch.undo()


def test_a_word_with_its_marks_and_without_them() -> None:
    model = make_run()
    found = measured(model, [Row("a"), Row("England,"), Row("—"), Row("b'c"), Row(""), Row("d.")])
    (scored,) = model.score(["a england, —  b'c d."], normalised=True, carry=True)
    bits = -scored.log10_probs / math.log10(2)
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
    model = make_run()
    rows = [Row("a"), Row("zebra,"), Row("b")]
    empty, spelt = measured(model, rows), measured(model, rows, Measuring(spell=True))
    assert math.isnan(empty["surprisal_bits"][1])
    assert empty["is_unknown"] == spelt["is_unknown"] == [False, True, False]
    (scored,) = model.score(["a zebra, b"], normalised=True, spell=True)
    bits = -scored.log10_probs / math.log10(2)
    expected = [bits[0], bits[1] + bits[2], bits[3]]
    assert spelt["surprisal_bits"] == pytest.approx(expected, abs=1e-5)
    assert empty["surprisal_bits"][2] == pytest.approx(bits[3], abs=1e-5)


def test_a_mixture_whose_parts_know_other_words(tmp_path: Path) -> None:
    from bnce.scoring.mixture import MixtureModel

    first = make_run()
    other = make_run("rnn", words=[*first.vocabulary.words[:5], "zebra", *first.vocabulary.words[6:]], name="other")
    found = measured(MixtureModel([first, other], [0.5, 0.5]), [Row("a"), Row("England"), Row("zebra"), Row("b")])
    assert found["is_unknown"] == [False, True, True, False]
    assert np.isnan(found["surprisal_bits"]).tolist() == [False, True, True, False]
    spelt = measured(MixtureModel([first, other], [0.5, 0.5]), [Row("England")], Measuring(spell=True))
    assert spelt["surprisal_bits"][0] > 0


def test_bases_agree_and_stand_in_the_names() -> None:
    model = make_run()
    bits, nats, tens = (measured(model, ROWS, Measuring(base=base, ends=True)) for base in ("2", "e", "10"))
    assert [name for name in tens if "base10" in name] == ["surprisal_base10", "word_surprisal_base10", "end_base10"]
    np.testing.assert_allclose(bits["surprisal_bits"], np.array(nats["surprisal_nats"]) / math.log(2))
    np.testing.assert_allclose(bits["end_bits"], np.array(tens["end_base10"]) / math.log10(2))
    assert bits["log10_frequency"] == pytest.approx(nats["log10_frequency"], nan_ok=True)
    with pytest.raises(UserError, match="value of base '3': choose one of 2, e, 10"):
        Measuring(base="3")


def test_sentences_that_are_known() -> None:
    model = make_run()
    rows = [Row("a", 1, 1), Row("b.", 1, 1), Row("c", 1, 1), Row("d", 1, 2)]
    found = measured(model, rows, Measuring(ends=True), split=False)
    assert np.isnan(found["end_bits"]).tolist() == [True, True, False, False]
    first, second = model.score(["a b. c", "d"], normalised=True, carry=True)
    total = -(first.log10_prob + second.log10_prob) / math.log10(2)
    assert np.nansum([*found["surprisal_bits"], *found["end_bits"]]) == pytest.approx(total, rel=1e-6)


def test_what_is_refused_names_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_run()
    with pytest.raises(UserError, match=r"Row 3 belongs to the text '1', whose rows ended at row 1: "):
        measured(model, [Row("a", 1), Row("b", 2), Row("c", 1)])
    with pytest.raises(UserError, match=r"Row 2 has half of a character"):
        measured(model, [Row("a"), Row("\ud800")])
    monkeypatch.setattr(measure_module, "MAX_SENTENCE_WORDS", 3)
    with pytest.raises(UserError, match=r"The sentence at row 4 has more than 3 words or rows: "):
        measured(model, [Row("a")] * 6)
    with pytest.raises(UserError, match=r"leave out unnormalised"):
        measured(make_run(loss="softmax"), ROWS, Measuring(normalised=False))


def test_the_entropy_before_a_row(tmp_path: Path) -> None:
    model = make_run()
    found = measured(model, [Row("a"), Row("England,"), Row(""), Row("b")], Measuring(entropy=True, base="e"))
    assert list(found)[2] == "entropy_nats"
    log_prob_V = model.next_log_probs(model.advance(model.start(), "a"), model.vocabulary.words, normalised=True)
    expected = -float(np.exp(log_prob_V) @ log_prob_V)
    assert found["entropy_nats"][1] == pytest.approx(expected, abs=1e-5)
    assert np.isnan(found["entropy_nats"]).tolist() == [False, False, True, False]


def test_rows_without_a_blank_between_them() -> None:
    model = make_run()
    glued = [Row("a"), Row("Eng"), Row("land", is_glued=True), Row(",", is_glued=True), Row("b", is_glued=True)]
    found = measured(model, glued)
    whole = measured(model, [Row("a"), Row("England"), Row(","), Row("b")])
    kept = [0, 1, 3, 4]
    assert [found["surprisal_bits"][place] for place in kept] == pytest.approx(whole["surprisal_bits"])
    assert math.isnan(found["surprisal_bits"][2])
    assert found["num_tokens"] == [1, 1, 0, 1, 1]


def test_rows_are_measured_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "BLOCK_ROWS", 4)
    endless = (Row("a.") for _ in iter(int, 1))
    model, measuring = make_run(), Measuring()
    blocks = Measurer(model, measuring, open_reader(model, measuring)).measure(endless)
    assert len(next(blocks)[0]) == len(next(blocks)[0]) == 4
