"""Requests of all kinds that are answered together get the answers that the library gives to each alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from bnce import Model
from tests.scoring.plain import BODIES

from .conftest import MakeClient, make_model

TEXTS = ["w3 w4 w5", "", "w9", "w3 w4 zebra w7 w7 w8"]


def ask_together(client: TestClient, requests: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Send requests at once, and see that some of them went through the model together."""
    with ThreadPoolExecutor(len(requests)) as threads:
        answers = list(threads.map(lambda request: client.post(request[0], json=request[1]), requests))
    assert {answer.status_code for answer in answers} == {200}
    passes = client.get("/metrics").text.partition("\nbnce_batch_questions_count ")[2].split()[0]
    assert int(passes) < len(requests)
    return [answer.json() for answer in answers]


@pytest.mark.parametrize("body", BODIES)
def test_together_as_alone(make_client: MakeClient, body: str) -> None:
    model = make_model(body)
    requests: list[tuple[str, dict[str, Any]]] = []
    for mode, normalised in (("unnormalised", False), ("normalised", True)):
        requests += [("/score", {"sentences": [text], "mode": mode}) for text in TEXTS]
        for texts in (TEXTS[:2], TEXTS[1:]):
            hypotheses = [{"text": text} for text in texts]
            requests.append(("/rescore", {"utterances": [{"hypotheses": hypotheses}], "mode": mode}))
        for prompt, k in (("", 3), ("w3 nobody", 5)):
            requests.append(("/next", {"prompt": prompt, "k": k, "normalised": normalised}))
    requests = [requests[place] for place in np.random.default_rng(1).permutation(len(requests))]
    client = make_client(model, max_wait_ms=200)
    for (path, asked), answer in zip(requests, ask_together(client, requests), strict=True):
        normalised = asked["normalised"] if path == "/next" else asked["mode"] == "normalised"
        check_against(model, path, asked, answer, normalised)


def check_against(model: Model, path: str, asked: dict[str, Any], answer: Any, normalised: bool) -> None:
    """Compare an answer with the library's to the same request alone."""
    if path == "/next":
        words = model.next_words(asked["prompt"], asked["k"], normalised=normalised)
        assert [word["word"] for word in answer["next"]] == [word.word for word in words]
        assert [word["prob"] for word in answer["next"]] == pytest.approx([word.prob for word in words], rel=1e-5)
    elif path == "/score":
        (found,), (alone,) = answer["sentences"], model.score(asked["sentences"], normalised=normalised)
        np.testing.assert_allclose(found["log10_probs"], alone.log10_probs, atol=1e-5)
        assert found["oov"] == [word == "zebra" for word in found["words"]]
    else:
        texts = [hypothesis["text"] for hypothesis in asked["utterances"][0]["hypotheses"]]
        for found, text in zip(answer["utterances"][0]["hypotheses"], texts, strict=True):
            (alone,) = model.score_words([text.split()], normalised=normalised)
            assert found["new_lm"] == pytest.approx(alone.log_probs.sum(), abs=1e-4)


def test_spelt_beside_others(make_client: MakeClient) -> None:
    model = make_model(spelt=["zebras"])
    texts = ["w3 zebra"]
    requests = [
        ("/score", {"sentences": texts, "mode": "normalised", "spell": spell}) for spell in (False, True, False)
    ]
    answers = ask_together(make_client(model, max_wait_ms=200), requests)
    first, spelt, last = (np.array(answer["sentences"][0]["log10_probs"]) for answer in answers)
    np.testing.assert_array_equal(first, last)
    apart = [model.score(texts, normalised=True, spell=spell)[0].log10_probs for spell in (False, True)]
    np.testing.assert_allclose(spelt - first, apart[1] - apart[0], atol=1e-6)
