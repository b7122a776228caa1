"""Mixtures, and n-gram models beside them: all calls of a model give the sums of what the parts give."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from command import Command
from export.exported_runs import make_run
from run_files import write_mixture
from small_corpus import VOCAB_SIZE

from bnce import Model, Normaliser, Sampling, UserError, load

from .models import MODES, ONE, OTHER, Mode, Unigram, run_model, spelling_model
from .models import mixture as mix

kenlm = pytest.importorskip("kenlm")

TEXTS = ["w3 w4 zebra", "", "w5 w5 w6 w7"]
WEIGHTS = [0.7, 0.3]


@pytest.fixture
def parts(bnce: Command, tmp_path: Path) -> tuple[Path, Path]:
    run, arpa = make_run(tmp_path, "relu-lstm").path, tmp_path / "bigram.arpa"
    assert bnce("ngram", tmp_path / "corpus", "--order", 2, "--out", arpa).status == 0
    return run, arpa


@pytest.fixture
def mixture(parts: tuple[Path, Path], tmp_path: Path) -> Model:
    loaded = load(write_mixture(tmp_path / "mix.toml", parts, WEIGHTS))
    assert loaded.kind == "mixture"
    return loaded


@pytest.mark.parametrize("mode", MODES)
def test_probabilities_are_the_sums_of_the_parts(mixture: Model, parts: tuple[Path, Path], mode: Mode) -> None:
    run, ngram = (load(part) for part in parts)
    assert run.kind == "run"
    scored = [model.score(TEXTS, mode=mode) for model in (mixture, run, ngram)]
    for mixed, by_run, by_ngram in zip(*scored, strict=True):
        expected = 0.7 * np.exp(by_run.log_probs) + 0.3 * np.exp(by_ngram.log_probs)
        np.testing.assert_allclose(np.exp(mixed.log_probs), expected, rtol=1e-5)
        assert mixed.words == by_run.words
    hypotheses = [("w3 w4", -1.0), ("w5", -0.5)]
    for one in mixture.rescore(hypotheses, mode=mode):
        (alone,) = mixture.score([one.text], mode=mode)
        assert one.log_prob == pytest.approx(alone.log_prob, rel=1e-5)
        assert one.total == pytest.approx(one.score + one.log_prob)
    found = mixture.next_words("w3", VOCAB_SIZE + 5, mode=mode)
    apart = [{word.word: word.prob for word in model.next_words("w3", VOCAB_SIZE, mode=mode)} for model in (run, ngram)]
    assert [word.prob for word in found] == sorted((word.prob for word in found), reverse=True)
    assert {word.word for word in found} == set(run.vocabulary.words)
    for word in found:
        assert word.prob == pytest.approx(0.7 * apart[0][word.word] + 0.3 * apart[1][word.word], rel=1e-4)
    if mode == "normalised":
        assert sum(word.prob for word in found) == pytest.approx(1, abs=1e-4)
    # As a beam search sees it: the same words one by one.
    scorer = mixture.scorer()
    state, total = scorer.start(), 0.0
    for number in mixture.encode(["w3", "w4"]):
        total += float(scorer.score([state], [number], mode)[0])
        (state,) = scorer.advance([state], [number])
    (whole,) = mixture.score(["w3 w4"], mode=mode)
    assert total == pytest.approx(whole.log_prob, rel=1e-5)
    several = scorer.score([scorer.start()] * 2, [[2, 3, 4], [4, 3, 2]], mode)
    assert several.shape == (2, 3)
    np.testing.assert_allclose(several[0], several[1][::-1])


def test_texts_are_made_up(mixture: Model, parts: tuple[Path, Path]) -> None:
    texts = mixture.generate("w3", 4, 6, Sampling(top_k=5), seed=3)
    assert texts == mixture.generate("w3", 4, 6, Sampling(top_k=5), seed=3)
    assert all(text.startswith("w3") and "<unk>" not in text for text in texts)
    likeliest = next(word.word for word in mixture.next_words("w3", 3) if word.word != "<unk>")
    (greedy,) = mixture.generate("w3", 1, 1, Sampling(temperature=0))
    assert greedy == ("w3" if likeliest == "</s>" else f"w3 {likeliest} …")
    assert load(str(parts[1])).generate("w3", max_words=3)


def test_what_runs_remember_is_carried_over(mixture: Model, parts: tuple[Path, Path]) -> None:
    run, ngram = (load(part) for part in parts)
    carried = [model.score(TEXTS, carry=True) for model in (mixture, run)]
    for mixed, by_run, by_ngram in zip(*carried, ngram.score(TEXTS), strict=True):
        expected = 0.7 * np.exp(by_run.log_probs) + 0.3 * np.exp(by_ngram.log_probs)
        np.testing.assert_allclose(np.exp(mixed.log_probs), expected, rtol=1e-5)
    after = mixture.read(mixture.start(), TEXTS[0])
    (one,) = mixture.rescore([TEXTS[1]], after=after)
    assert one.log_prob == pytest.approx(carried[0][1].log_prob, rel=1e-4)
    (fresh,) = mixture.rescore([TEXTS[1]])
    assert fresh.log_prob != pytest.approx(one.log_prob, rel=1e-4)


def test_what_it_says_of_itself(mixture: Model, parts: tuple[Path, Path]) -> None:
    assert (mixture.log_z, mixture.device) == (None, "cpu")
    assert mixture.vocabulary.words == load(parts[0]).vocabulary.words
    assert sorted(load(parts[1]).vocabulary.words) == sorted(mixture.vocabulary.words)
    assert [mixture.choose_mode(mode) for mode in (None, *MODES)] == ["unnormalised", *MODES]
    assert [load(parts[1]).choose_mode(mode) for mode in (None, *MODES)] == ["normalised"] * 3
    assert [one.kind for one in (mixture, *mixture.components)] == ["mixture", "run", "n-gram"]


def test_refusals(mixture: Model, parts: tuple[Path, Path], tmp_path: Path) -> None:
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"mmap lm" * 100)
    ngram = load(parts[1])
    ngram.name = str(binary)
    assert ngram.vocab_size is None
    with pytest.raises(UserError, match="does not list its words"):
        _ = ngram.vocabulary
    config = parts[0] / "config.toml"
    config.write_text(
        config.read_text(encoding="utf-8").replace('"bnce"', '"softmax"').replace("num_noise = 0\n", ""),
        encoding="utf-8",
    )
    softmax = load(tmp_path / "mix.toml")
    assert softmax.score(TEXTS, mode="normalised")
    assert softmax.choose_mode(None) == "normalised"
    with pytest.raises(UserError, match=f"^'{parts[0]}' was trained with the loss softmax and has no constant Z"):
        softmax.score(TEXTS, mode="unnormalised")


def test_unknown_words_are_spelt_by_each_component(parts: tuple[Path, Path]) -> None:
    """Runs with different words say how likely the word itself is, known or not; n-gram models cannot."""
    run, arpa = map(load, parts)
    assert run.kind == "run"
    fewer = [*run.vocabulary.words[:4], "zebra", *run.vocabulary.words[5:]]
    spelling = spelling_model(["w4", "w100"], fewer)
    other = run_model(run.network, fewer, run.normaliser, name="other", spelling=spelling)
    mixture = mix([run, other], WEIGHTS)
    one, two = (model.score(TEXTS, mode="normalised", spell=True) for model in (run, other))
    for carry in (False, True):
        one, two, mixed = (
            model.score(TEXTS, mode="normalised", spell=True, carry=carry) for model in (run, other, mixture)
        )
        for first, second, found in zip(one, two, mixed, strict=True):
            expected = np.log(WEIGHTS[0] * np.exp(first.log_probs) + WEIGHTS[1] * np.exp(second.log_probs))
            np.testing.assert_allclose(found.log_probs, expected, atol=1e-6)
            assert found.num_oov == 0
    for with_ngram in (arpa, mix([run, arpa], WEIGHTS)):
        for ask in (with_ngram.score, with_ngram.score_words):
            with pytest.raises(UserError, match=r"bigram.arpa' is not a run, and only runs have a spelling model"):
                ask([], spell=True)
        with pytest.raises(UserError, match="is not a run"):
            with_ngram.refuse_spelling()


def test_probabilities_are_summed() -> None:
    (scores,) = mix([ONE, OTHER], [0.75, 0.25]).score_words([["a", "b", "c", "d"]])
    expected = [
        0.75 * 0.5 + 0.25 * 0.25,
        0.75 * 0.125 + 0.25 * 0.25,
        0.75 * 0.125 + 0.25 * 0.25,
        0.75 * 0.125 + 0.25 * 0.25,
        0.25,
    ]
    np.testing.assert_allclose(np.exp(scores.log_probs), expected)
    # A word is OOV where nobody knows it.
    assert scores.oov.tolist() == [False, False, False, True, False]


def test_weights_of_nothing_and_probabilities_of_nothing() -> None:
    def log_probs(weights: list[float], *probs: float) -> list[float]:
        components = [Unigram({"a": prob, "b": 0.0, "</s>": 0.5}) for prob in probs]
        return mix(components, weights).score_words([["a", "b"]]).log_prob_N.tolist()

    assert log_probs([1.0, 0.0], 1e-300, 1e-320) == pytest.approx([math.log(1e-300), -math.inf, math.log(0.5)])
    assert log_probs([0.5, 0.5], 0.0, 0.0) == pytest.approx([-math.inf, -math.inf, math.log(0.5)])
    expected = [math.log(0.5 * 1.1) + math.log(1e-300), -math.inf, math.log(0.5)]
    assert log_probs([0.5, 0.5], 1e-300, 1e-301) == pytest.approx(expected)


def test_one_way_to_read_text() -> None:
    runs = Normaliser(True, "words", "split")
    assert mix([ONE, OTHER], WEIGHTS).normaliser == ONE.normaliser
    assert mix([ONE, Unigram({}, runs)], WEIGHTS).normaliser == runs
    with pytest.raises(UserError, match="'x' and 'y' cut text into words in different ways"):
        mix([Unigram({}, runs, "x"), Unigram({}, Normaliser(False), "y")], WEIGHTS)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([1.0], "The mixture has 2 components but 1 weights"),
        ([0.5, 0.6], "The weights of the mixture are 0.5, 0.6: they must be from 0 to 1 and sum to 1"),
        ([1.5, -0.5], "they must be from 0 to 1"),
        ([float("nan"), 1.0], "they must be from 0 to 1"),
    ],
)
def test_refused_weights(weights: list[float], told: str) -> None:
    with pytest.raises(UserError, match=told):
        mix([ONE, OTHER], weights)


def test_what_a_mixture_refuses(mixture: Model, parts: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="The words are one string, 'w3 w4': give a list of words"):
        mixture.score_words(["w3 w4"])
    of_the_run = load(parts[0]).start()
    for state in ("x", of_the_run, (of_the_run,), ("x", "y")):
        with pytest.raises(UserError, match="give one that start or read of the same model returned"):
            mixture.rescore(["w3"], after=state)
    assert mixture.rescore(["w3"], after=mixture.read(mixture.start(), "w4"))
