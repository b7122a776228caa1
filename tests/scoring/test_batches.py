"""Many sentences at once: each as if it were alone, whatever runs beside it; or one stream; and the check of Z."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_corpus import END, VOCAB_SIZE, random_ids, small_model

from bnce import UserError
from bnce.evaluation.evaluate import CONTEXT, WINDOW, evaluate
from bnce.language_model import LanguageModel
from bnce.scoring import batches as score_module
from bnce.scoring.batches import SentenceScorer
from bnce.scoring.engine import engine_of

from .plain import BODIES, model_of, plain_log_probs, plain_scores

LENGTHS = [3, 0, 11, 1, 7, 7, 2, 25]


def sentences(lengths: list[int] = LENGTHS) -> list[np.ndarray]:
    """Make sentences of these many words, and an end each."""
    return [np.append(random_ids(length, seed=length + place), END) for place, length in enumerate(lengths)]


def small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make groups and passes so small that sentences are cut in time and stand in several groups."""
    monkeypatch.setattr("bnce.scoring.torch_engine.PARALLEL", {"cpu": 3})
    monkeypatch.setattr("bnce.scoring.torch_engine.PASS_WORDS", {"cpu": 7})
    monkeypatch.setattr(score_module, "TREE_SEQUENCES", 3)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_equals_each_sentence_alone(monkeypatch: pytest.MonkeyPatch, body: str, normalised: bool) -> None:
    model, texts = model_of(body), sentences()
    expected = [plain_log_probs(model, text.tolist(), normalised) for text in texts]
    for cut in (False, True):
        if cut:
            small_passes(monkeypatch)
        for num_checked in (None,) if normalised else (None, 9):
            found = SentenceScorer(model, normalised=normalised, num_checked=num_checked).score(texts)
            assert len(found) == len(texts)
            for scores, alone in zip(found, expected, strict=True):
                np.testing.assert_allclose(scores, alone, atol=1e-5)


@pytest.mark.parametrize("body", ["ffnn", "rnn", "relu-lstm", "relu-lstm 2", "transformer 2"])
def test_carried_over_is_one_stream(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setattr("bnce.scoring.torch_engine.PASS_WORDS", {"cpu": 7})
    model, texts = model_of(body), sentences([3, 0, 9, 1])
    scorer = SentenceScorer(model, carry=True)
    # In two calls: the stream goes on across them.
    found = scorer.score(texts[:2]) + scorer.score([]) + scorer.score(texts[2:])
    before: list[int] = []
    for scores, text in zip(found, texts, strict=True):
        np.testing.assert_allclose(scores, plain_log_probs(model, text.tolist(), before=before), atol=1e-5)
        before += text.tolist()


@pytest.mark.parametrize("least", [1, 10**6])
@pytest.mark.parametrize("normalised", [False, True])
def test_a_tree_of_short_sentences_and_groups_of_long_ones(
    monkeypatch: pytest.MonkeyPatch, least: int, normalised: bool
) -> None:
    """Whichever way a sentence goes, its scores are the same; equal beginnings are read once."""
    monkeypatch.setattr(score_module, "MIN_TREE_SENTENCES", least)
    monkeypatch.setattr(score_module, "MAX_TREE_WORDS", 5)
    model, texts = small_model("relu-lstm"), sentences([3, 9, 0, 5, 6, 2])
    texts += [texts[0], texts[0][:2], texts[1]]
    steps: list[int] = []
    branch = model.body.branch

    def watch(*given: torch.Tensor) -> object:
        steps.append(len(given[1]))
        return branch(*given)

    monkeypatch.setattr(model.body, "branch", watch)
    found = SentenceScorer(model, normalised=normalised).score(texts)
    for scores, text in zip(found, texts, strict=True):
        np.testing.assert_allclose(scores, plain_log_probs(model, text.tolist(), normalised), atol=1e-5)
    short = {tuple(text[:end]) for text in texts if len(text) <= 5 for end in range(1, len(text))}
    assert sum(steps) == (len(short) if least == 1 else 0)


def test_the_whole_output_layer_is_read_for_many_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read for each depth of a tree, it took twice as long."""
    model, texts = model_of("relu-lstm"), sentences([9] * 20)
    engine = engine_of(model)
    num_rows: list[int] = []
    plain = engine.log_normaliser

    def count(hidden_ND: torch.Tensor) -> torch.Tensor:
        num_rows.append(len(hidden_ND))
        found: torch.Tensor = plain(hidden_ND)
        return found

    monkeypatch.setattr(engine, "log_normaliser", count)
    whole = SentenceScorer(engine, normalised=True).score(texts)
    assert len(num_rows) == 1
    monkeypatch.setattr(score_module, "MIN_ROWS", 1)
    for one, other in zip(whole, SentenceScorer(engine, normalised=True).score(texts), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert len(num_rows) > 5


@pytest.mark.parametrize("body", ["lstm", "transformer 2"])
def test_reset_forgets_and_carry_does_not(body: str) -> None:
    model, texts = model_of(body), sentences([5, 5])
    apart = SentenceScorer(model).score(texts)
    carried = SentenceScorer(model, carry=True).score(texts)
    np.testing.assert_allclose(apart[0], carried[0], atol=1e-6)
    assert np.abs(apart[1] - carried[1]).max() > 1e-3


def test_a_sentence_much_longer_than_the_others_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding the short ones to its length would take memory without bound."""
    monkeypatch.setattr(score_module, "GROUP_WORDS", 64)
    widths: list[tuple[int, int]] = []
    plain = SentenceScorer._score_group

    def watch(self: SentenceScorer, word_LB: torch.Tensor, length_B: torch.Tensor) -> np.ndarray:
        widths.append((len(word_LB), len(length_B)))
        return plain(self, word_LB, length_B)

    monkeypatch.setattr(SentenceScorer, "_score_group", watch)
    model, texts = small_model("ffnn"), sentences([200, *[3] * 20])
    found = SentenceScorer(model).score(texts)
    before = model.num_context
    assert widths == [(202 + before, 1), (5 + before, 16), (5 + before, 4)]
    np.testing.assert_allclose(found[7], plain_log_probs(model, texts[7].tolist()), atol=1e-5)


def test_unnormalised_reads_no_other_rows() -> None:
    model = small_model("relu-lstm")
    with torch.no_grad():
        model.output.weight[10:] = torch.nan
    assert np.isfinite(SentenceScorer(model).score([np.array([3, 9, END])])[0]).all()


def test_nothing_to_score() -> None:
    scorer = SentenceScorer(small_model("lstm"))
    assert scorer.score([]) == []
    (empty, one) = scorer.score([[], [END]])
    assert (len(empty), len(one)) == (0, 1)


def exact_log_z(model: LanguageModel, texts: list[np.ndarray]) -> np.ndarray:
    """Compute ln Z(context) at every position."""
    histories = [text[:place].tolist() for text in texts for place in range(len(text))]
    return np.array([float(torch.logsumexp(plain_scores(model, history), 0)) for history in histories])


def test_the_check_of_every_position_is_exact() -> None:
    model, texts = small_model("lstm"), sentences()
    scorer = SentenceScorer(model, num_checked=10**6)
    scorer.score(texts[:3])
    scorer.score(texts[3:])
    check, log_z_N = scorer.check(), exact_log_z(model, texts)
    assert check is not None
    assert check.num_positions == len(log_z_N)
    assert check.log_z == 9.0
    assert check.log_z_mean == pytest.approx(log_z_N.mean(), abs=1e-5)
    assert check.log_z_std == pytest.approx(log_z_N.std(), abs=1e-5)
    assert check.mean_difference == pytest.approx((log_z_N - 9.0).mean(), abs=1e-5)
    assert check.max_difference == pytest.approx(np.abs(log_z_N - 9.0).max(), abs=1e-5)


def test_the_sample_is_fair_and_of_its_size() -> None:
    """Positions early and late in a text have the same chance, whatever blocks they come in."""
    engine = engine_of(small_model())
    seen = np.zeros(100)
    for seed in range(400):
        sample = score_module._Sample(20, seed)
        for begin, end in ((0, 5), (5, 60), (60, 100)):
            sample.add(engine, torch.arange(100).float().unsqueeze(1), np.arange(begin, end))
        assert sample.hidden_ND is not None
        chosen = sample.hidden_ND[:, 0].long().numpy()
        assert len(set(chosen.tolist())) == 20
        seen[chosen] += 1
    # Each is drawn 80 times of 400, with a standard deviation of 8; five of those are not seen by chance.
    assert np.abs(seen - 80).max() < 40
    assert abs(seen[:50].sum() - seen[50:].sum()) < 400


def test_a_check_of_nothing_has_no_numbers() -> None:
    check = SentenceScorer(small_model("lstm"), num_checked=5).check()
    assert check is not None
    assert check.num_positions == 0
    assert np.isnan(check.log_z_mean)


def test_what_cannot_be_is_refused() -> None:
    model = small_model("lstm")
    with pytest.raises(UserError, match="The number of positions to check is 0"):
        SentenceScorer(model, num_checked=0)
    assert SentenceScorer(model).check() is None
    for wrong in (-1, VOCAB_SIZE):
        for carry in (False, True):
            with pytest.raises(UserError, match=f"but the vocabulary has ids from 0 to {VOCAB_SIZE - 1}"):
                SentenceScorer(model, carry=carry).score([[3, END], [wrong, END]])
    softmax = small_model("lstm", loss="softmax")
    for options in ({}, {"num_checked": 5}, {"normalised": True, "num_checked": 5}):
        with pytest.raises(UserError, match="has no constant Z: use normalised probabilities"):
            SentenceScorer(softmax, **options)
    text = random_ids(4).tolist()
    (found,) = SentenceScorer(softmax, normalised=True).score([text])
    np.testing.assert_allclose(found, plain_log_probs(softmax, text, True), atol=1e-5)


def long_memory_model() -> LanguageModel:
    """Make a model whose cells forget next to nothing, so that words far back count."""
    model = small_model("lstm").eval()
    with torch.no_grad():
        for name, bias in model.body.named_parameters():
            if "bias_ih" in name:
                bias[len(bias) // 4 : len(bias) // 2] = 8.0
    return model


@pytest.mark.parametrize("body", ["ffnn", "lstm", "transformer"])
def test_sentence_by_sentence_equals_evaluate(body: str) -> None:
    model, ids = small_model(body).eval(), np.append(random_ids(900), END)
    sentences = np.split(ids, np.flatnonzero(ids == END)[:-1] + 1)
    found = evaluate(model, ids, by_sentence=True).by_sentence
    assert found is not None
    for normalised, expected in ((False, found.ppl_n), (True, found.ppl_f)):
        scored = np.concatenate(SentenceScorer(model, normalised=normalised).score(sentences))
        assert np.exp(-scored.mean()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("body", ["ffnn", "lstm"])
def test_carried_over_equals_evaluate_up_to_its_first_window(body: str) -> None:
    """Of a text of several thousand tokens evaluate reads windows: equal for an n-gram, less context for a state."""
    model = small_model(body, order=4).eval() if body == "ffnn" else long_memory_model()
    ids = random_ids(4000)
    (carried,) = SentenceScorer(model, carry=True).score([ids])
    for num_tokens in (1, 300, CONTEXT + WINDOW):
        ppl = np.exp(-carried[:num_tokens].mean())
        assert evaluate(model, ids[:num_tokens]).ppl_n == pytest.approx(ppl, rel=1e-5)
    evaluated = evaluate(model, ids)
    if body == "ffnn":
        assert evaluated.ppl_n == pytest.approx(np.exp(-carried.mean()), rel=1e-5)
        assert evaluated.min_context == evaluated.max_context == 3
        return
    assert evaluated.ppl_n != pytest.approx(np.exp(-carried.mean()), rel=1e-5)
    # A later word sees its window alone, from the word before it on: 65 to 576 words.
    assert (evaluated.min_context, evaluated.max_context) == (CONTEXT + 1, CONTEXT + WINDOW)
    pieces = [carried[: CONTEXT + WINDOW]]
    for begin in range(WINDOW, len(ids) - CONTEXT, WINDOW):
        part = torch.from_numpy(ids[begin - 1 : begin + WINDOW + CONTEXT])
        with torch.no_grad():
            hidden_TBD, _ = model(part[:-1].unsqueeze(1), model.initial_state(1))
            score_N = model.output.scores(hidden_TBD[:, 0], part[1:].unsqueeze(1)).squeeze(1) - model.output.log_z
        pieces.append(score_N[CONTEXT:].double().numpy())
    whole = np.concatenate(pieces)
    assert len(whole) == len(ids)
    assert evaluated.ppl_n == pytest.approx(np.exp(-whole.mean()), rel=1e-5)
