"""The interface of kenlm with a run behind it, and with an n-gram model against kenlm itself."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from small_corpus import END, UNK, small_model

import bnce
from bnce import Model, Normaliser, UserError, kenlm
from tests.scoring.arpa import write_arpa
from tests.scoring.models import HEARD, mixture, run_model
from tests.scoring.plain import plain_log_probs

SENTENCE = "HELLO world zebra help"
IDS = [2, 4, UNK, 3, END]


def make_model(body: str = "lstm", loss: str = "bnce", **shape: int) -> Model:
    return run_model(small_model(body, order=4, loss=loss, **shape), HEARD, Normaliser(True, "words", "lines"))


@pytest.mark.parametrize("mode", ["unnormalised", "normalised"])
@pytest.mark.parametrize("body", ["ffnn", "lstm"])
def test_the_sentence_as_a_whole_and_in_steps(body: str, mode: Any) -> None:
    run = make_model(body)
    model = kenlm.Model(run, mode=mode)
    expected = plain_log_probs(run.network, IDS, mode == "normalised") / math.log(10)
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
    for word in ("a", "zebra", "</s>", "<s>", "<unk>"):
        assert (word in ours) == (word in theirs)
    again = pickle.loads(pickle.dumps(ours))
    assert again.path == ours.path == theirs.path


@pytest.mark.parametrize("begins", [True, False])
def test_lengths_and_missing_context_are_those_of_kenlm(tmp_path: Path, begins: bool) -> None:
    real = pytest.importorskip("kenlm")
    path = write_arpa(tmp_path)
    ours, theirs = kenlm.Model(path), real.Model(str(path))
    for sentence in ("a model was", "model a zebra was a </s> <unk> model", "", "a", "was was"):
        for ends in (True, False):
            found = list(ours.full_scores(sentence, begins, ends))
            expected = list(theirs.full_scores(sentence, begins, ends))
            assert [one[1:] for one in found] == [one[1:] for one in expected]
            assert [one[0] for one in found] == pytest.approx([one[0] for one in expected], abs=1e-5)
        states = []
        for model, new_state in ((ours, kenlm.State), (theirs, real.State)):
            state = new_state()
            (model.BeginSentenceWrite if begins else model.NullContextWrite)(state)
            reached = [state]
            for word in sentence.split():
                before, state = state, new_state()
                score = model.BaseFullScore(before, word, state)
                reached.append((score.log_prob, score.ngram_length, score.oov, state))
            states.append(reached)
        for (*found, _), (*expected, _) in zip(states[0][1:], states[1][1:], strict=True):
            assert found[1:] == expected[1:]
            assert found[0] == pytest.approx(expected[0], abs=1e-5)
        # Two states are equal here where they are there.
        only, wanted = ([first, *(one[-1] for one in rest)] for first, *rest in states)
        assert [[a == b for a in only] for b in only] == [[a == b for a in wanted] for b in wanted]
        assert [[a < b for a in only] for b in only] == [[a < b for a in wanted] for b in wanted]


def test_a_state_without_context_is_another_one_for_an_n_gram_model(tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    model = kenlm.Model(write_arpa(tmp_path))
    one, other = kenlm.State(), kenlm.State()
    assert one == other
    model.BeginSentenceWrite(one)
    assert one != other
    assert other < one
    model.NullContextWrite(other)
    assert one != other


@pytest.mark.parametrize("body", ["ffnn", "lstm", "transformer"])
def test_lengths_in_steps_are_those_of_the_sentence(body: str, tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    shape = {"context": 3, "num_layers": 1} if body == "transformer" else {}
    run = make_model(body, **shape)
    ngram = bnce.load(write_arpa(tmp_path))
    text = "hello world, help hello hello world"
    for model in (run, mixture([run, ngram], [0.5, 0.5])):
        wrapped = kenlm.Model(model)
        state = kenlm.State()
        wrapped.BeginSentenceWrite(state)
        lengths = [wrapped.BaseFullScore(state, word, state).ngram_length for word in [*text.split(), "</s>"]]
        assert lengths == [one.ngram_length for one in wrapped.full_scores(text)]
        if body != "lstm":
            assert max(lengths) == 4


def test_the_names_are_those_of_kenlm() -> None:
    real = pytest.importorskip("kenlm")
    for ours, theirs in ((kenlm.Model, real.Model), (kenlm.State, real.State), (kenlm.Config, real.Config)):
        wanted = {name for name in dir(theirs) if not name.startswith("_")}
        assert wanted <= {name for name, _ in inspect.getmembers(ours)} | {"path"}
    assert {"log_prob", "ngram_length", "oov"} <= set(dir(kenlm.FullScoreReturn))
