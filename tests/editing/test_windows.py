"""Windows out of a text: spread over all of it, some words of each, and with the words before them read.

Legend: L context and steps, B windows, D hidden, N positions.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_corpus import END, random_ids, small_model

from bnce.editing.calibrate import EVERY, PER_WINDOW, _choose_windows
from bnce.evaluation.evaluate import num_read_before
from bnce.evaluation.windows import WINDOW, in_context, read_windows
from bnce.machine.processes import World


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
