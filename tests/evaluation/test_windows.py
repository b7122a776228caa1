"""Passages out of a text: spread over all of it, each word once, and with the words before it read.

Legend: L context and steps, B windows, D hidden, N positions.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_corpus import random_ids, small_model

from bnce.corpus.vocabulary import END
from bnce.evaluation.evaluate import num_read_before
from bnce.evaluation.windows import in_passages, read_windows
from bnce.machine.world import World


@pytest.mark.parametrize("body", ["lstm", "ffnn", "transformer"])
@torch.no_grad()
def test_passages_are_spread_and_see_what_is_before_them(body: str) -> None:
    model, ids = small_model(body).eval(), random_ids(3000)
    before = num_read_before(model)
    parts = in_passages(ids, 20, 7, 6, model.num_context, before)
    read = list(read_windows(model, parts, World()))
    position_N = torch.cat([part.position_N for part in read]).numpy()
    assert sum(part.num_scored for part in read) == len(position_N) == len(np.unique(position_N)) == 140
    assert position_N.min() == before
    assert position_N.max() == 2999
    assert np.diff(np.unique(position_N)).max() < 3000 / 15, "no part of the text is left out"
    hidden_ND = torch.cat([part.hidden_ND for part in read])
    assert torch.cat([part.target_N for part in read]).tolist() == ids[position_N].tolist()
    for place in (0, 70, 139):
        # The start of its window is where reading begins.
        first = next(
            start for start in np.linspace(0, 2993 - before, 20).astype(int) + before if start + 7 > position_N[place]
        )
        begin = first - before
        words = [
            *[END] * max(0, model.num_context + 1 - begin),
            *ids[max(0, begin - 1 - model.num_context) : position_N[place]],
        ]
        plain_TBD, _ = model(torch.tensor(np.array(words)).unsqueeze(1), model.initial_state(1))
        torch.testing.assert_close(hidden_ND[place], plain_TBD[-1, 0], atol=1e-5, rtol=1e-4)
