"""The interface of kenlm with a run behind it, and with an n-gram model against kenlm itself."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from pathlib import Path

import pytest
from small_corpus import VOCAB_SIZE, small_model

import bnce
from bnce.corpus.vocabulary import END, SPECIALS, UNK, Vocabulary
from bnce.errors import UserError
from bnce.rescoring import kenlm
from bnce.scoring.run_model import RunModel
from bnce.text.normalise import Normaliser
from tests.scoring.arpa import write_arpa
from tests.scoring.plain import plain_log_probs

SENTENCE = "HELLO world zebra help"
IDS = [2, 4, UNK, 3, END]


def make_model(body: str = "lstm", loss: str = "bnce") -> RunModel:
    words = [*SPECIALS, "hello", "help", "world", *(f"w{number}" for number in range(5, VOCAB_SIZE))]
    return RunModel(small_model(body, order=4, loss=loss), Vocabulary(words), Normaliser(True, "words", "lines"))


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("body", ["ffnn", "lstm"])
def test_the_sentence_as_a_whole_and_in_steps(body: str, normalised: bool) -> None:
    run = make_model(body)
    model = kenlm.Model(run, normalised=normalised)
    expected = plain_log_probs(run.network, IDS, normalised) / math.log(10)
    assert model.score(SENTENCE) == pytest.approx(expected.sum(), abs=1e-4)
    assert model.score(SENTENCE.encode(), eos=False) == pytest.approx(expected[:-1].sum(), abs=1e-4)
    assert model.perplexity(SENTENCE) == pytest.approx(10 ** (-expected.sum() / 5), rel=1e-4)
    full = list(model.full_scores(SENTENCE))
    assert [score for score, _, _ in full] == pytest.approx(expected.tolist(), abs=1e-4)
    assert [oov for _, _, oov in full] == [False, False, True, False, False]
    state, after = kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    for word, wanted in zip([*SENTENCE.split(), "</s>"], full, strict=True):
        found = model.BaseFullScore(state, word, after)
        assert found.log_prob == pytest.approx(wanted[0], abs=1e-4)
        assert (found.ngram_length, found.oov) == (wanted[1], wanted[2])
        assert model.BaseScore(state, word, kenlm.State()) == found.log_prob
        state, after = after, state


def test_a_word_is_read_as_the_run_reads_it() -> None:
    model = kenlm.Model(make_model())
    assert [oov for _, _, oov in model.full_scores("Hello, -- WORLD")] == [True, True, False, False]
    state, after = kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    first = list(model.full_scores("Hello, world"))
    assert model.BaseScore(state, "Hello,", after) == pytest.approx(first[0][0], abs=1e-4)
    assert model.BaseScore(after, "world", after) == pytest.approx(first[1][0], abs=1e-4)


def test_states_compare_as_histories() -> None:
    model = kenlm.Model(make_model())
    one, other, third = kenlm.State(), kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(one)
    model.NullContextWrite(other)
    assert one == other
    assert hash(one) == hash(other)
    model.BaseScore(one, "hello", third)
    assert third != one
    assert one < third
    assert copy.copy(third) == copy.deepcopy(third) == third
    with pytest.raises(UserError, match="The state is empty: write the start of a sentence"):
        model.BaseScore(kenlm.State(), "hello", third)


def test_a_softmax_run_is_normalised() -> None:
    run = make_model(loss="softmax")
    expected = plain_log_probs(run.network, IDS, True).sum() / math.log(10)
    assert kenlm.Model(run).score(SENTENCE) == pytest.approx(expected, abs=1e-4)


def test_words_and_names() -> None:
    model = kenlm.Model(make_model("ffnn"))
    assert "hello" in model
    assert b"zebra" not in model
    assert model.order == 4
    assert kenlm.Model(make_model()).order == 10
    assert repr(model) == "<Model from run>"
    assert bnce.kenlm is kenlm
    with pytest.raises(TypeError, match="Cannot convert"):
        model.score(3)  # type: ignore[arg-type]


def test_an_n_gram_model_is_that_of_kenlm(tmp_path: Path) -> None:
    real = pytest.importorskip("kenlm")
    path = write_arpa(tmp_path)
    assert kenlm.Model(path).order == real.Model(str(path)).order
    ours, theirs = kenlm.Model(path), real.Model(str(path))
    for sentence in ("a model was", "model a zebra was", "", "a"):
        assert ours.score(sentence) == pytest.approx(theirs.score(sentence), abs=1e-5)
        assert ours.perplexity(sentence) == pytest.approx(theirs.perplexity(sentence), rel=1e-5)
        assert [oov for _, _, oov in ours.full_scores(sentence)] == [oov for _, _, oov in theirs.full_scores(sentence)]
    again = pickle.loads(pickle.dumps(ours))
    assert again.path == ours.path == theirs.path


def test_the_names_are_those_of_kenlm() -> None:
    real = pytest.importorskip("kenlm")
    for ours, theirs in ((kenlm.Model, real.Model), (kenlm.State, real.State), (kenlm.Config, real.Config)):
        wanted = {name for name in dir(theirs) if not name.startswith("_")}
        assert wanted <= {name for name, _ in inspect.getmembers(ours)} | {"path"}
    assert {"log_prob", "ngram_length", "oov"} <= set(dir(kenlm.FullScoreReturn))
