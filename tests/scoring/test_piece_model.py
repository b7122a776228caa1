"""A run over pieces as a model of words: every number is a sum over pieces, however it is asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from small_corpus import END, UNK, small_model

from bnce import DecoderLanguageModel, Normaliser, Sampling, UserError
from bnce.corpus.piece_learning import learn_pieces
from bnce.corpus.pieces import PieceVocabulary
from bnce.corpus.vocabulary import Vocabulary
from bnce.scoring.mixture import MixtureModel
from bnce.scoring.piece_model import PieceModel
from bnce.spelling.model import SpellingModel

from .plain import plain_log_probs
from .unigram import Unigram

COUNTS = {"the": 9, "lower": 5, "lowest": 4, "newest": 6, "wide": 3}
TEXTS = ["the lower newest", "", "lowest zoo the", "naïve <unk> wider"]
both_modes = pytest.mark.parametrize("normalised", [False, True])
every_body = pytest.mark.parametrize("body", ["lstm", "ffnn", "transformer"])


def make_vocabulary(known: list[str] | None = None) -> PieceVocabulary:
    listed = None if known is None else Vocabulary(["</s>", "<unk>", *known])
    return learn_pieces(list(COUNTS), np.array(list(COUNTS.values())), 275, listed)


def make_model(body: str = "lstm", known: list[str] | None = None) -> PieceModel:
    vocabulary = make_vocabulary(known)
    network = small_model(body, vocab_size=len(vocabulary), order=3)
    return PieceModel(network, vocabulary, Normaliser(True, "whitespace", "lines"), name="pieces")


def by_hand(model: PieceModel, words: list[str], normalised: bool) -> list[float]:
    """Run the pieces through the network as they are, and sum up those of each word and of the end."""
    cut = [model.vocabulary.encode([word]).tolist() for word in words] + [[END]]
    log_probs = iter(plain_log_probs(model.network, [number for pieces in cut for number in pieces], normalised))
    return [sum(next(log_probs) for _ in pieces) for pieces in cut]


@both_modes
@every_body
def test_a_word_has_the_sum_of_its_pieces(body: str, normalised: bool) -> None:
    model = make_model(body)
    assert len(model.vocabulary.encode(["naïve"])) > 2
    sentences = [text.split() for text in TEXTS]
    for share_prefixes in (False, True):
        found = model.score_words(sentences, normalised=normalised, share_prefixes=share_prefixes)
        for words, scores in zip(sentences, found, strict=True):
            np.testing.assert_allclose(scores.log_probs, by_hand(model, words, normalised), atol=1e-4)
            assert scores.oov.tolist() == [word == "<unk>" for word in [*words, "</s>"]]
            assert len(scores.ngram_lengths) == len(words) + 1
    for text, scored in zip(TEXTS, model.score(TEXTS, normalised=normalised), strict=True):
        assert scored.words == [*text.split(), "</s>"]
        assert scored.ids == [int(model.vocabulary.encode([word])[0]) for word in scored.words]


def test_lengths_count_the_words_whose_pieces_are_seen() -> None:
    vocabulary = make_vocabulary()
    words = ["the", "naïve", "lower", "naïve", "the", "</s>"]
    numbers = [len(vocabulary.encode([word])) for word in words]
    for context in (2, 3, 5):
        network = small_model("transformer", vocab_size=len(vocabulary), context=context, num_layers=1)
        model = PieceModel(network, vocabulary, Normaliser(True, "whitespace", "lines"), name="pieces")
        assert model.max_context == context
        owners = [-1, *(place for place, number in enumerate(numbers) for _ in range(number))]
        begins = [1 + sum(numbers[:place]) for place in range(len(words))]
        expected = [place + 1 - owners[max(0, begin - context)] for place, begin in enumerate(begins)]
        (scores,) = model.score_words([words[:-1]], normalised=True)
        assert scores.ngram_lengths == expected
        assert [model.ngram_length(None, words[:at], words[at]) for at in range(len(words))] == expected


@both_modes
@every_body
def test_word_by_word_is_the_sentence(body: str, normalised: bool) -> None:
    model = make_model(body)
    words = ["lower", "naïve", "<unk>", "the", "</s>"]
    state, found = model.start(), []
    for word in words:
        found.append(float(model.next_log_probs(state, ["zoo", word, "lowest"], normalised=normalised)[1]))
        state = model.advance(state, word)
    np.testing.assert_allclose(found, by_hand(model, words[:-1], normalised), atol=1e-4)
    # The same state as after the whole sentence at once.
    after = model.read(model.start(), " ".join(words[:-1]))
    ways = [model.next_log_probs(one, ["the"], normalised=normalised) for one in (state, after)]
    np.testing.assert_allclose(*ways, atol=1e-4)


@both_modes
def test_sentences_after_others(normalised: bool) -> None:
    model = make_model()
    carried = model.score(TEXTS, normalised=normalised, carry=True)
    state = model.start()
    for text, scored in zip(TEXTS, carried, strict=True):
        (best,) = model.rescore([text], normalised=normalised, after=state)
        assert best.log_prob == pytest.approx(scored.log10_prob * math.log(10), abs=1e-3)
        state = model.read(state, text)


@both_modes
def test_next_words_are_the_likeliest_whole_words(normalised: bool) -> None:
    model = make_model()
    vocabulary = model.vocabulary
    prompt, state = "the lower", model.advance(model.advance(model.start(), "the"), "lower")

    def log_prob_of_a_start(state: object) -> float:
        every = model.scorer().score_all(state, normalised).double().numpy()  # type: ignore[arg-type]
        return float(np.logaddexp.reduce(every[vocabulary.starts_word]))

    found = model.next_words(prompt, 8, normalised=normalised)
    probs = [one.prob for one in found]
    assert probs == sorted(probs, reverse=True)
    assert len({one.word for one in found}) == 8
    # All words of one or two pieces, each with the chance that it ends there.
    begins = [piece for piece in range(2, len(vocabulary)) if vocabulary.starts_word[piece]]
    goes_on = np.flatnonzero(~vocabulary.starts_word).tolist()
    cut = [[piece] for piece in begins] + [[first, second] for first in begins[:20] for second in goes_on[:30]]
    whole = log_prob_of_a_start(state)
    expected = {"</s>": float(model.next_log_probs(state, ["</s>"], normalised=normalised)[0]) - whole}
    for pieces in cut:
        (word,) = vocabulary.spell(pieces)
        if vocabulary.encode([word]).tolist() == pieces:
            log_prob = float(model.next_log_probs(state, [word], normalised=normalised)[0])
            expected[word] = log_prob - whole + log_prob_of_a_start(model.advance(state, word))
    for one in found:
        if one.word in expected:
            assert one.prob == pytest.approx(math.exp(expected[one.word]), rel=1e-4)
    least = probs[-1]
    missed = [word for word, value in expected.items() if math.exp(value) > least * 1.0001]
    assert set(missed) <= {one.word for one in found}
    assert any(one.word in expected for one in found)


def test_texts_have_at_most_so_many_words() -> None:
    model = make_model()
    texts = model.generate("the lower", 20, max_words=3, sampling=Sampling(allow_unknown=True), seed=2)
    assert texts == model.generate("the lower", 20, max_words=3, sampling=Sampling(allow_unknown=True), seed=2)
    for text in texts:
        words = text.removesuffix(" …").split(" ")
        assert text.startswith("the lower")
        assert len(words) <= 5
        assert len(words) == 5 or not text.endswith(" …")
    assert any(text.endswith(" …") for text in texts)
    assert any(not text.startswith("the lower ") for text in texts)  # its last word went on


def test_words_that_are_not_known_are_unknown() -> None:
    model = make_model(known=["the", "lower"])
    (scored,) = model.score(["the lower newest"])
    assert scored.oov.tolist() == [False, False, True, False]
    assert model.vocabulary.encode(["newest"]).tolist() == [UNK]
    every = [one.word for one in model.next_words("the", 20)]
    assert sorted(every) == ["</s>", "lower", "the"], "<unk> is no word to propose"


def test_unknown_words_are_spelt_where_there_are_some() -> None:
    model = make_model(known=["the", "lower"])
    with pytest.raises(UserError, match=r"prepare the corpus again and train with it\.$"):
        model.score(["the newest"], spell=True)
    model.spelling = SpellingModel.train(["new", "newer", "newest"], np.array([3, 2, 1]))
    (plain,), (spelt,) = (model.score(["the newest"], spell=spell) for spell in (False, True))
    expected = plain.log10_probs + np.array([0, model.spelling.log_probs(["newest"])[0] / math.log(10), 0])
    np.testing.assert_allclose(spelt.log10_probs, expected)
    assert not spelt.oov.any()
    # Pieces spell every word by themselves.
    every = make_model()
    (plain,), (spelt,) = (every.score(["the newest"], spell=spell) for spell in (False, True))
    np.testing.assert_array_equal(plain.log10_probs, spelt.log10_probs)


def test_a_decoder_spells_any_word() -> None:
    model = make_model()
    adapter = DecoderLanguageModel(model, alpha=1.0, beta=0.0)
    assert adapter.score_partial_token("naï") == 0.0
    score, state = adapter.score(adapter.get_start_state(), "lower")
    last, _ = adapter.score(state, "naïve", is_last_word=True)
    assert score + last == pytest.approx(sum(by_hand(model, ["lower", "naïve"], False)), abs=1e-4)
    assert DecoderLanguageModel(make_model(known=["the"])).score_partial_token("naï") < 0


def test_pieces_and_words_are_mixed_word_by_word() -> None:
    model = make_model()
    words = Unigram({"the": 0.5, "lower": 0.3, "</s>": 0.2}, model.normaliser)
    mixture = MixtureModel([model, words], [0.6, 0.4])
    (mixed,), (one,), (other,) = (each.score(["the lower"], normalised=True) for each in (mixture, model, words))
    np.testing.assert_allclose(10**mixed.log10_probs, 0.6 * 10**one.log10_probs + 0.4 * 10**other.log10_probs)
    assert mixture.vocabulary == words.vocabulary
    assert mixture.next_words("the", 1)[0].word == "the"
    with pytest.raises(UserError, match="are runs over pieces"):
        MixtureModel([model, model], [0.5, 0.5]).next_words("the")
