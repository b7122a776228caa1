"""Positions of texts: as many as asked for, from all of every text, with the exact ln Z at each.

Legend: W windows, N positions, P places in a text, T time steps, B texts side by side, D hidden.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export.exported_runs import make_run
from small_corpus import END, VOCAB_SIZE, random_ids, small_model

from bnce import Corpus, UserError, calibrate
from bnce.editing.calibrate import (
    EVERY,
    KINDS,
    PER_WINDOW,
    Fit,
    Sample,
    _choose_windows,
    draw_sample,
    fit_head,
    fold,
    judge,
)
from bnce.evaluation.evaluate import evaluate, num_read_before
from bnce.evaluation.windows import WINDOW, in_context, read_windows
from bnce.machine.processes import World
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model


def draw(model: Any, *texts: np.ndarray, size: int = 10_000, with_hidden: bool = True) -> Sample:
    return draw_sample(model, texts, size, with_hidden=with_hidden)


@pytest.mark.parametrize("by_sentence", [False, True])
@pytest.mark.parametrize("body", ["lstm", "ffnn", "transformer"])
def test_of_a_short_text_every_position_counts(body: str, by_sentence: bool) -> None:
    """In context, or where every sentence starts afresh."""
    model, ids = small_model(body), random_ids(1500)
    sample = draw_sample(model, [ids], 10_000, with_hidden=True, by_sentence=by_sentence)
    result = evaluate(model, ids, by_sentence=by_sentence)
    whole = result.by_sentence if by_sentence else result
    assert whole is not None
    assert len(sample) == result.num_tokens == 1500
    assert sample.log_z_N.mean() == pytest.approx(whole.log_z_mean, rel=1e-9)
    assert sample.log_z_N.std() == pytest.approx(whole.log_z_std, rel=1e-6)
    assert np.exp(-(sample.score_N - sample.log_z_N).mean()) == pytest.approx(whole.ppl_f, rel=1e-9)
    with torch.no_grad():
        again_N = model.output.log_normaliser(torch.from_numpy(sample.hidden_ND).float())
    np.testing.assert_allclose(again_N.numpy(), sample.log_z_N, rtol=1e-5)


def test_of_a_long_text_passages_from_everywhere() -> None:
    # A text whose second half has other words: ln Z differs, and a sample from its beginning would not know.
    model = small_model("lstm")
    with torch.no_grad():
        model.output.weight.mul_(8)
    ids = np.concatenate([random_ids(8000) % 5, 20 + random_ids(8000) % 10])
    whole, sample = evaluate(model, ids), draw(model, ids, size=2000)
    assert len(sample) == 2000
    first, second = (evaluate(model, half).log_z_mean for half in np.split(ids, 2))
    assert abs(first - second) > 0.3
    assert sample.log_z_N.mean() == pytest.approx(whole.log_z_mean, abs=0.25 * abs(first - second))
    assert len(np.unique(sample.block_N)) == -(-2000 // PER_WINDOW)


@pytest.mark.parametrize("length", [3000, 20_000])
def test_words_have_as_much_before_them_as_where_a_text_is_evaluated(length: int) -> None:
    # A network that counts: ln Z(context) grows by every word that it has read since it began.
    model = small_model("rnn")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.body.cell.weight_hh_l0[0, 0] = 1.0
        model.body.cell.bias_hh_l0[0] = 0.001
        model.output.weight[:, 0] = 12.0
    ids = random_ids(length)
    whole, sample = evaluate(model, ids), draw(model, ids, size=640)
    assert whole.log_z_std > 0.2
    assert sample.log_z_N.mean() == pytest.approx(whole.log_z_mean, abs=0.02)
    assert sample.log_z_N.std() == pytest.approx(whole.log_z_std, rel=0.1)  # only the whole has the first words


@pytest.mark.parametrize("lengths", [(4000, 400), (130, 90), (3000,), (200, 2, 5000)])
@pytest.mark.parametrize("size", [100, 150, 1000])
def test_texts_share_the_positions_by_their_lengths(lengths: tuple[int, ...], size: int) -> None:
    model = small_model("transformer", context=600)
    texts = [np.full(length, 3 + number) for number, length in enumerate(lengths)]
    sample = draw(model, *texts, size=size)
    assert len(sample) == min(size, sum(lengths))
    assert len(sample.hidden_ND) == len(sample.score_N) == len(sample)
    without = draw(model, *texts, size=size, with_hidden=False)
    assert without.hidden_ND.shape == (len(sample), 0)
    np.testing.assert_array_equal(without.log_z_N, sample.log_z_N)
    # Every fourth block of at least sixteen can be held out.
    assert sample.block_N.max() >= 15


def test_too_little_and_broken_are_refused() -> None:
    model = small_model("lstm")
    with pytest.raises(UserError, match=r"There are 99 words to calibrate on, and 100 are needed: give more text\."):
        draw(model, random_ids(99))
    with pytest.raises(UserError, match="There are 10 words"):
        draw(model, random_ids(500), size=10)
    with torch.no_grad():
        model.output.bias[VOCAB_SIZE - 1] = torch.nan
    with pytest.raises(UserError, match="is not finite at some positions"):
        draw(model, random_ids(500))


def test_progress_goes_up_to_the_end() -> None:
    told: list[tuple[int, int]] = []
    draw_sample(
        small_model("lstm"),
        [random_ids(5000)],
        700,
        with_hidden=False,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (700, 700)
    assert told == sorted(told)


@pytest.mark.parametrize("with_ends", [True, False])
def test_some_sentences_from_everywhere(with_ends: bool) -> None:
    model = small_model("lstm")
    with torch.no_grad():
        model.output.weight.mul_(8)
    ids = np.concatenate([2 + random_ids(8000) % 5, 20 + random_ids(8000) % 10])
    if with_ends:
        ids[6::7] = END
    sample = draw_sample(model, [ids], 1003, with_hidden=True, by_sentence=True)
    assert len(sample) == 1003
    if with_ends:
        whole = evaluate(model, ids, by_sentence=True).by_sentence
        assert whole is not None
        first = evaluate(model, ids[:7000], by_sentence=True).by_sentence
        assert first is not None
        drift = abs(first.log_z_mean - whole.log_z_mean)
        assert drift > 0.05
        assert sample.log_z_N.mean() == pytest.approx(whole.log_z_mean, abs=0.5 * drift)


@pytest.mark.parametrize("kind", ["constant", "head"])
def test_a_command_tells_of_positions_that_were_held_out(tmp_path: Path, kind: str) -> None:
    run = make_run(tmp_path, "lstm").path
    result = calibrate(run, kind=kind, out=tmp_path / "new")
    ids = Corpus.open(tmp_path / "corpus").split("valid")
    fitted, held_out = draw(load_model(Run.open(run)), ids).split(3)
    fit = KINDS[kind]
    assert result.num_held_out == len(held_out)
    assert result.after == judge(held_out, fit(fitted))
    assert result.before == judge(held_out, Fit(9.0))


def test_a_network_in_memory_is_given_what_was_fitted() -> None:
    model, ids = small_model("lstm", "softmax"), random_ids(500)
    before = evaluate(model, ids)
    fold(model, fit_head(draw(model, ids)))
    after = evaluate(model, ids)
    assert before.ppl_n is None
    assert after.ppl_n == pytest.approx(before.ppl_f, rel=1e-5)


@pytest.mark.parametrize("body", ["lstm", "ffnn", "transformer"])
@torch.no_grad()
def test_some_windows_are_spread_and_see_what_is_before_them(body: str) -> None:
    model, ids = small_model(body).eval(), random_ids(4000)
    before = num_read_before(model)
    read = list(read_windows(model, _choose_windows(model, ids, 5 * PER_WINDOW, False), World()))
    position_N = torch.cat([part.position_N for part in read]).numpy()
    assert sum(part.num_scored for part in read) == len(position_N) == len(np.unique(position_N)) == 5 * PER_WINDOW
    start_W = np.linspace(0, 4000 - before - WINDOW, 5).astype(int)
    assert position_N.min() == before
    assert position_N.max() > start_W[-1] + before + WINDOW - 2 * EVERY, "no part of the text is left out"
    hidden_ND = torch.cat([part.hidden_ND for part in read])
    assert torch.cat([part.target_N for part in read]).tolist() == ids[position_N].tolist()
    depths = set()
    for place in range(0, len(position_N), 11):
        # The start of its window is where reading begins.
        begin = int(start_W[start_W + before <= position_N[place]].max())
        depths.add((position_N[place] - begin - before) // 128)
        words = [
            *[END] * max(0, model.num_context + 1 - begin),
            *ids[max(0, begin - 1 - model.num_context) : position_N[place]],
        ]
        plain_TBD, _ = model(torch.tensor(np.array(words)).unsqueeze(1), model.initial_state(1))
        torch.testing.assert_close(hidden_ND[place], plain_TBD[-1, 0], atol=1e-5, rtol=1e-4)
    assert depths == {0, 1, 2, 3}, "words near the start of a window and near its end"


@torch.no_grad()
def test_only_some_positions_of_a_text_are_scored() -> None:
    model, ids = small_model("lstm").eval(), random_ids(1400)
    whole, some = (
        list(read_windows(model, parts, World()))
        for parts in (in_context(ids, 3, 0, num_read_before(model)), _choose_windows(model, ids, 100, False))
    )
    position_N = torch.cat([part.position_N for part in some])
    assert sorted(position_N.tolist()) == np.linspace(0, 1399, 100).astype(int).tolist()
    all_N = torch.cat([part.position_N for part in whole])
    expected_PD = torch.empty(1400, model.output.hidden_size)
    expected_PD[all_N] = torch.cat([part.hidden_ND for part in whole])
    torch.testing.assert_close(torch.cat([part.hidden_ND for part in some]), expected_PD[position_N])
