"""Validation decides the learning rate and the best model, so the windows that it reads are part of training.

Its figures are held to the bit: other windows, another order of sums or another type would train other models.

Legend: T time steps, B windows side by side, C context words of an n-gram body, L = C + T.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_corpus import END, random_ids, trained_model, write_corpus
from torch import Tensor

import bnce

WINDOW, BEFORE, STEPS, SIDE_BY_SIDE = 512, 64, 64, 16
NUM_VALID = 19 * WINDOW + 7  # two groups of windows, and a last window that ends early
SMALL = {
    "model.embedding_size": 6,
    "model.hidden_size": 6,
    "training.batch_size": 8,
    "training.num_steps": 5,
    "training.epochs": 1,
    "training.max_valid_tokens": NUM_VALID,
}


def scores(model: Any, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Give the score of every word and ln Z(context), in float64, in the order of the text, in which they are added up.

    Windows begin every 512 words and read 64 words before those that they score; the first one scores these, too.
    Sixteen windows are read side by side, 64 words at a time, and what is beyond the text is padding.
    """
    num_context, found_scores, found_log_z, found_places = model.num_context, [], [], []

    def word(place: int) -> int:
        return ids[place] if 0 <= place < len(ids) else END

    def counts(start: int, place: int) -> bool:
        return place < len(ids) and (place >= start + BEFORE or start == 0)

    starts = range(0, max(1, len(ids) - BEFORE), WINDOW)
    for first in range(0, len(starts), SIDE_BY_SIDE):
        group = starts[first : first + SIDE_BY_SIDE]
        state = model.initial_state(len(group))
        num_steps = min(BEFORE + WINDOW, len(ids) - group[0])
        for step in range(0, num_steps, STEPS):
            steps = range(step, min(step + STEPS, num_steps))
            places = [[start + place for start in group] for place in steps]
            read = [[word(start + place - 1) for start in group] for place in range(step - num_context, steps.stop)]
            hidden_TBD, state = model(torch.tensor(read), state)
            counts_TB = torch.tensor([[counts(*one) for one in zip(group, row, strict=True)] for row in places])
            target_TB = torch.tensor([[word(place) for place in row] for row in places])
            found_places.append(torch.tensor(places)[counts_TB])
            log_z_N, score_N = model.output.normalise(hidden_TBD[counts_TB], target_TB[counts_TB])
            found_scores.append(score_N.double())
            found_log_z.append(log_z_N.double())
    order_N = torch.cat(found_places).argsort()
    return torch.cat(found_scores)[order_N], torch.cat(found_log_z)[order_N]


@pytest.mark.parametrize("body", ["ffnn", "rnn", "relu-lstm", "transformer"])
def test_validation_in_training_is_that_of_plain_windows_to_the_bit(body: str, tmp_path: Path) -> None:
    valid = random_ids(NUM_VALID + 100, seed=7)
    corpus = write_corpus(tmp_path / "corpus", {"train": random_ids(2000), "valid": valid, "test": random_ids(50)})
    run = tmp_path / "run"
    sizes = {"model.bottleneck_size": 5} if hasattr(bnce.MODELS[body], "bottleneck_size") else {}
    settings = {**SMALL, **sizes}
    bnce.train("wiki", corpus=corpus, out=run, model=body, loss="bnce", settings=settings, device="cpu")
    record = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    model = trained_model(run)
    with torch.no_grad():
        score_N, log_z_N = scores(model, valid[:NUM_VALID].tolist())
    assert len(score_N) == NUM_VALID
    assert record["ppl_f"] == math.exp(-float((score_N - log_z_N).sum()) / NUM_VALID)
    assert record["ppl_n"] == math.exp(-float((score_N - 9.0).sum()) / NUM_VALID)
    assert record["log_z_mean"] == float(log_z_N.mean())
    assert record["log_z_std"] == float(log_z_N.std(correction=0))
    evaluated = bnce.evaluate(run, split="valid", max_words=NUM_VALID, device="cpu", by_sentence=False)
    assert (evaluated.ppl_f, evaluated.ppl_n) == (record["ppl_f"], record["ppl_n"])
