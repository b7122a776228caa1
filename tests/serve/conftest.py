"""A small model behind the endpoints, without a port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from small_corpus import open_small_run
from starlette.testclient import TestClient

from bnce import Model, Normaliser
from bnce.serve.app import make_app

MakeClient = Callable[..., TestClient]


def make_model(body: str = "lstm", loss: str = "bnce", **settings: Any) -> Model:
    """Make a run of a body."""
    settings = {"normaliser": Normaliser(True, "whitespace", "split"), "spelt": (), **settings}
    return open_small_run(body, loss, order=4, num_heads=2, **settings)


@pytest.fixture
def model() -> Model:
    return make_model()


@pytest.fixture
def make_client() -> Iterator[MakeClient]:
    """Give a maker of clients of servers that run until the test ends."""
    with ExitStack() as stack:

        def make(model: Model, **settings: Any) -> TestClient:
            server = make_app(model, "small", **settings)
            return stack.enter_context(TestClient(server, "http://localhost", raise_server_exceptions=False))

        yield make


@pytest.fixture
def client(make_client: MakeClient, model: Model) -> TestClient:
    return make_client(model)
