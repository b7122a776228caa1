"""Documents in streams: each gets what it gets alone, whatever is before it, beside it and behind it."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import deque
from functools import cache

import numpy as np
import pytest
from small_corpus import END, VOCAB_SIZE, random_ids, score_all, small_model

from bnce import MODELS, UserError
from bnce.filtering import streams
from bnce.filtering.streams import StreamScorer
from bnce.language_model import LanguageModel
from bnce.scoring.batches import SentenceScorer


def make_documents(lengths: list[int]) -> list[np.ndarray]:
    documents = [random_ids(length, seed=length + 1) for length in lengths]
    for one in documents:
        one[-1] = END
    return documents


# Of one word, of a chunk's length and around it, of several windows, and many short ones.
LENGTHS = [1, 31, 32, 33, 128, 129, 400, 2, 5, 64, 96, *range(3, 40, 3), 1, 1, 260, 127]


@cache
def alone_of(body: str, normalised: bool) -> np.ndarray:
    """Give what the documents of these tests get alone."""
    return alone(make_model(body), make_documents(LENGTHS), normalised)


def make_model(body: str) -> LanguageModel:
    return small_model(body, order=4, num_layers=0, num_heads=2).eval()


def alone(model: LanguageModel, documents: list[np.ndarray], normalised: bool) -> np.ndarray:
    scorer = SentenceScorer(model, normalised=normalised, carry=True)
    found = []
    for one in documents:
        scorer.begin_document()
        found.append(float(scorer.score([one])[0].sum()))
    return np.array(found)


@pytest.mark.parametrize("num_streams", [1, 5, 64])
@pytest.mark.parametrize("body", MODELS)
def test_a_document_gets_what_it_gets_alone(body: str, num_streams: int) -> None:
    model, documents = make_model(body), make_documents(LENGTHS)
    for normalised, aligned in itertools.product((False, True), (None, False)):  # as on a CPU, and as on a GPU
        scorer = StreamScorer(model, normalised=normalised, num_streams=num_streams, num_steps=32, aligned=aligned)
        assert scorer.aligned == (body == "transformer" or (aligned is None and body != "ffnn"))
        expected = alone_of(body, normalised)
        np.testing.assert_allclose(score_all(scorer, documents), expected, rtol=2e-5)
        # A scorer serves one list after another, and nothing of the last one is left.
        np.testing.assert_allclose(score_all(scorer, documents[::-1]), expected[::-1], rtol=2e-5)


def test_the_same_list_gives_the_same_numbers() -> None:
    model, documents = small_model("relu-lstm").eval(), make_documents(LENGTHS)
    found = [score_all(StreamScorer(model, num_streams=7), documents).tobytes() for _ in range(2)]
    assert found[0] == found[1]


def test_a_scorer_is_gone_at_once() -> None:
    # Its graphs must not wait for the garbage collector: to destroy one while another is captured ends that.
    scorer = StreamScorer(small_model("lstm"), num_streams=3, num_steps=4)
    score_all(scorer, [random_ids(9)])
    gone, chunk = weakref.ref(scorer), weakref.ref(next(iter(scorer._chunks.values())))
    gc.disable()
    try:
        del scorer
        assert gone() is None
        assert chunk() is None
    finally:
        gc.enable()


def test_documents_may_come_late() -> None:
    """Where there is none for now, streams go on with what they have, and take more later."""
    model, documents = small_model("lstm").eval(), make_documents(LENGTHS)
    left, found, num_asked = deque(enumerate(documents)), {}, 0

    def take() -> tuple[int, np.ndarray] | None:
        nonlocal num_asked
        num_asked += 1
        return left.popleft() if left and num_asked % 3 else None

    def done(numbers: np.ndarray, sums: np.ndarray) -> None:
        found.update(zip(numbers.tolist(), sums.tolist(), strict=True))

    scorer = StreamScorer(model, num_streams=6, aligned=False)
    while left:
        scorer.score(take, done)
    np.testing.assert_allclose([found[n] for n in range(len(documents))], alone(model, documents, False), rtol=2e-5)


@pytest.mark.parametrize("body", ["lstm", "ffnn", "transformer"])
def test_widths_of_a_gpu(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few fixed widths, wider than they need be: what is beside the documents does not matter."""
    model, documents = make_model(body), make_documents(LENGTHS)
    monkeypatch.setattr(StreamScorer, "width", lambda self, number: next(n for n in (2, 8, 32) if n >= number))
    monkeypatch.setattr(streams, "CHUNKS", 1)
    found = score_all(StreamScorer(model, num_streams=32, aligned=False), documents)
    np.testing.assert_allclose(found, alone_of(body, False), rtol=2e-5)


def test_what_is_refused() -> None:
    with pytest.raises(UserError, match="has no constant Z"):
        StreamScorer(small_model(loss="softmax"))
    with pytest.raises(UserError, match="The precision is bf16, which is for GPUs: use precision='float32'"):
        StreamScorer(small_model(), precision="bf16")
    with pytest.raises(UserError, match="Unknown precision 'half'"):
        StreamScorer(small_model(), precision="half")
    assert score_all(StreamScorer(small_model()), []).tolist() == []
    assert VOCAB_SIZE > 1
