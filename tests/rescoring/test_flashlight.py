"""The adapter against flashlight's own beam search where it is installed, and against its documented interface."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import pytest
from small_corpus import END, UNK, small_model

from bnce import Model, Normaliser, UserError, ctc_decoder_lm
from tests.scoring.models import HEARD, run_model
from tests.scoring.plain import plain_log_probs

# As a lexicon has them, in an order of its own.
WORDS = ["WORLD", "HELLO", "ZEBRA", "HELP", "<unk>"]


class LMState:
    """A state as the documentation has it: a node of a tree that gives the same child for the same number."""

    def __init__(self) -> None:
        self.children: dict[int, LMState] = {}

    def child(self, usr_index: int) -> LMState:
        return self.children.setdefault(usr_index, LMState())


class LM:
    """The abstract class."""


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("torchaudio.models.decoder")
    module.CTCDecoderLM, module.CTCDecoderLMState = LM, LMState
    for name in ("torchaudio", "torchaudio.models"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "torchaudio.models.decoder", module)


@pytest.fixture(scope="module")
def model() -> Model:
    return run_model(small_model("lstm"), HEARD, Normaliser(True, "words", "lines"))


@pytest.mark.usefixtures("documented")
@pytest.mark.parametrize("mode", ["unnormalised", "normalised"])
def test_a_sentence_in_steps_is_the_sentence(model: Model, mode: Any) -> None:
    lm = ctc_decoder_lm(model, WORDS, unk_score=-3.0, mode=mode)
    assert isinstance(lm, LM)
    state = lm.start(False)
    scores = []
    for number in (1, 0, 2, 3):
        # Other words are tried from the same state, as a beam search does.
        lm.score(state, 3 - number)
        state, score = lm.score(state, number)
        scores.append(score)
    after, score = lm.finish(state)
    expected = plain_log_probs(model.network, [2, 4, UNK, 3, END], mode == "normalised") / math.log(10)
    expected[2] -= 3.0
    assert [*scores, score] == pytest.approx(expected.tolist(), abs=1e-4)
    assert after is not state


@pytest.mark.usefixtures("documented")
def test_the_same_history_is_the_same_state(model: Model) -> None:
    lm = ctc_decoder_lm(model, WORDS)
    start = lm.start(False)
    assert lm.score(start, 1)[0] is lm.score(start, 1)[0]
    assert lm.score(start, 1)[0] is not lm.score(start, 0)[0]
    assert len(lm.steps) == 3
    lm.start(False)
    assert len(lm.steps) == 1


@pytest.mark.usefixtures("documented")
def test_words_that_are_not_the_lexicons(model: Model) -> None:
    lm = ctc_decoder_lm(model, WORDS)
    with pytest.raises(UserError, match="asked for word 5, but its list has 5"):
        lm.score(lm.start(False), 5)
    with pytest.raises(UserError, match="decoder's words is empty"):
        ctc_decoder_lm(model, [])
    assert lm.score(lm.start(False), 4)[1] == pytest.approx(lm.score(lm.start(False), 2)[1])


@pytest.mark.usefixtures("documented")
def test_states_of_no_sentence_and_of_another(model: Model) -> None:
    lm = ctc_decoder_lm(model, WORDS)
    earlier = lm.start(False)
    lm.start(False)
    for ask in (lambda: lm.score(None, 1), lambda: lm.finish(None)):
        with pytest.raises(
            UserError, match=r"^The state is None, which does not belong to this sentence: give a state"
        ):
            ask()
    with pytest.raises(UserError, match="which does not belong to this sentence"):
        lm.score(earlier, 1)


def test_without_a_decoder(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchaudio.models.decoder", "flashlight.lib.text.decoder"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match="pip install flashlight-text"):
        ctc_decoder_lm(model, WORDS)


def test_flashlight_finds_what_the_model_prefers(model: Model) -> None:
    """Emissions that leave open which of two words was said: the language model decides."""
    decoder = pytest.importorskip("flashlight.lib.text.decoder")
    dictionary = pytest.importorskip("flashlight.lib.text.dictionary")
    import numpy as np

    tokens = dictionary.Dictionary(["a", "b", "c", "|", "#"])
    words, spellings = ["hello", "help", "world"], ["a|", "b|", "c|"]
    lm = ctc_decoder_lm(model, [*words, "<unk>"])
    trie = decoder.Trie(tokens.index_size(), tokens.get_index("|"))
    for number, spelling in enumerate(spellings):
        _, score = lm.score(lm.start(False), number)
        trie.insert([tokens.get_index(letter) for letter in spelling], number, score)
    trie.smear(decoder.SmearingMode.MAX)
    options = decoder.LexiconDecoderOptions(
        beam_size=50,
        beam_size_token=5,
        beam_threshold=1000.0,
        lm_weight=1.0,
        word_score=0.0,
        unk_score=-math.inf,
        sil_score=0.0,
        log_add=False,
        criterion_type=decoder.CriterionType.CTC,
    )
    beam = decoder.LexiconDecoder(options, trie, lm, tokens.get_index("|"), tokens.get_index("#"), 3, [], False)
    # One of the first two words, an end of word, then the third.
    emissions = np.full((4, 5), -50.0, dtype=np.float32)
    emissions[0, :2] = 0.0
    emissions[1, 3] = emissions[2, 2] = emissions[3, 3] = 0.0
    found = beam.decode(emissions.ctypes.data, *emissions.shape)[0]
    chosen = [words[number] for number in found.words if number >= 0]
    totals = {word: model.score([f"{word} world"])[0].log_prob / math.log(10) for word in words[:2]}
    assert chosen == [max(totals, key=totals.__getitem__), "world"]
