"""Bodies that are small to send and would be large to read: refused before they cost time and memory."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from bnce import Model, Normaliser

from .conftest import make_model, make_server

MEGABYTE = 2**20
JSON = {"content-type": "application/json"}
# Much more than any of these takes, and much less than half a million errors did.
CPU_SECONDS = 1.5
MEMORY_BYTES = 100 * 2**20


@pytest.fixture
def model() -> Model:
    """Give one for which every mark is a word."""
    return make_model(normaliser=Normaliser(True, "words", "split"))


def filled(start: bytes, item: bytes, end: bytes) -> bytes:
    """Repeat an item until the body is as large as it may be."""
    return start + item * ((MEGABYTE - len(start) - len(end)) // len(item)) + end


MANY_FIELDS = ",".join(f'"f{number}": 1' for number in range(80_000)).encode()
HOSTILE = {
    "numbers": ("/score", filled(b'{"sentences":[', b"1,", b"1]}"), 413, "sentences: this server accepts at most 1000"),
    "texts": ("/score", filled(b'{"texts":[', b"[],", b"1]}"), 413, "sentences: this server accepts at most 1000"),
    "utterances": (
        "/rescore",
        filled(b'{"utterances":[', b"{},", b"1]}"),
        413,
        "utterances: this server accepts at most 2000",
    ),
    "hypotheses": (
        "/rescore",
        filled(b'{"utterances":[{"hypotheses":[', b'{"text":""},', b"1]}]}"),
        413,
        "hypotheses: this server accepts at most 2000",
    ),
    "fields": (
        "/score",
        b'{"sentences":["w3"],' + MANY_FIELDS + b"}",
        422,
        "An object in the body has 80001 fields: no object",
    ),
    "fields inside": (
        "/rescore",
        b'{"utterances":[{"hypotheses":[{' + MANY_FIELDS + b"}]}]}",
        422,
        "An object in the body has 80000 fields",
    ),
    "wrong fields of many": (
        "/rescore",
        b'{"utterances":[{"hypotheses":['
        + b",".join([b"{" + b",".join(b'"%d":1' % field for field in range(16)) + b"}"] * 2000)
        + b"]}]}",
        422,
        "utterances.0.hypotheses.0.text: Field required",
    ),
    "one field many times": (
        "/score",
        filled(b"{", b'"sentences":[],', b'"mode":1}'),
        422,
        "An object in the body has",
    ),
    "a field twice": ("/next", b'{"prompt": "w3", "k": 2, "prompt": "w4"}', 422, "prompt: The field occurs twice"),
    "a long name": ("/next", filled(b'{"', b"n", b'": 1}'), 422, "nnn…: there is no such field"),
    "depth": ("/score", b"[" * MEGABYTE, 400, "The body cannot be read as JSON: it is nested too deeply"),
    "a long number": ("/next", filled(b'{"k":', b"9", b"}"), 400, "cannot be read as JSON: a number in it is too long"),
    "words": (
        "/score",
        filled(b'{"sentences":["', b"w ", b'"]}'),
        413,
        "words or more: this server accepts at most 20000",
    ),
    "words without blanks": ("/score", filled(b'{"texts":["', b".", b'"]}'), 413, "words or more in one text: this"),
    "lines": ("/score", filled(b'{"texts":["', b".\\n", b'"]}'), 413, "words or more"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_too_much_is_refused_before_it_costs(client: TestClient, name: str) -> None:
    path, body, status, told = HOSTILE[name]
    assert len(body) <= MEGABYTE
    begin = time.process_time()
    response = client.post(path, content=body, headers=JSON)
    assert time.process_time() - begin < CPU_SECONDS
    assert response.status_code == status, response.text
    assert told in response.json()["detail"]
    assert len(response.content) < 1000


@pytest.mark.parametrize("name", ["numbers", "fields"])
def test_what_is_too_much_is_refused_in_little_memory(client: TestClient, name: str) -> None:
    path, body, _, _ = HOSTILE[name]
    tracemalloc.start()
    try:
        client.post(path, content=body, headers=JSON)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES


def test_others_are_answered_meanwhile(model: Model) -> None:
    """The loop is free again and again while eight clients send the worst bodies."""
    app = make_server(model)
    bodies = [HOSTILE[name] for name in ("numbers", "utterances", "hypotheses", "words without blanks")] * 2

    async def ask_health(client: httpx.AsyncClient, attacks: asyncio.Task[list[httpx.Response]]) -> list[float]:
        waits = []
        while not attacks.done():
            # What this process does meanwhile, in all its threads: others may have the cores as long as they like.
            begin = time.process_time()
            assert (await client.get("/healthz")).status_code == 200
            waits.append(time.process_time() - begin)
            await asyncio.sleep(0.005)
        return waits

    async def everybody() -> list[float]:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            posts = [client.post(path, content=body, headers=JSON) for path, body, _, _ in bodies]
            attacks = asyncio.ensure_future(asyncio.gather(*posts))
            waits = await ask_health(client, attacks)
            assert {answer.status_code for answer in attacks.result()} == {413}
        return waits

    waits = asyncio.run(everybody())
    assert len(waits) > 8
    assert max(waits) < 1


ODD = [None, True, 0, -1, 10**20, 1e308, "", "w3", "\x00", "\ud800", [], {}, [[]], [None], [{}], {"text": "w3"}]
GOOD: dict[str, Any] = {
    "/score": {"sentences": ["w3"], "mode": "normalised"},
    "/rescore": {"utterances": [{"hypotheses": [{"text": "w3"}]}]},
    "/next": {"prompt": "w3"},
}
FIELDS = {
    "ScoreRequest": {"sentences", "texts", "mode", "spell", "exact"},
    "RescoreRequest": {
        "utterances", "am_weight", "old_lm_weight", "lm_weight", "word_penalty", "oov_penalty", "rank_weight", "mode",
    },
    "NextRequest": {"prompt", "k", "normalised"},
    "Utterance": {"id", "hypotheses"},
    "Hypothesis": {"text", "am", "lm"},
}  # fmt: skip
KINDS = {"/score": "ScoreRequest", "/rescore": "RescoreRequest", "/next": "NextRequest"}


@pytest.mark.parametrize("path", GOOD)
def test_whatever_a_field_holds_the_server_does_not_fail(client: TestClient, path: str) -> None:
    bodies: list[Any] = [{**GOOD[path], name: odd} for name in FIELDS[KINDS[path]] for odd in ODD]
    bodies += ODD
    if path == "/rescore":
        utterances = [{"hypotheses": odd} for odd in ODD]
        utterances += [{"hypotheses": [{"text": "w3", name: odd}]} for name in FIELDS["Hypothesis"] for odd in ODD]
        bodies += [{"utterances": [utterance]} for utterance in utterances]
    for body in bodies:
        response = client.post(path, content=json.dumps(body), headers=JSON)
        assert response.status_code in (200, 422), (body, response.text)
        assert response.status_code == 200 or list(response.json()) == ["detail"]


def test_a_long_request_is_read_like_a_short_one(client: TestClient) -> None:
    """Beside the loop: what pydantic says of a field far down, and what a good one gets."""
    sentences = ["ba be bi bo bu"] * 999
    assert len(json.dumps(sentences)) > 10_000
    told = client.post("/score", json={"sentences": [*sentences, None]})
    assert (told.status_code, told.json()["detail"][:45]) == (422, "sentences.999: Input should be a valid string")
    answer = client.post("/score", json={"sentences": sentences})
    assert answer.json()["totals"]["num_words"] == 5 * 999


def test_the_interface_describes_what_is_read(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for kind, names in FIELDS.items():
        assert set(schemas[kind]["properties"]) == names
    assert schemas["Utterance"]["properties"]["hypotheses"]["items"] == {"$ref": "#/components/schemas/Hypothesis"}
    body = client.get("/openapi.json").json()["paths"]["/next"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/NextRequest"}
