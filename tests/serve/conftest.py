"""A small model behind the endpoints, without a port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from small_corpus import SPECIALS, VOCAB_SIZE, small_model
from starlette.testclient import TestClient

from bnce import Model, Normaliser
from bnce.corpus.vocabulary import Vocabulary
from bnce.scoring.run_model import RunModel
from bnce.serve.app import make_app
from bnce.serve.limits import Limits

WORDS = [*SPECIALS, *(f"w{number}" for number in range(2, VOCAB_SIZE))]

MakeClient = Callable[..., TestClient]


def make_model(body: str = "lstm", loss: str = "bnce") -> RunModel:
    name, _, num_layers = body.partition(" ")
    network = small_model(name, loss, order=4, num_layers=int(num_layers or 0), num_heads=2)
    return RunModel(network, Vocabulary(WORDS), Normaliser(True, "whitespace", "split"))


@pytest.fixture
def model() -> RunModel:
    return make_model()


@pytest.fixture
def make_client() -> Iterator[MakeClient]:
    """Give a maker of clients of servers that run until the test ends."""
    with ExitStack() as stack:

        def make(model: Model, limits: Limits | None = None, token: str | None = None) -> TestClient:
            app: Any = make_app(model, "small", limits, token=token)
            return stack.enter_context(TestClient(app, "http://localhost", raise_server_exceptions=False))

        yield make


@pytest.fixture
def client(make_client: MakeClient, model: Model) -> TestClient:
    return make_client(model)
