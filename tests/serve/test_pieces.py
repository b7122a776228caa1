"""A run over pieces: limits and batches count pieces, for each of them goes through the network."""

from __future__ import annotations

from typing import Any

import pytest

from bnce import Model
from bnce.scoring.mixture import MixtureModel
from bnce.serve.batching import Batcher
from bnce.serve.limits import Limits
from bnce.serve.questions import EXACT_COST
from tests.scoring.test_piece_model import make_model
from tests.scoring.unigram import Unigram

from .conftest import MakeClient

LONG = "xq" * 100_000
LIMITS = Limits(max_words=30, max_exact_words=20, max_sentence_words=10, max_next=3)


def piece_mixture() -> MixtureModel:
    return MixtureModel([Unigram({"</s>": 0.5, "<unk>": 0.5}), make_model()], [0.5, 0.5])


def utterances(*texts: str) -> dict[str, Any]:
    return {"utterances": [{"hypotheses": [{"text": text} for text in texts]}]}


@pytest.mark.parametrize("make", [make_model, piece_mixture])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/score", {"sentences": [LONG]}),
        ("/score", {"texts": [LONG], "mode": "normalised"}),
        ("/next", {"prompt": LONG, "k": 1}),
        ("/rescore", utterances("the", LONG)),
    ],
)
def test_one_long_word_is_refused(make_client: MakeClient, make: Any, path: str, body: dict[str, Any]) -> None:
    response = make_client(make()).post(path, json=body)
    assert response.status_code == 413
    assert "pieces or more" in response.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        # Ġ, x and q for each.
        ("/score", {"sentences": ["xq xq xq xq"]}, "12 pieces or more in one sentence: this server accepts at most 10"),
        ("/score", {"sentences": ["xq xq xq"] * 4}, "36 pieces or more: this server accepts at most 30"),
        ("/score", {"sentences": ["xq xq xq"] * 3, "exact": True}, "27 pieces for normalised probabilities"),
        ("/next", {"prompt": "xq xq xq xq", "k": 1}, "12 pieces or more in one sentence"),
        ("/rescore", utterances("xq", "xqxqxqxqxq"), "11 pieces or more in one sentence"),
    ],
)
def test_pieces_are_counted(make_client: MakeClient, path: str, body: dict[str, Any], sentence: str) -> None:
    response = make_client(make_model(), LIMITS).post(path, json=body)
    assert response.status_code == 413
    assert sentence in response.json()["detail"]


def test_as_many_pieces_as_the_limits_are_answered(make_client: MakeClient) -> None:
    """However many letters they have."""
    model = make_model()
    (piece,) = model.vocabulary.encode(["lowest"])
    assert piece > 1
    client = make_client(model, LIMITS)
    full = " ".join(["lowest"] * 10)
    assert client.post("/score", json={"sentences": [full] * 3}).status_code == 200
    assert client.post("/score", json={"sentences": [full] * 2, "exact": True}).status_code == 200
    assert client.post("/next", json={"prompt": full, "k": 1}).status_code == 200
    assert client.post("/rescore", json=utterances(full, "the")).status_code == 200


def test_a_word_that_is_not_listed_is_one_piece(make_client: MakeClient) -> None:
    client = make_client(make_model(known=["the"]), LIMITS)
    assert client.post("/score", json={"sentences": [LONG]}).status_code == 200


def test_a_search_for_more_next_words_takes_up_more_of_a_batch(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each word that is found went through the network, with the scores of all pieces after it."""
    costs: list[int] = []
    ask = Batcher.ask

    async def record(self: Batcher, questions: Any, num_words: int) -> list[Any]:
        costs.extend(question.cost for question in questions)
        return await ask(self, questions, num_words)

    monkeypatch.setattr(Batcher, "ask", record)
    client = make_client(make_model())
    for k in (1, 9):
        assert client.post("/next", json={"prompt": "xq", "k": k}).status_code == 200
    assert costs == [3 + 2 * EXACT_COST, 3 + 10 * EXACT_COST]


@pytest.mark.parametrize("make", [make_model, piece_mixture])
def test_batches_and_the_queue_count_pieces(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    asked: list[tuple[list[int], int]] = []
    ask = Batcher.ask

    async def record(self: Batcher, questions: Any, num_words: int) -> list[Any]:
        asked.append(([question.cost for question in questions], num_words))
        return await ask(self, questions, num_words)

    monkeypatch.setattr(Batcher, "ask", record)
    model: Model = make()
    client = make_client(model, Limits(max_batch=8))
    assert client.post("/score", json={"sentences": ["xq the", ""]}).status_code == 200
    assert client.post("/rescore", json=utterances("xq", "xq", "xq")).status_code == 200
    assert client.post("/next", json={"prompt": "xqx", "k": 1}).status_code == 200
    num_scored = 1 if isinstance(model, MixtureModel) else 2
    assert asked == [([5, 1], 6), ([8, 4], 12), ([4 + num_scored * EXACT_COST], 5)]
    words, pieces = ([f"bnce_{name}_total {number}"] for name, number in (("words", 12), ("pieces", 23)))
    lines = client.get("/metrics").text.splitlines()
    assert {*words, *pieces} <= {*lines}
