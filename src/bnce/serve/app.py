"""The endpoints: HTTP around the service, and the page. Nothing here loads anything from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.exceptions import HTTPException

from bnce import files
from bnce.errors import UserError
from bnce.scoring.model import Model
from bnce.serve.access import Access, AllowedHosts
from bnce.serve.batching import Batcher
from bnce.serve.guard import FAILED, Application, Guard
from bnce.serve.limits import Limits, RefusedError
from bnce.serve.messages import (
    ErrorAnswer,
    HealthAnswer,
    NextAnswer,
    NextRequest,
    RescoreAnswer,
    RescoreRequest,
    ScoreAnswer,
    ScoreRequest,
)
from bnce.serve.metrics import CONTENT_TYPE, Metrics
from bnce.serve.questions import Answerer
from bnce.serve.requests import RequestReader, wrong_field
from bnce.serve.service import Service
from bnce.version import __version__

PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
}
# What needs no token: the program, which is no secret, and that it runs.
OPEN_PATHS = {*PAGE_FILES, "/openapi.json", "/healthz"}
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The body is not UTF-8 or not JSON."},
    401: {"model": ErrorAnswer, "description": "The token is missing or wrong."},
    408: {"model": ErrorAnswer, "description": "The body arrived too slowly."},
    413: {"model": ErrorAnswer, "description": "Too many bytes, sentences, hypotheses or words."},
    415: {"model": ErrorAnswer, "description": "The Content-Type is not application/json in UTF-8."},
    421: {"model": ErrorAnswer, "description": "The Host header is not a name of this server."},
    422: {"model": ErrorAnswer, "description": "A field is wrong."},
    503: {"model": ErrorAnswer, "description": "The server is busy; see Retry-After."},
    504: {"model": ErrorAnswer, "description": "The answer took too long."},
}


def make_app(
    model: Model,
    run: str = "",
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    hosts: AllowedHosts | None = None,
    token: str | None = None,
) -> Application:
    """Make the ASGI application that serves a model; without hosts, only requests to loopback names are answered."""
    limits, metrics = limits or Limits(), metrics or Metrics()
    access = Access(hosts, token, OPEN_PATHS)
    batcher = Batcher(Answerer(model).answer, metrics, limits)
    # For what takes long: large bodies, long texts, long answers. It is one, so that long requests take turns: more
    # threads would only take the interpreter from the loop more often.
    side_thread = ThreadPoolExecutor(1, thread_name_prefix="side")
    service = Service(model, run, limits, batcher, metrics, side_thread)

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        await batcher.start()
        yield
        await batcher.stop()
        side_thread.shutdown()

    # The usual documentation page loads its scripts from elsewhere: /docs is a page of ours.
    app = FastAPI(title="bnce", version=__version__, docs_url=None, redoc_url=None, lifespan=live)
    _add_endpoints(app, service, RequestReader(limits, side_thread), access)
    _describe(app)
    _add_pages(app)
    _add_refusals(app)
    endpoints = {route.path for route in app.routes if hasattr(route, "path")}
    return Guard(app, endpoints, limits, metrics, access)


def _add_endpoints(app: FastAPI, service: Service, reader: RequestReader, access: Access) -> None:
    def documented(model: type[Any]) -> dict[int | str, dict[str, Any]]:
        return {200: {"model": model}, **_ERRORS}

    @app.post("/score", responses=documented(ScoreAnswer), openapi_extra=_takes(ScoreRequest))
    async def score(request: Request) -> Response:
        """Score sentences: log10 probabilities of every word, unknown words, totals and perplexities."""
        return _json(await service.score(await reader.read(ScoreRequest, await request.body())))

    @app.post("/rescore", responses=documented(RescoreAnswer), openapi_extra=_takes(RescoreRequest))
    async def rescore(request: Request) -> Response:
        """Rescore the hypotheses of utterances, and find the best one of each utterance."""
        return _json(await service.rescore(await reader.read(RescoreRequest, await request.body())))

    @app.post("/next", responses=documented(NextAnswer), openapi_extra=_takes(NextRequest))
    async def next_words(request: Request) -> Response:
        """Find the most likely words after a prompt."""
        return _json(await service.next_words(await reader.read(NextRequest, await request.body())))

    @app.get("/next", responses=documented(NextAnswer))
    async def next_words_of_query(
        prompt: str = "", k: Annotated[int, Query(ge=1)] = 10, normalised: bool = True
    ) -> Response:
        """Find the most likely words after a prompt."""
        return _json(await service.next_words(NextRequest(prompt=prompt, k=k, normalised=normalised)))

    @app.get("/healthz", responses={200: {"model": HealthAnswer}})
    async def health(request: Request) -> Response:
        """Say that the server is up and what it serves. If a token is set, requests without it get only the status."""
        return _json(service.health() if access.trusts(request.scope) else files.to_json({"status": "ok"}))

    @app.get("/metrics")
    async def metrics() -> Response:
        """Give counts in Prometheus' text format."""
        return Response(service.metrics.render(service.batcher.num_waiting), headers={"content-type": CONTENT_TYPE})


def _takes(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a body, which FastAPI does not do where it does not read it itself."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _describe(app: FastAPI) -> None:
    """Add the bodies of requests to what /openapi.json says."""
    write = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            kinds: tuple[type[BaseModel], ...] = (ScoreRequest, RescoreRequest, NextRequest)
            requests: list[tuple[type[BaseModel], JsonSchemaMode]] = [(kind, "validation") for kind in kinds]
            _, described = models_json_schema(requests, ref_template="#/components/schemas/{model}")
            write()["components"]["schemas"].update(described["$defs"])
        return write()

    app.openapi = openapi  # type: ignore[method-assign]


def _add_pages(app: FastAPI) -> None:
    directory = resources.files("bnce.serve") / "page"
    for path, (name, kind) in PAGE_FILES.items():
        app.add_route(path, _page((directory / name).read_bytes(), kind), methods=["GET"])


def _page(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        return Response(content, media_type=kind)

    return page


def _add_refusals(app: FastAPI) -> None:
    """Answer whatever goes wrong with one sentence."""

    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> Response:
        headers = {} if error.retry_seconds is None else {"retry-after": str(error.retry_seconds)}
        return _refusal(error.status, error.sentence, headers)

    @app.exception_handler(UserError)
    async def bad_input(request: Request, error: UserError) -> Response:
        return _refusal(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def wrong_query(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        refusal = wrong_field({**first, "loc": first["loc"][1:]})
        return _refusal(refusal.status, refusal.sentence)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        # The guard hears of it, too, and logs it.
        return _refusal(500, FAILED)

    @app.exception_handler(HTTPException)
    async def not_here(request: Request, error: HTTPException) -> Response:
        sentences = {
            404: f"There is nothing at '{request.url.path}': see /docs.",
            405: f"'{request.url.path}' does not accept {request.method}: see /docs.",
        }
        return _refusal(error.status_code, sentences.get(error.status_code, error.detail), error.headers)


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def _refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(files.to_json({"detail": sentence}), status, headers, "application/json")
