"""What the model's normaliser did to hypotheses."""

from __future__ import annotations

from bnce import Normaliser
from bnce.rescoring.form import find_form
from bnce.rescoring.nbest import NBest, Utterance
from bnce.rescoring.rescore import put_together
from tests.scoring.unigram import Unigram


def test_changes_and_unknown_words_are_counted() -> None:
    model = Unigram({"it's": 0.5, "five": 0.25}, Normaliser(tokens="spoken"))

    long = "It's 5" + " and 5" * 40
    nbest = NBest([Utterance("x", ["five it's", "five it's 5.", "five"]), Utterance("y", ["", long])])
    form = find_form(model, put_together(nbest, [0.0] * 5, [0, 0, 0, 0, 40]))
    assert (form.num_changed, form.num_hypotheses, form.num_words, form.num_oov) == (2, 5, 2 + 3 + 1 + 82, 40)
    assert form.example == ("it's 5.", "it's five")
    assert "2 of 5 hypotheses were brought into the form of the training text, such as 'it's 5.' to" in str(form)
    assert "40 of 88 words (45.45%) are unknown" in str(form)
    short = NBest([Utterance("y", [long])])
    shown = find_form(model, put_together(short, [0.0], [0])).example
    assert shown is not None
    assert max(map(len, shown)) == 60
    assert shown[0].startswith("It's 5 and 5")
    assert shown[0].endswith("…")


def test_nothing_changed() -> None:
    model = Unigram({"five": 1.0}, Normaliser(tokens="spoken"))

    nbest = NBest([Utterance("x", ["five"])])
    told = str(find_form(model, put_together(nbest, [0.0], [0])))
    assert told == "All hypotheses are in the form of the training text; 0 of 1 words (0.00%) are unknown to the model."
