"""A run as a model: the same numbers as the network by itself, from text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export.exported_runs import make_run
from small_corpus import END, UNK, VOCAB_SIZE, small_model

import bnce
from bnce import Model, UserError

from .models import MODES, WORDS, Mode, mixture, run_model, spelling_model
from .plain import plain_log_probs, plain_scores


def make_model(body: str = "lstm", loss: str = "bnce", **more: Any) -> Model:
    return run_model(small_model(body, loss, order=4), **more)


def test_load_opens_a_run(tmp_path: Path) -> None:
    model = bnce.load(str(make_run(tmp_path, "relu-lstm").path))
    (scored,) = model.score(["w3 w4 zebra"])
    assert scored.words == ["w3", "w4", "zebra", "</s>"]
    assert scored.ids == [3, 4, UNK, END]
    assert scored.oov.tolist() == [False, False, True, False]
    expected = plain_log_probs(small_model("relu-lstm"), [3, 4, UNK, END])
    np.testing.assert_allclose(scored.log_probs, expected, atol=1e-5)
    assert scored.log_prob == pytest.approx(expected.sum(), abs=1e-5)
    with pytest.raises(UserError, match="is not a run directory"):
        bnce.load(tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_sentences_keep_their_order_across_blocks(monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    texts = ["w3", "", "W4 w5 w6", "ünïcode w9", "w2 w2 w2 w2 w2 w2", "w7 . w8"]
    model = make_model()
    whole = model.score(texts, mode=mode)
    monkeypatch.setattr("bnce.scoring.model.BLOCK_WORDS", 4)
    cut = model.score(iter(texts), mode=mode)
    for text, one, other in zip(texts, whole, cut, strict=True):
        # A line stays one sentence, whatever marks are in it.
        assert one.words == other.words == [*text.lower().split(), "</s>"]
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-6)
        expected = plain_log_probs(model.network, one.ids, mode == "normalised")
        np.testing.assert_allclose(one.log_probs, expected, atol=1e-5)


def test_memory_is_that_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bnce.scoring.model.BLOCK_WORDS", 32)
    model = make_model()
    num_read = 0

    def sentences() -> object:
        nonlocal num_read
        for _ in range(100):
            num_read += 1
            yield ["w3", "w4"]

    found = model.stream(sentences())  # type: ignore[arg-type]
    next(found)
    assert num_read == 4
    assert len(list(found)) == 99


def test_an_ngram_model_tells_its_order() -> None:
    assert make_model("ffnn").score(["w3 w4 w5 w6"])[0].ngram_lengths.tolist() == [2, 3, 4, 4, 4]
    assert make_model("lstm").score(["w3 w4 w5 w6"])[0].ngram_lengths.tolist() == [2, 3, 4, 5, 6]
    network = small_model("transformer", context=2, num_layers=2)  # each word is predicted from three
    model = run_model(network)
    assert model.score(["w3 w4 w5 w6"])[0].ngram_lengths.tolist() == [2, 3, 4, 4, 4]
    assert mixture([model, model], [0.5, 0.5]).score(["w3 w4 w5 w6"])[0].ngram_lengths.tolist() == [2, 3, 4, 4, 4]


@pytest.mark.parametrize("body", ["ffnn", "lstm"])
def test_sentences_together_have_what_each_has_alone(body: str) -> None:
    """Unknown words are spelt wherever they stand, and the results of one sentence are not those of another."""
    model = make_model(body, spelling=spelling_model(["zebras", "yaks"]))
    texts = ["zebra w3", "", "w4 gnu yak", "w3", "w5 w6 <unk> w7 w8 zebra", "gnu"]
    together = model.score(texts, spell=True)
    for text, found in zip(texts, together, strict=True):
        (alone,) = model.score([text], spell=True)
        np.testing.assert_allclose(found.log_probs, alone.log_probs, atol=1e-6)
        assert found.log_prob == pytest.approx(float(alone.log_probs.sum()))
        assert (found.words, found.ids) == (alone.words, alone.ids)
        assert found.ngram_lengths.tolist() == alone.ngram_lengths.tolist()
        assert found.oov.tolist() == alone.oov.tolist() == [word == "<unk>" for word in found.words]


@pytest.mark.parametrize("body", ["ffnn", "lstm"])
@pytest.mark.parametrize("text", ["", "w5", "w5 zebra w7 w8 w9"])
def test_next_words_are_the_likeliest_and_sum_to_one(body: str, text: str) -> None:
    model = make_model(body)
    found = model.next_words(text, k=1000, mode="normalised")
    prob_V = torch.softmax(plain_scores(model.network, model.vocabulary.encode(text.split()).tolist()), 0)
    assert len(found) == VOCAB_SIZE
    assert sum(word.prob for word in found) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose([word.prob for word in found], prob_V.sort(descending=True)[0].numpy(), atol=1e-6)
    for word in found:
        assert word.prob == pytest.approx(float(prob_V[WORDS.index(word.word)]), abs=1e-6)
        assert word.log_prob == pytest.approx(math.log(word.prob), abs=1e-6)
    assert model.next_words(text, k=3, mode="normalised") == found[:3]


@pytest.mark.parametrize("body", ["ffnn", "lstm"])
@pytest.mark.parametrize("mode", MODES)
def test_next_words_of_several_prompts_are_those_of_each(body: str, mode: Mode) -> None:
    model = make_model(body)
    prompts = [["w3"], [], ["w3", "w4", "zebra", "w9", "w3"], ["w3"], ["w4", "w3"]]
    together = model.next_words_after(prompts, 4, mode=mode)
    for prompt, found in zip(prompts, together, strict=True):
        alone = model.next_words(" ".join(prompt), 4, mode=mode)
        assert [word.word for word in found] == [word.word for word in alone]
        assert [word.prob for word in found] == pytest.approx([word.prob for word in alone], rel=1e-5)
    assert model.next_words_after([], 4) == []


def test_next_words_with_the_constant() -> None:
    model = make_model()
    (word,) = model.next_words("w5", 1, mode="unnormalised")
    score_V = plain_scores(model.network, [5])
    assert word.log_prob == pytest.approx(float(score_V.max()) - 9.0, abs=1e-5)


def test_unknown_words_are_spelt() -> None:
    """p(word) = p(<unk>) · p(spelling); <unk> in a text is not spelt, and alone is OOV."""
    spelling = spelling_model(["zebras", "yaks"])
    plain, model = make_model(), make_model(spelling=spelling)
    texts = ["w3 Zebra yak <unk> w4 zebra", "", "w5", "🙂"]
    expected = spelling.log_probs(["zebra", "yak", "zebra", "🙂"])
    for mode in MODES:
        before, after = plain.score(texts, mode=mode), model.score(texts, mode=mode, spell=True)
        gained = np.concatenate([after[place].log_probs - before[place].log_probs for place in range(4)])
        np.testing.assert_allclose(gained[[1, 2, 5, 10]], expected, atol=1e-6)
        assert np.count_nonzero(np.abs(gained) > 1e-6) == 4
        assert [sentence.num_oov for sentence in after] == [1, 0, 0, 0]
        assert after[0].oov.tolist() == [False, False, False, True, False, False, False]
        carried = model.score(texts, mode=mode, carry=True, spell=True)
        alone = plain.score(texts, mode=mode, carry=True)
        np.testing.assert_allclose(carried[3].log_probs - alone[3].log_probs, [expected[3], 0], atol=1e-6)
        words = [text.lower().split() for text in texts]
        together = model.score_words(words, mode=mode, share=True, spell=True)
        for one, other in zip(together, after, strict=True):
            np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)
    # Without it everything is as before.
    assert model.score(["yak"])[0].num_oov == 1


def test_a_run_without_a_spelling_model_does_not_spell() -> None:
    model = make_model()
    for ask in (model.score, model.score_words):
        with pytest.raises(UserError, match=r"'run' has no spelling model.* prepare the corpus again and train"):
            ask([], spell=True)
    with pytest.raises(UserError, match="has no spelling model"):
        model.score_words([], share=True, spell=True)


@pytest.mark.parametrize("mode", MODES)
def test_rescore_sorts_hypotheses(mode: Mode) -> None:
    model = make_model()
    given = [("w3 w4", -1.0), ("w3 w4 w5", -2.0), ("", -50.0), ("w3 zebra", 0.0)]
    found = model.rescore(given, score_weight=2.0, lm_weight=0.5, word_penalty=0.25, mode=mode)
    assert sorted(one.place for one in found) == [0, 1, 2, 3]
    assert [one.total for one in found] == sorted((one.total for one in found), reverse=True)
    for one in found:
        assert (one.text, one.score) == given[one.place]
        expected = plain_log_probs(model.network, model.encode(one.text.split()).tolist(), mode == "normalised").sum()
        assert one.log_prob == pytest.approx(expected, abs=1e-4)
        assert one.total == pytest.approx(2 * one.score + 0.5 * one.log_prob - 0.25 * len(one.text.split()))
    plain = model.rescore(["w3", "w3", "w4"], mode=mode)
    assert [one.place for one in plain if one.text == "w3"] == [0, 1]  # equals keep their order
    assert all(one.total == one.log_prob for one in plain)
    assert model.rescore([]) == []


def test_what_cannot_be_rescored() -> None:
    with pytest.raises(UserError, match="The hypotheses are one string"):
        make_model().rescore("w3")
    with pytest.raises(UserError, match="The score of the hypothesis 'w3' is nan"):
        make_model().rescore([("w3", math.nan)])
    with pytest.raises(UserError, match="The score of the hypothesis 'w3' is None: it must be a finite number"):
        make_model().rescore([("w3", None)])  # type: ignore[list-item]
    for one in (("w3", 1.0, 2.0), ("w3",), 7, (7, 1.0)):
        with pytest.raises(UserError, match=r"A hypothesis is .*: give a text, or a text and its score, such as"):
            make_model().rescore(["w3", one])  # type: ignore[list-item]
    for call in (lambda model: model.rescore(["w3"], after="x"), lambda model: model.read((0, 1), "w3")):
        with pytest.raises(UserError, match=r"The state is .*: give one that start or read of the same model returned"):
            call(make_model())
    with pytest.raises(UserError, match="The weight lm_weight is inf"):
        make_model().rescore(["w3"], lm_weight=math.inf)
    with pytest.raises(UserError, match="trained with the loss softmax"):
        make_model(loss="softmax").rescore(["w3"], mode="unnormalised")


def test_what_cannot_be_is_refused() -> None:
    model = make_model()
    with pytest.raises(UserError, match="are one string: give a list"):
        model.score("a sentence")
    with pytest.raises(UserError, match="The number of next words is 0"):
        model.next_words("w3", 0)
    with pytest.raises(UserError, match=r"The number of next words is 2\.0: give a whole number"):
        model.next_words("w3", 2.0)  # type: ignore[arg-type]
    for call in (model.score_words, model.next_words_after):
        for given in ("w3 w4", ["w3 w4"], [["w3"], "w3 w4"]):
            with pytest.raises(UserError, match="The words are one string, 'w3 w4': give a list of words, such as"):
                call(given)  # type: ignore[operator]
    with pytest.raises(UserError, match="The words are one string, 'w3 w4': give a list of words, such as"):
        model.encode("w3 w4")
    for text in (None, b"w3", ["w3", "w4"]):
        with pytest.raises(UserError, match=r"A text is .*: give a string\."):
            model.score([text])  # type: ignore[list-item]
    for wrong in ({"num_texts": 0}, {"max_words": 0}, {"num_texts": -1}):
        with pytest.raises(
            UserError, match=r"texts of at most .* words were requested: both numbers must be 1 or more\."
        ):
            model.generate("w3", **wrong)
    for seed in (-1, 2**64):
        with pytest.raises(UserError, match=f"The seed is {seed}: it must be from 0"):
            model.generate("w3", seed=seed)
    softmax = make_model(loss="softmax")
    with pytest.raises(UserError, match="trained with the loss softmax"):
        softmax.score(["w3"], mode="unnormalised")
    with pytest.raises(UserError, match="trained with the loss softmax"):
        softmax.next_words("w3", mode="unnormalised")
    assert len(softmax.next_words("w3")) == 10
    assert softmax.score(["w3"], mode="normalised")[0].log_prob < 0
    assert model.score([]) == []
